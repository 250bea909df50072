"""Schema files: what the columns of a table are, declared before anybody's data is looked at.

A schema is TOML or JSON::

    ignore = ["name"]                # known columns that are not features
    max_norm = 3.0                   # optional: longer rows are scaled down to this length

    [features.age]
    type = "number"                  # (value - center) / scale
    center = 40
    scale = 20
    fill = 40                        # optional: stands for a missing value, and flags it

    [features.site]
    type = "category"
    categories = ["Dayton", "Seattle"]
    other = true                     # optional: one column for all other values
    missing = true                   # optional: one column for missing values

    [label]
    classes = ["no", "yes"]          # or: type = "number"
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from expunge.errors import InvalidInput
from expunge.folder.encoding import MAX_CATEGORIES, MIN_PEOPLE, numbers_of, shared_values
from expunge.folder.table import Table
from expunge.folder.values import NotANumber


def load_schema(path: str | Path) -> dict[str, Any]:
    """Read a schema file, for `Encoding.declared` and `LabelEncoding.declared`.

    Raises
    ------
    InvalidInput
        For a file that is missing, neither .toml nor .json, or malformed.
    """
    path = Path(path)
    if path.suffix not in (".toml", ".json"):
        raise InvalidInput(f"{path.name} must end in .toml or .json to be a schema")
    try:
        text = path.read_text("utf-8-sig")
        schema = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except FileNotFoundError:
        raise InvalidInput(f"{path} does not exist; a template can be made of the table") from None
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path.name} cannot be read as a schema: {error}") from None
    except RecursionError:
        raise InvalidInput(f"{path.name} is no schema: it is nested too deeply") from None
    if not isinstance(schema, dict):
        raise InvalidInput(
            f"{path.name} must hold a table of settings, got {type(schema).__name__}"
        )
    return schema


def template(table: Table) -> str:
    """Write a TOML schema for a table's columns, to be edited by hand.

    Numbers get center 0 and scale 1, whatever their values are. Texts that at least `MIN_PEOPLE`
    people share are listed as categories; a column with more than `MAX_CATEGORIES` is ignored.
    """
    ignored, sections = [], []
    for name in table.features.column_names:
        try:
            numbers_of(table, name)
            sections.append(_number_section(name))
        except NotANumber:
            shared, distinct, _ = shared_values(table, name)
            if distinct > MAX_CATEGORIES:
                ignored.append(name)
            else:
                sections.append(_category_section(name, shared))
    head = (
        "# Write down what you know about the columns, not what this table happens to hold: these\n"
        "# numbers and categories are public and stay as they are when people are forgotten.\n"
        f"ignore = {_list(ignored)}\n"
        "# max_norm = 3.0  # scale longer rows down to this length\n"
    )
    return "\n".join([head, *sections])


def _number_section(name: str) -> str:
    return (
        f"[features.{_quote(name)}]\n"
        'type = "number"\n'
        "center = 0.0  # a typical value\n"
        "scale = 1.0  # a typical distance from it\n"
        "# fill = 0.0  # stands for missing values, which are errors without it\n"
    )


def _category_section(name: str, shared: Iterable[str]) -> str:
    return (
        f"[features.{_quote(name)}]\n"
        'type = "category"\n'
        f"categories = {_list(shared)}  # complete this; shared by {MIN_PEOPLE} people or more\n"
        "other = true  # one column for all other values, which are errors without it\n"
        "missing = true  # one column for missing values, which are errors without it\n"
    )


def _list(values: Iterable[str]) -> str:
    return "[" + ", ".join(map(_quote, values)) + "]"


def _quote(text: str) -> str:
    """Quote a TOML key or string: as JSON does, and escape whatever does not print."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)
