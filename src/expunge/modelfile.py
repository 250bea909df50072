"""The file of a released model: two tensors and what they mean, nothing else.

Safetensors with the tensors ``coef`` (K, d) and, with an intercept, ``intercept`` (K,), both
float64, and one metadata entry ``expunge``: sorted JSON. The same model gives the same bytes, so
that a digest names it; whatever else a file holds is refused, so that nothing can hide in it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from expunge.errors import InvalidInput

Array = NDArray[np.float64]
Label = str | int | float | bool

FORMAT = "expunge-model/1"
REGRESSION = ("squared", "poisson", "gamma", "huber")
LOSSES = ("logistic", "softmax", "logistic-ovr", "squared-hinge", *REGRESSION)


@dataclass(frozen=True, eq=False)
class ReleasedModel:
    """A linear model as published: scores are X·coefᵀ + intercept.

    Attributes
    ----------
    coef : ndarray of float64, (K, d)
        One row per score.
    intercept : ndarray of float64, (K,), or None
        None for a model without an intercept.
    loss : str
        logistic (K = 1), softmax or logistic-ovr (K classes), squared-hinge (either), or one of
        `REGRESSION`.
    classes : tuple or None
        Labels in the order of the scores; with K = 1, the label below zero and the one above it.
        None for a regressor.

    Raises
    ------
    InvalidInput
        If shapes, types, loss and classes do not fit together or a number is not finite.
    """

    coef: Array = field(repr=False)
    intercept: Array | None = field(repr=False)
    loss: str
    classes: tuple[Label, ...] | None

    def __post_init__(self) -> None:
        """Check that the parts fit together."""
        _check_tensor("coef", self.coef, 2)
        if self.intercept is not None:
            _check_tensor("intercept", self.intercept, 1)
            if self.intercept.shape[0] != self.coef.shape[0]:
                raise InvalidInput(
                    f"intercept must have one entry per row of coef ({self.coef.shape[0]}); "
                    f"got {self.intercept.shape[0]}"
                )
        if self.loss not in LOSSES:
            raise InvalidInput(f"loss must be one of {', '.join(LOSSES)}; got {self.loss!r}")
        _check_classes(self.classes, self.loss, self.coef.shape[0])


def encode(model: ReleasedModel) -> bytes:
    """Return the bytes of the model file; equal models give equal bytes, for ever.

    Written here rather than by the safetensors library, whose future versions may order or pad
    the header in other ways; the digest in a certificate must not depend on them.

    Examples
    --------
    >>> model = ReleasedModel(np.ones((1, 2)), None, "squared", None)
    >>> decode(encode(model)).coef
    array([[1., 1.]])
    """
    tensors = {"coef": model.coef}
    if model.intercept is not None:
        tensors["intercept"] = model.intercept
    header: dict[str, Any] = {"__metadata__": {"expunge": _meaning_text(model)}}
    body = b""
    for name, tensor in tensors.items():
        data = tensor.astype("<f8").tobytes()
        offsets = [len(body), len(body) + len(data)]
        header[name] = {"dtype": "F64", "shape": list(tensor.shape), "data_offsets": offsets}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


def decode(content: bytes) -> ReleasedModel:
    """Read a model file, refusing everything that :func:`encode` would not have written.

    Raises
    ------
    InvalidInput
        If the bytes are no safetensors file, or hold an unknown tensor, type, shape or entry, or
        numbers that are not finite.
    """
    try:
        tensors = load(content)
        header = _strict_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
    except (SafetensorError, ValueError, KeyError, RecursionError) as error:
        raise InvalidInput(f"a model file must be a safetensors file; {error}") from error
    unknown = sorted(set(header) - {"coef", "intercept", "__metadata__"})
    if unknown:
        raise InvalidInput(f"a model file holds only coef and intercept; found {unknown}")
    if "coef" not in tensors:
        raise InvalidInput("a model file must hold the tensor coef; it is missing")
    meaning = _meaning(header.get("__metadata__"))
    classes = meaning["classes"]
    if classes is not None and not isinstance(classes, list):
        raise InvalidInput(f"classes in a model file must be a list or null; got {classes!r}")
    labels = None if classes is None else tuple(classes)
    model = ReleasedModel(tensors["coef"], tensors.get("intercept"), meaning["loss"], labels)
    if encode(model) != content:
        raise InvalidInput(
            "a model file must be written as expunge writes it; the same model gives other bytes"
        )
    return model


def scores(model: ReleasedModel, X: ArrayLike) -> Array:
    """Return X·coefᵀ + intercept, shape (n, K).

    ``X`` is (n, d), an array or a SciPy sparse matrix, and finite.

    Raises
    ------
    InvalidInput
        If X has another number of columns or holds a value that is not finite.
    """
    features: Any = X if hasattr(X, "tocsr") else np.asarray(X, dtype=np.float64)
    if features.ndim != 2 or features.shape[1] != model.coef.shape[1]:
        raise InvalidInput(
            f"X must have shape (n, {model.coef.shape[1]}); got {tuple(features.shape)}"
        )
    values = features.data if hasattr(features, "tocsr") else features
    if not np.isfinite(values).all():
        raise InvalidInput("X must hold finite numbers only; found NaN or infinity")
    product: Array = np.asarray(features @ model.coef.T)
    return product if model.intercept is None else product + model.intercept


def predict_labels(model: ReleasedModel, X: ArrayLike) -> NDArray[Any]:
    """Return the predicted label of each row, shape (n,); for a regressor the scores, (n, K).

    Raises
    ------
    InvalidInput
        As :func:`scores`.
    """
    values = scores(model, X)
    if model.classes is None:
        return values
    chosen = (values[:, 0] > 0).astype(np.intp) if values.shape[1] == 1 else values.argmax(axis=1)
    uniform = len({type(label) for label in model.classes}) == 1
    labels: NDArray[Any] = np.array(model.classes, dtype=None if uniform else object)
    predicted: NDArray[Any] = labels[chosen]
    return predicted


def digest(content: bytes) -> str:
    """Return the SHA-256 of a model file's bytes, hex."""
    return hashlib.sha256(content).hexdigest()


def _check_tensor(name: str, tensor: Array, dimensions: int) -> None:
    if tensor.dtype != np.float64 or tensor.ndim != dimensions or tensor.size == 0:
        raise InvalidInput(
            f"{name} must be a non-empty float64 array of {dimensions} dimension(s); "
            f"got {tensor.dtype} of shape {tensor.shape}"
        )
    if not np.isfinite(tensor).all():
        raise InvalidInput(f"{name} must hold finite numbers only; found NaN or infinity")


def _check_classes(classes: tuple[Label, ...] | None, loss: str, rows: int) -> None:
    if classes is None:
        if loss not in REGRESSION:
            raise InvalidInput(f"a model with loss {loss} needs its classes; got None")
        return
    if any(type(label) not in (str, int, float, bool) for label in classes):
        raise InvalidInput(
            "classes must be plain str, int, float or bool (use classes.tolist()); "
            f"got {sorted({type(label).__name__ for label in classes})}"
        )
    if any(isinstance(label, float) and not np.isfinite(label) for label in classes):
        raise InvalidInput("classes must be finite; found NaN or infinity")
    if len(set(classes)) != len(classes):
        raise InvalidInput(f"classes must differ from each other; got {classes!r}")
    needed = 2 if rows == 1 else rows
    wrong_rows = {"logistic": rows != 1, "softmax": rows == 1}.get(loss, False)
    if len(classes) != needed or wrong_rows:
        raise InvalidInput(
            f"loss {loss} with {rows} row(s) of coef does not fit {len(classes)} classes; "
            "one row serves two classes, more rows one class each (logistic: one row, "
            "softmax: at least two)"
        )


def _meaning_text(model: ReleasedModel) -> str:
    meaning = {"classes": model.classes, "format": FORMAT, "loss": model.loss}
    return json.dumps(meaning, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _meaning(metadata: Any) -> dict[str, Any]:
    if not isinstance(metadata, dict) or set(metadata) != {"expunge"}:
        raise InvalidInput("a model file must hold exactly one metadata entry, 'expunge'")
    try:
        meaning = _strict_json(metadata["expunge"])
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the metadata of a model file must be JSON; {error}") from error
    if set(meaning) != {"classes", "format", "loss"} or meaning["format"] != FORMAT:
        raise InvalidInput(f"the metadata must be classes, loss and format {FORMAT!r}")
    return meaning


def _strict_json(text: str | bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a key appears twice")
        return dict(pairs)

    value = json.loads(text, object_pairs_hook=unique)
    if not isinstance(value, dict):
        raise ValueError("expected an object")
    return value
