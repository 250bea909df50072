"""Ten thousand deletions at the published setting: ``python -m bench.peers.published --mnist DIR``.

λ = 1e-3 (per record of the mean), ε = 1, δ = 1e-4. Ours gives one claim for every release of all
deletions together; accuracy is compared with a noiseless retrain at eleven points. Guo et al.'s
mechanism (ours of theirs, float64) gives the same claim for one release, and is run until its
budget is spent. Prints ``name<TAB>value<TAB>unit`` lines. Without ``--mnist``: Fashion-MNIST.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.convex import Case, fashion, show
from bench.lifetime import Life, accuracy, live
from bench.peers.setting import SIGMA, Setting, mnist
from expunge.errors import BudgetExhausted
from expunge.guarantee import epsilon_of
from expunge.linear import guo
from expunge.linear.rows import make_rows
from expunge.noise import Seeded


def life_of(case: Case, setting: Setting, count: int) -> Life:
    """Delete ``count`` rows one by one under the setting's claim, audited at ten points."""
    return live(
        case,
        count,
        10,
        case.sigma,
        C=1.0 / setting.penalty(case),
        fit_intercept=False,
        epsilon=setting.epsilon,
        delta=setting.delta,
    )


def guo_models(case: Case, setting: Setting, draws: int) -> tuple[float, float]:
    """Return mean and standard deviation of the accuracy of ``draws`` models, each with its b."""
    rows = _rows(case)
    found = [guo.train(rows, setting.mechanism(), Seeded(s)).weights for s in range(draws)]
    right = [accuracy(case, weights, 0.0, seed=0, draws=1) for weights in found]
    return float(np.mean(right)), float(np.std(right))


def guo_supported(case: Case, setting: Setting, most: int) -> int:
    """Delete up to ``most`` rows until the budget would be exceeded; return how many."""
    rows, source = _rows(case), Seeded(0)
    state = guo.train(rows, setting.mechanism(max_retrains=0), source)
    for done, i in enumerate(np.random.default_rng(0).permutation(len(case.y))[:most]):
        row = rows.take(np.array([i]))
        rows.drop(np.array([i]))
        try:
            state = guo.remove(state, row, rows, source)
        except BudgetExhausted:
            return done
    return most


def _rows(case: Case) -> guo.Rows:
    return make_rows(case.X, 2.0 * case.y - 1.0, intercept=False)


def tell(case: Case, setting: Setting, life: Life) -> None:
    """Print our life of deletions."""
    name = case.name
    show(name, "rows", value=len(case.y), unit="rows")
    show(name, "deletions", value=life.releases - 1, unit="deletions")
    show(name, "each", value=life.seconds / (life.releases - 1), unit="s")
    for path, times in life.paths.items():
        show(name, f"path_{path}", value=times, unit="deletions")
    for stop in life.stops:
        at = f"after_{stop.deleted}"
        show(name, at, "accuracy", value=stop.accuracy, unit="fraction, 1000 draws")
        show(name, at, "accuracy_optimum", value=stop.accuracy_optimum, unit="fraction")
        lost = 100 * (stop.accuracy_optimum - stop.accuracy)
        show(name, at, "lost", value=lost, unit="points")
    worst = max(100 * (stop.accuracy_optimum - stop.accuracy) for stop in life.stops)
    show(name, "lost_worst", value=worst, unit="points")
    total = epsilon_of(life.mu_per_release * life.releases**0.5, setting.delta)
    show(name, "epsilon_certified", value=total, unit="epsilon, all releases")
    show(name, "mu_certified", value=life.mu_per_release, unit="mu, one release")
    show(name, "mu_realised_worst", value=life.worst_mu, unit="mu, one release")


def main() -> None:
    """Run it and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mnist", type=Path, metavar="DIR", help="folder of the MNIST IDX files")
    parser.add_argument("--quick", action="store_true", help="200 deletions, Guo et al. 10")
    options = parser.parse_args()
    case = mnist(options.mnist) if options.mnist else replace(fashion(), sigma=SIGMA)
    setting = Setting()
    life = life_of(case, setting, 200 if options.quick else setting.releases - 1)
    tell(case, setting, life)
    mean, spread = guo_models(case, setting, 2 if options.quick else 20)
    show(case.name, "guo_accuracy", value=mean, unit="fraction, mean over b")
    show(case.name, "guo_accuracy_spread", value=spread, unit="fraction, sd over b")
    lost = 100 * (life.stops[0].accuracy_optimum - mean)
    show(case.name, "guo_lost", value=lost, unit="points")
    most = 10 if options.quick else len(case.y) // 2
    show(case.name, "guo_supported", value=guo_supported(case, setting, most), unit="removals")


if __name__ == "__main__":
    main()
