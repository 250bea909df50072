"""Our deletions beside other tools': ``python -m bench.peers [--certified-removal DIR] [--quick]``.

Prints ``name<TAB>value<TAB>unit`` lines; what is not here is named on stderr and left out. The
reference and ours run in turn, each time in a new process, on the same rows in the same order.
Times are wall seconds on whatever cores are free; compare the ratios, each of one round.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np

from bench.convex import Case, show
from bench.lifetime import accuracy
from bench.peers import ours, private, reference
from bench.peers.retrain import retrains
from bench.peers.setting import Setting, cases, fresh, residual

DRAWS = 1000
ROUNDS, EACH = 5, 40
Pair = tuple[reference.Reference, ours.Ours]


def averages(seconds: np.ndarray) -> dict[str, float]:
    """Return the median, the mean, and the tenth percentile: about what an idle machine takes."""
    quiet = float(np.percentile(seconds, 10))
    return {"median": float(np.median(seconds)), "mean": float(seconds.mean()), "quiet": quiet}


def rounds(checkout: Path, case: Case, setting: Setting) -> list[Pair]:
    """Time the reference and ours in turn, each in a new process, on the same removals."""
    found, count = [], min(EACH, len(case.y) // 4)
    for seed in range(ROUNDS):
        theirs = fresh(reference.removals, checkout, case, setting, count, seed)
        found.append((theirs, fresh(ours.removals, case, setting, theirs.order)))
    return found


def speed(name: str, pairs: list[Pair]) -> None:
    """Print the seconds of all rounds, and how many times longer the reference takes in a round."""
    theirs = [pair[0].seconds for pair in pairs]
    sides = {"with": [p.released for _, p in pairs], "without": [p.engine for _, p in pairs]}
    whole = averages(np.concatenate(theirs))
    for average, value in whole.items():
        show(name, f"reference_{average}", value=value, unit="s each")
    for kind, mine in sides.items():
        all_rounds = averages(np.concatenate(mine))
        for average, value in all_rounds.items():
            show(name, f"ours_{kind}_release_{average}", value=value, unit="s each")
        ratios = [float(np.median(a) / np.median(b)) for a, b in zip(theirs, mine, strict=True)]
        label = f"reference_over_ours_{kind}_release"
        show(name, label, value=float(np.median(ratios)), unit="times")
        show(name, f"{label}_least", value=min(ratios), unit="times")
        show(name, f"{label}_most", value=max(ratios), unit="times")
        quiet = whole["quiet"] / all_rounds["quiet"]
        show(name, f"{label}_quiet", value=quiet, unit="times")


def published(checkout: Path, case: Case, setting: Setting, count: int) -> np.ndarray:
    """Run the reference for ``count`` removals, print what it supports; return their order."""
    found = fresh(reference.removals, checkout, case, setting, count)
    budget, spent = setting.mechanism().budget, float(found.bounds.sum())
    show(case.name, "reference_budget", value=budget, unit="gradient residual, sum")
    show(case.name, "reference_spent", value=spent, unit="gradient residual, sum")
    supported = found.supported(budget)
    show(case.name, "reference_supported", value=supported, unit=f"removals of {count}")
    for when, weights in (("before", found.before), ("after", found.after)):
        right = accuracy(case, weights, 0.0, seed=0, draws=1)
        show(case.name, f"reference_accuracy_{when}", value=right, unit="fraction")
    return found.order


def mine(case: Case, setting: Setting, order: np.ndarray) -> ours.Ours:
    """Run and print ours."""
    found = fresh(ours.removals, case, setting, order)
    show(case.name, "ours_fit", value=found.fit, unit="s")
    show(case.name, "ours_match_rows_once", value=found.match, unit="s")
    show(case.name, "ours_covered", value=found.covered, unit="removals")
    for when, weights in (("before", found.before), ("after", found.after)):
        right = accuracy(case, weights, 0.0, seed=0, draws=1)
        show(case.name, f"ours_accuracy_{when}_noiseless", value=right, unit="fraction")
        right = accuracy(case, weights, case.sigma, seed=0, draws=DRAWS)
        show(case.name, f"ours_accuracy_{when}", value=right, unit=f"fraction, {DRAWS} draws")
    return found


def training(
    case: Case, setting: Setting, found: ours.Ours, order: np.ndarray, python: str
) -> None:
    """Print retraining by scikit-learn and statsmodels, and private training by diffprivlib."""
    name, each = case.name, float(np.median(found.released))
    keep = np.setdiff1d(np.arange(len(case.y)), order)
    target = residual(case, keep, found.after, setting.penalty(case))
    show(name, "ours_residual", value=target, unit="sum")
    for way in retrains(case, setting, int(order[0]), target):
        show(name, way.name, value=way.seconds, unit="s")
        show(name, f"{way.name}_residual", value=way.residual, unit="sum")
        show(name, f"{way.name}_over_ours", value=way.seconds / each, unit="times")
    data = {"X": case.X, "y": case.y, "X_test": case.X_test, "y_test": case.y_test}
    noised = private.train(python, data, setting.epsilon, setting.penalty(case), draws=20)
    if noised is not None:
        show(name, "diffprivlib_train", value=float(np.median(noised.seconds)), unit="s")
        right = float(noised.accuracy.mean())
        show(name, "diffprivlib_accuracy", value=right, unit="fraction, 20 draws")


def main() -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--certified-removal", type=Path, metavar="DIR", help="your checkout")
    parser.add_argument("--mnist", type=Path, metavar="DIR", help="folder of the MNIST IDX files")
    parser.add_argument(
        "--diffprivlib", metavar="PYTHON", default=sys.executable, help="an interpreter with it"
    )
    parser.add_argument("--quick", action="store_true", help="10 removals instead of 500")
    options = parser.parse_args()
    setting, missing = Setting(), reference.why_not(options.certified_removal)
    if missing:
        print(missing, file=sys.stderr)
    show("cores", value=os.cpu_count() or 1, unit="cores")
    for case in cases(options.mnist):
        show(case.name, "rows", value=len(case.y), unit="rows")
        show(case.name, "features", value=case.X.shape[1], unit="columns")
        count = min(10 if options.quick else 500, len(case.y) // 2)
        order = np.random.default_rng(0).permutation(len(case.y))[:count]
        if not missing:
            speed(case.name, rounds(options.certified_removal, case, setting))
            order = published(options.certified_removal, case, setting, count)
        found = mine(case, setting, order)
        training(case, setting, found, order, options.diffprivlib)


if __name__ == "__main__":
    main()
