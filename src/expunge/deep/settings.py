"""What an experiment file says, checked before anything runs (docs/deep.md has the schema)."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
import types
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from expunge.deep.descent import Recipe
from expunge.deep.methods import METHODS
from expunge.deep.problem import Method
from expunge.errors import InvalidInput

Metric = Literal["f1", "membership", "relearn", "distance"]

LABEL = re.compile(r"[^\x00-\x1f\x7f]{1,80}")


@dataclass(frozen=True)
class Data:
    """Table [data]: what is trained and tested on.

    Attributes
    ----------
    source : {"fashion-mnist", "digits", "npz", "idx"}
    path : str, optional
        The directory of Fashion-MNIST or of IDX files, or the .npz file; relative paths start at
        the experiment file.
    x, y, x_test, y_test : str
        Names of arrays in the .npz file, or of IDX files (.gz or not).
    rows, test_rows : int, optional
        How many to use, drawn by ``seed``; all, if not given.
    seed : int
    """

    source: Literal["fashion-mnist", "digits", "npz", "idx"]
    path: str | None = None
    x: str = "x"
    y: str = "y"
    x_test: str = "x_test"
    y_test: str = "y_test"
    rows: int | None = None
    test_rows: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check what depends on the source."""
        if self.source in ("npz", "idx") and self.path is None:
            raise InvalidInput(f"source = {self.source!r} needs path = ...")
        if self.source == "digits" and self.path is not None:
            raise InvalidInput("source = 'digits' comes with scikit-learn and takes no path")
        for name, value in (("rows", self.rows), ("test_rows", self.test_rows)):
            if value is not None and value < 2:
                raise InvalidInput(f"{name} must be at least 2, not {value}")
        if self.seed < 0:
            raise InvalidInput(f"seed must be at least 0, not {self.seed}")


@dataclass(frozen=True)
class Net:
    """Table [model]: what is trained.

    Attributes
    ----------
    kind : {"mlp", "cnn", "python"}
    widths, activation
        Hidden layers of an MLP.
    width : int
        Channels of the first layers of the all-convolutional network; a multiple of 4.
    factory : str
        ``package.module:function`` for ``python``: called without arguments, returns an untrained
        module. The directory of the experiment file is searched first.
    """

    kind: Literal["mlp", "cnn", "python"]
    widths: tuple[int, ...] = (32, 32)
    activation: Literal["relu", "tanh", "gelu"] = "relu"
    width: int = 8
    factory: str | None = None

    def __post_init__(self) -> None:
        """Check sizes, and that a factory is given where it is needed."""
        if any(width < 1 for width in self.widths):
            raise InvalidInput(f"widths must be at least 1, not {list(self.widths)}")
        if self.width < 4 or self.width % 4:
            raise InvalidInput(f"width must be a multiple of 4, not {self.width}")
        if (self.kind == "python") != (self.factory is not None):
            raise InvalidInput("kind = 'python', and no other, needs factory = 'module:function'")


@dataclass(frozen=True)
class Forget:
    """Table [forget]: which records.

    Attributes
    ----------
    kind : {"random", "class", "ids"}
    count, fraction
        How many, of all records or of those of the class; one of both. A class is forgotten whole
        if neither is given.
    label : int
        The class.
    ids : tuple of int
        Positions in the source's training records, from 0.
    """

    kind: Literal["random", "class", "ids"]
    count: int | None = None
    fraction: float | None = None
    label: int | None = None
    ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check that exactly what the kind needs is given."""
        sizes = (self.count is not None) + (self.fraction is not None)
        if self.kind == "random" and sizes != 1:
            raise InvalidInput("kind = 'random' needs count or fraction, one of them")
        if self.kind == "ids" and (sizes or not self.ids):
            raise InvalidInput("kind = 'ids' needs ids = [...], and no count or fraction")
        if sizes > 1:
            raise InvalidInput("give count or fraction, not both")
        if (self.kind == "class") != (self.label is not None):
            raise InvalidInput("kind = 'class', and no other, needs label = ...")
        if self.kind != "ids" and self.ids:
            raise InvalidInput(f"kind = {self.kind!r} takes no ids")
        if self.fraction is not None and not 0.0 < self.fraction <= 1.0:
            raise InvalidInput(f"fraction must be above 0 and at most 1, not {self.fraction}")
        if self.count is not None and self.count < 1:
            raise InvalidInput(f"count must be at least 1, not {self.count}")


@dataclass(frozen=True)
class Measures:
    """Table [measure].

    Attributes
    ----------
    metrics : tuple of {"f1", "membership", "relearn", "distance"}
        Beside accuracy, which is always measured.
    retrains : int
        Retrained models per seed that predictions are compared with.
    relearn_lr, relearn_batch, relearn_cap, relearn_orders
        Of `relearn_steps`.
    margin : float
        Accuracy on R below retraining from which a model counts as over-unlearned.
    """

    metrics: tuple[Metric, ...] = ("f1", "membership", "relearn", "distance")
    retrains: int = 3
    relearn_lr: float = 1e-2
    relearn_batch: int = 64
    relearn_cap: int = 1000
    relearn_orders: int = 5
    margin: float = 0.05

    def __post_init__(self) -> None:
        """Check ranges."""
        least = min(self.retrains, self.relearn_batch, self.relearn_cap, self.relearn_orders)
        if least < 1 or not self.relearn_lr > 0.0 or not 0.0 <= self.margin < 1.0:
            raise InvalidInput(
                "retrains, relearn_batch, relearn_cap and relearn_orders must be at least 1, "
                "relearn_lr above 0 and margin in [0, 1)"
            )


@dataclass(frozen=True)
class Plan:
    """What an experiment file says, checked.

    Attributes
    ----------
    title : str
    base : Path
        Directory of the file.
    data, model, forget, measure
        Its tables.
    train : Recipe
    methods : tuple of (label, Method)
        Retraining and doing nothing first, whether the file names them or not.
    seeds : tuple of int
    device : str
    """

    title: str
    base: Path
    data: Data
    model: Net
    train: Recipe
    forget: Forget
    measure: Measures
    methods: tuple[tuple[str, Method], ...]
    seeds: tuple[int, ...]
    device: str = "cpu"

    @property
    def setting(self) -> dict[str, Any]:
        """What every run depends on, as plain values."""
        parts = {name: getattr(self, name) for name in ("data", "model", "train", "forget")}
        plain: dict[str, Any] = {name: asdict(part) for name, part in parts.items()}
        plain |= {"measure": asdict(self.measure), "device": self.device}
        found: dict[str, Any] = json.loads(json.dumps(plain))
        return found


def digest(*parts: Any) -> str:
    """Return 16 hexadecimal digits that name what was given."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def parameters(method: Method) -> dict[str, Any]:
    """Return the parameters of a method as plain values."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(method), default=str))  # type: ignore[call-overload]
    return found


def read_plan(path: Path) -> Plan:
    """Read an experiment file.

    Raises
    ------
    InvalidInput
        If it is not TOML, or something in it is unknown, missing or of another type; says what is
        known.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not TOML: {error}") from None
    tables = {"data": Data, "model": Net, "train": Recipe, "forget": Forget}
    known = {"title", "seeds", "device", "methods", "method", "measure", *tables}
    _only(raw, known, str(path))
    for name in tables:
        if not isinstance(raw.get(name), dict):
            raise InvalidInput(f"{path} needs a table [{name}]")
    if "seed" in raw["train"]:
        raise InvalidInput("[train] takes no seed: give seeds = [...], a training for each")
    top = _made(_Top, {k: raw[k] for k in ("title", "seeds", "device") if k in raw}, str(path))
    made = {name: _made(kind, raw[name], f"[{name}]") for name, kind in tables.items()}
    measure = _made(Measures, raw.get("measure", {}), "[measure]")
    title = top.title or path.stem
    return Plan(
        title, path.resolve().parent, **made, measure=measure, methods=_methods(raw),
        seeds=top.seeds, device=top.device,
    )  # fmt: skip


@dataclass(frozen=True)
class _Top:
    title: str | None = None
    seeds: tuple[int, ...] = (0,)
    device: str = "cpu"

    def __post_init__(self) -> None:
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise InvalidInput(f"seeds must be different numbers from 0, not {list(self.seeds)}")


def _methods(raw: Mapping[str, Any]) -> tuple[tuple[str, Method], ...]:
    names, tables = raw.get("methods", []), raw.get("method", [])
    listed = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not listed or not isinstance(tables, list):
        raise InvalidInput("methods must be a list of names, with parameters a table [[method]]")
    found: dict[str, Method] = {}
    for table in [{"name": name} for name in names] + tables:
        options = dict(table)
        name, label = options.pop("name", None), options.pop("label", None)
        if name not in METHODS:
            raise InvalidInput(f"no method is called {name!r}; known are {', '.join(METHODS)}")
        made = _made(METHODS[name], options, f"method {name}")
        label = label or ", ".join([name, *(f"{k} = {v}" for k, v in options.items())])
        if not isinstance(label, str) or not LABEL.fullmatch(label):
            raise InvalidInput(f"label must be a line of at most 80 characters, not {label!r}")
        if label in found:
            raise InvalidInput(f"two methods are called {label!r}: give one another label")
        found[label] = made
    named = {method.name for method in found.values()}
    ends = {name: METHODS[name]() for name in ("retrain", "null") if name not in named}
    found = {**ends, **found}
    order = {"retrain": 0, "null": 1}
    return tuple(sorted(found.items(), key=lambda it: order.get(it[1].name, 2)))


def _made(kind: Any, options: Mapping[str, Any], where: str) -> Any:
    """Return a dataclass of the values of a table, after checking their names and types."""
    known = {field.name: field for field in fields(kind)}
    _only(options, set(known), where)
    needed = [
        name
        for name, field in known.items()
        if field.default is MISSING and field.default_factory is MISSING and name not in options
    ]
    if needed:
        raise InvalidInput(f"{where} needs {needed[0]} = ...")
    hints = get_type_hints(kind)
    given: dict[str, Any] = {}
    for name, value in options.items():
        hint = hints[name]
        if is_dataclass(hint) and isinstance(value, dict):
            given[name] = _made(hint, value, f"{where}, {name}")
            continue
        if not _fits(value, hint):
            raise InvalidInput(f"{where}: {name} must be {_words(hint)}, not {value!r}")
        given[name] = tuple(value) if isinstance(value, list) else value
    try:
        return kind(**given)
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from None


def _only(table: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        may = f"known are {', '.join(sorted(known))}" if known else "it has no parameters"
        raise InvalidInput(f"{where} has no {unknown[0]!r}; {may}")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value of TOML is of a type; whole numbers are numbers, booleans are neither."""
    origin = get_origin(hint)
    if origin is Literal:
        return value in get_args(hint) and type(value) in {type(it) for it in get_args(hint)}
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if origin is tuple:
        return isinstance(value, list) and all(_fits(it, get_args(hint)[0]) for it in value)
    if hint is float:
        return type(value) in (int, float)
    return type(value) is hint


def _words(hint: Any) -> str:
    """Return a type in words."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(repr(it) for it in parts)
    if origin in (Union, types.UnionType):
        return " or ".join(_words(part) for part in parts if part is not types.NoneType)
    if origin is tuple:
        return f"a list, each {_words(parts[0])}"
    plain = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return plain.get(hint, str(hint))
