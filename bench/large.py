"""Models whose Hessian is not formed: ``python -m bench.large [--quick] [--case NAME]``.

Every case runs in a process of its own. Prints
``name<TAB>value<TAB>unit`` lines: time of the fit and of deletions (the engine alone), passes over
the rows, peak memory beyond the data's, what the Hessian would have taken, and scikit-learn's
default fit of the same model.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression

from bench.convex import show
from expunge.datasets import fashion_mnist
from expunge.errors import DataMissing
from expunge.linear.engine import fit, unlearn
from expunge.linear.rows import make_rows

TOLERANCE = 3.7e-5
"""What σ = 0.01 covers over 1,000 releases at ε = 1, δ = 1e-6."""


def fashion(scale: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all of Fashion-MNIST, rows normalised: 60,000 × 784, ten classes."""
    data = fashion_mnist()
    X = data.X.reshape(len(data.X), -1).astype(float)[::scale]
    return X / np.linalg.norm(X, axis=1, keepdims=True), data.y[::scale]


def wide(scale: int) -> tuple[np.ndarray, np.ndarray]:
    """Return unit rows with labels from a softmax model: 20,000 × 1,280, a hundred classes."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20_000 // scale, 1280))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    scores = X @ rng.standard_normal((1280, 100)) * 10 + rng.gumbel(size=(len(X), 100))
    return X, scores.argmax(axis=1)


def text(scale: int) -> tuple[sp.csr_array, np.ndarray]:
    """Return CSR rows like text: 11,000 × 50,000 terms of Zipf's frequencies, twenty classes."""
    rng = np.random.default_rng(0)
    n, d = 11_000 // scale, 50_000
    terms = np.minimum(rng.zipf(1.2, size=(n, 150)) - 1, d - 1)
    X = sp.csr_array(
        (np.ones(terms.size), (np.repeat(np.arange(n), 150), terms.ravel())), shape=(n, d)
    )
    X = sp.csr_array(X.multiply(1.0 / np.sqrt(X.multiply(X).sum(axis=1))[:, None]))
    scores = np.asarray(X @ rng.standard_normal((d, 20))) + 0.3 * rng.gumbel(size=(n, 20))
    return X, scores.argmax(axis=1)


CASES: dict[str, Callable[[int], tuple[np.ndarray | sp.csr_array, np.ndarray]]] = {
    "fashion": fashion,
    "wide": wide,
    "text": text,
}


def measure(name: str, scale: int, intercept: bool) -> None:
    """Fit, delete one row, and one in a hundred."""
    X, labels = CASES[name](scale)
    y = np.unique(labels, return_inverse=True)[1]
    classes = int(y.max()) + 1
    rows = make_rows(X, np.eye(classes)[y], intercept=intercept)
    label = name + ("" if intercept else "_no_intercept")
    tracemalloc.start()
    start = time.perf_counter()
    state, trace = fit(rows, loss="softmax", l2=1.0, tolerance=TOLERANCE, classes=True)
    show(label, "fit", value=time.perf_counter() - start, unit="s")
    show(label, "fit_passes", value=trace.passes, unit="passes")
    order = np.random.default_rng(1).permutation(len(y))
    for what, gone in (("one", order[:1]), ("percent", order[1 : 1 + len(y) // 100])):
        forget = rows.take(gone)
        rows.drop(gone)
        start = time.perf_counter()
        state, trace = unlearn(state, forget, rows)
        show(label, f"delete_{what}", value=time.perf_counter() - start, unit="s")
        show(label, f"delete_{what}_passes", value=trace.passes, unit="passes")
        show(label, f"delete_{what}_distance", value=trace.distance, unit="")
    size = rows.width * classes
    show(label, "coefficients", value=size, unit="")
    show(label, "hessian_would_take", value=8e-6 * size * size, unit="MB")
    show(label, "memory_beyond_data", value=tracemalloc.get_traced_memory()[1] / 1e6, unit="MB")
    tracemalloc.stop()
    start = time.perf_counter()
    LogisticRegression(fit_intercept=intercept, max_iter=10_000).fit(X, y)
    show(label, "scikit_learn_fit", value=time.perf_counter() - start, unit="s")


def main() -> None:
    """Run every case in a process of its own, or one here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--no-intercept", action="store_true")
    options = parser.parse_args()
    scale = 10 if options.quick else 1
    if options.case:
        try:
            measure(options.case, scale, not options.no_intercept)
        except DataMissing as error:
            sys.stderr.write(f"{error}\n")
        return
    for name in CASES:
        for more in ([], ["--no-intercept"]):
            quick = ["--quick"] if options.quick else []
            command = [sys.executable, "-m", "bench.large", "--case", name, *quick, *more]
            subprocess.run(command, check=True, cwd=Path(__file__).parent.parent)


if __name__ == "__main__":
    main()
