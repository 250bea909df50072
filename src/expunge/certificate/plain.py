"""Text of others on a terminal: nothing in it may act, or look like a line of ours."""

from __future__ import annotations

from collections.abc import Iterable

LONGEST = 80


def printable(text: str) -> str:
    r"""One line of text with `�` for whatever does not print: escapes, newlines, overrides.

    >>> printable("a\x1b[2Jb\nc")
    'a�[2Jb�c'
    """
    return "".join(c if c.isprintable() else "�" for c in text.replace("\u00a0", " "))


def quoted(text: object, longest: int = LONGEST) -> str:
    r"""Text that somebody else wrote, in quotes, escaped, and not longer than `longest`.

    >>> quoted("in\x1btoto"), quoted("x" * 99, 8)
    ("'in\\x1btoto'", "'xxx...")
    """
    shown = repr(text)
    return shown if len(shown) <= longest else shown[: longest - 3] + "..."


def some(texts: Iterable[str], most: int = 5) -> str:
    """The first few of many texts that somebody else wrote, quoted.

    >>> some("abcdefg", 2)
    "'a', 'b' and 5 others"
    """
    found = list(texts)
    rest = len(found) - most
    shown = ", ".join(quoted(text) for text in found[:most])
    return shown + (f" and {rest} other{'s' * (rest > 1)}" if rest > 0 else "")


def is_unicode(text: str) -> bool:
    """Whether a text can be written down; an argument that came as other bytes cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
