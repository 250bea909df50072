"""Certified heads and tangent models under long sequences of requests, against retraining.

``python -m experiments.deep_certified --out DIR [--cifar FILE] [--newsgroups FILE] [--fashion DIR]
[--requests 1000] [--rows N]``. Every request deletes one record and is certified. Compared are the
accuracy after the last request, of the published model and of the minimiser retrained on what is
left, without noise; and the seconds of a request with those of that retraining. Writes
``deep_certified.md``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from expunge.certificate.statement import Certificate
from expunge.datasets import Split, cifar10_features, fashion_mnist, newsgroups_features
from expunge.deep.descent import Recipe
from expunge.deep.head import CertifiedHead
from expunge.deep.jacobian import CHUNK
from expunge.deep.tangent import TangentModel
from expunge.deep.tangent_release import objective_of
from expunge.deep.training import train
from expunge.linear import engine
from expunge.linear.rows import Rows
from expunge.modelfile import predict_labels

EPSILON, DELTA = 1.0, 1e-6
FEW = 300
SIGMA = {
    ("cifar", "ridge"): 1e-4,
    ("cifar", "ovr"): 5e-3,
    ("newsgroups", "ridge"): 0.01,
    ("newsgroups", "ovr"): 0.03,
    ("fashion", "ridge"): 1e-3,
    ("fashion", "logistic"): 0.01,
}
"""Noise of a coefficient: small beside what features of that length make of it."""

Pair = tuple[torch.Tensor, torch.Tensor]
Model = CertifiedHead | TangentModel


@dataclass(frozen=True)
class Line:
    """One row of the table; times in seconds, accuracies in [0, 1]."""

    data: str
    model: str
    rows: int
    parameters: int
    grade: str
    epsilon: float
    requests: int
    accuracy: float
    retrained: float
    fit: float
    mean: float
    worst: float
    retrain: float
    distance: float
    tolerance: float

    def row(self) -> str:
        """Return the line as Markdown."""
        cells = [
            self.data,
            self.model,
            f"{self.rows:,}",
            f"{self.parameters:,}",
            f"{self.grade}, {self.epsilon:g}",
            f"{self.requests:,}",
            f"{100 * self.accuracy:.2f}",
            f"{100 * self.retrained:.2f}",
            f"{self.fit:.3g} s",
            f"{1e3 * self.mean:.3g} ms ({1e3 * self.worst:.3g})",
            f"{self.retrain:.3g} s",
            f"{self.retrain / self.mean:.3g}×",
            f"{self.distance:.1e} / {self.tolerance:.1e}",
        ]
        return "| " + " | ".join(cells) + " |"


COLUMNS = (
    "data",
    "model",
    "rows",
    "parameters",
    "grade, ε",
    "requests",
    "accuracy %",
    "retrained %",
    "fit",
    "one request, mean (worst)",
    "retraining",
    "faster",
    "relative distance / allowed",
)


def main() -> None:
    """Run what there are data for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cifar", type=Path)
    parser.add_argument("--newsgroups", type=Path)
    parser.add_argument("--fashion", type=Path)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=10**9, help="users' records at most")
    given = parser.parse_args()
    lines: list[Line] = []
    if given.cifar:
        lines += public("CIFAR-10, EfficientNet", cifar10_features(given.cifar), given, "cifar")
    if given.newsgroups:
        found = newsgroups_features(given.newsgroups)
        lines += public("newsgroups, MiniLM", found, given, "newsgroups")
    if given.fashion:
        lines += fashion(fashion_mnist(given.fashion), given)
    text = [
        f"ε = {EPSILON:g}, δ = {DELTA:g}, for all releases together; {torch.get_num_threads()} "
        "threads. Distance: of the minimiser before noise from the retrained one.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
        *(line.row() for line in lines),
        "",
    ]
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "deep_certified.md").write_text("\n".join(text))


def public(name: str, split: Split, given: argparse.Namespace, key: str) -> list[Line]:
    """Heads on features of a public backbone, which is the identity on what is stored of it."""
    x, y = tensors(split.X, split.y, given.rows)
    test = tensors(split.X_test, split.y_test, 10**9)
    found = []
    for model in ("ridge", "ovr"):
        head = CertifiedHead(
            nn.Identity(),
            model=model,
            releases=given.requests + 1,
            sigma=SIGMA[key, model],
            delta=DELTA,
        )
        found.append(run_head(name, f"{model} head", head, (x, y), test, given.requests))
    return found


def fashion(split: Split, given: argparse.Namespace) -> list[Line]:
    """One half is the core: it trains a network; the other half are users."""
    half = len(split.y) // 2
    torch.manual_seed(0)
    core = nn.Sequential(
        nn.Linear(784, 128), nn.LeakyReLU(), nn.Linear(128, 64), nn.LeakyReLU(), nn.Linear(64, 10)
    )
    pair = tensors(split.X[:half], split.y[:half], half)
    core = train(core, pair, Recipe(lr=1e-3, epochs=8, batch_size=128, weight_decay=1e-4))
    users = tensors(split.X[half:], split.y[half:], given.rows)
    test = tensors(split.X_test, split.y_test, 10**9)
    core_ids = [f"core {i}" for i in range(half)]
    claim = {"core_ids": core_ids, "releases": given.requests + 1, "delta": DELTA}
    backbone = core[:-1]
    found = [
        run_head("Fashion-MNIST, own core", f"{model} head", head, users, test, given.requests)
        for model in ("ridge", "logistic")
        for head in [CertifiedHead(backbone, model=model, sigma=SIGMA["fashion", model], **claim)]
    ]
    last = TangentModel(core, "4.*", **claim)
    found.append(
        run_tangent(
            "Fashion-MNIST, own core", "tangent, last layer", last, users, test, given.requests
        )
    )
    small = users[0][:FEW], users[1][:FEW]
    for method, requests in (("dual", 10), ("cg", 3)):
        full = TangentModel(core, method=method, sigma=0.01, **{**claim, "releases": 11})
        name = f"tangent, whole network ({method})"
        found.append(run_tangent("Fashion-MNIST, own core", name, full, small, test, requests))
    return found


def run_head(
    data: str, name: str, head: CertifiedHead, users: Pair, test: Pair, requests: int
) -> Line:
    """Fit, delete one record after another, and compare with retraining."""
    with TemporaryDirectory() as place:
        ids = [str(i) for i in range(len(users[1]))]
        fit = timed(lambda: head.fit(users, Path(place) / "features", ids=ids))
        times, last = asked(head, ids, requests)
        sealed, policy = head.sealed(), head.policy
        rows = Rows(
            sealed.rows.features,
            sealed.rows.target,
            sealed.rows.weight,
            policy.fit_intercept,
            np.linalg.norm(sealed.rows.features, axis=1) + policy.fit_intercept,
        )
        made: list[engine.State] = []
        seconds = timed(
            lambda: made.append(
                engine.fit(
                    rows,
                    loss=policy.loss,
                    l2=policy.l2,
                    tolerance=policy.tolerance,
                    classes=policy.classes is not None,
                )[0]
            )
        )
        W = made[0].weights
        released = head.released
        features = head.backbone(test[0]).flatten(1).double().detach().numpy()
        scores = features @ W[: features.shape[1]]
        if policy.fit_intercept:
            scores = scores + W[-1]
        retrained = float((scores.argmax(1) == test[1].numpy()).mean())
        accuracy = float((predict_labels(released, features) == test[1].numpy()).mean())
        distance = float(np.linalg.norm(sealed.weights - W) / np.linalg.norm(W))
        allowed = policy.tolerance / float(np.linalg.norm(W))
    return told(
        data,
        name,
        len(ids),
        policy.dimension,
        last.grade.value,
        EPSILON,
        requests,
        accuracy,
        retrained,
        fit,
        float(np.mean(times)),
        float(np.max(times)),
        seconds,
        distance,
        allowed,
    )


def run_tangent(
    data: str, name: str, model: TangentModel, users: Pair, test: Pair, requests: int
) -> Line:
    """Fit, delete one record after another, and compare with retraining."""
    ids = [str(i) for i in range(len(users[1]))]
    fit = timed(lambda: model.fit(users, ids=ids))
    times, last = asked(model, ids, requests)
    left = model.opened().data
    again = TangentModel(
        model.tangent.network.module,
        model.tangent.params,
        alpha=model.alpha,
        l2=model.l2,
        method=model.method,
        **model.claim,
    )
    seconds = timed(lambda: again.fit(left))
    v, w = model.minimiser[0], again.minimiser[0]
    truth = test[1].numpy()
    objective = objective_of(model.policy, model.tangent, test)
    scores = []
    for inputs, _ in objective.data.chunks(CHUNK):
        f, moved = model.tangent.forward(inputs, w)
        scores.append((f + moved).numpy())
    return told(
        data,
        name,
        len(ids),
        model.policy.dimension,
        last.grade.value,
        EPSILON,
        requests,
        float((model.predict(test) == truth).mean()),
        float((np.concatenate(scores).argmax(1) == truth).mean()),
        fit,
        float(np.mean(times)),
        float(np.max(times)),
        seconds,
        float((v - w).norm() / w.norm()),
        model.policy.tolerance / float(w.norm()),
    )


def told(*values: object) -> Line:
    """Return a line, shown as soon as it is known."""
    line = Line(*values)
    print(line.row(), flush=True)
    return line


def asked(model: Model, ids: list[str], requests: int) -> tuple[list[float], Certificate]:
    """Delete so many records, chosen at random; return the seconds of each, and the last answer."""
    order: NDArray[np.intp] = np.random.default_rng(0).permutation(len(ids))[:requests]
    times, answers = [], []
    for i in order.tolist():
        times.append(timed(lambda i=i: answers.append(model.unlearn([ids[i]]))))
        answers[:-1] = []
    return times, answers[-1]


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that something takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def tensors(X: NDArray[np.float64], y: NDArray[np.int64], most: int) -> Pair:
    """Return records as tensors, at most so many of them, in an order that means nothing."""
    order = np.random.default_rng(1).permutation(len(y))[:most]
    return torch.tensor(X[order], dtype=torch.float32), torch.tensor(y[order])


if __name__ == "__main__":
    main()
