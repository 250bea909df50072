"""The suite on exact retraining, on doing nothing, and on mistakes that it has to see."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from audit_beds import Linear, Noisy, draw
from expunge.audit import attacks, suite
from expunge.audit.parts import Data, joined
from expunge.audit.setting import Pipeline
from expunge.audit.shadows import Runner
from expunge.audit.suite import run
from expunge.errors import InvalidInput

CHEAP = ("utility", "agreement", "loss", "rmia")


class Bed:
    """A small problem on which doing nothing is easy to see."""

    def __init__(self, seed=1, sigma=0.1, d=60, unseen=400):
        rng = np.random.default_rng(seed)
        self.models = Noisy(l2=0.05, sigma=sigma)
        sizes = (40, 120, unseen, 200)
        self.data = Data(*(draw(rng, n, d) for n in sizes))
        self.oracles = [self.retrained(k) for k in range(5)]
        self.original = self.models.train(joined(self.data.forget, self.data.retain), 77)

    def retrained(self, seed):
        return self.models.train(self.data.retain, seed)

    def references(self, count=4):
        return [self.retrained(1000 + k) for k in range(count)]


@pytest.fixture(scope="module")
def bed():
    return Bed()


def audit(bed, candidate, **more):
    return run(candidate, bed.oracles, bed.data, original=bed.original, **more)


def test_everything_is_measured(bed, tmp_path):
    """An exact retrain: consistent, and every family that needs no network runs."""
    told = []
    report = audit(
        bed,
        bed.retrained(99),
        pipeline=bed.models.exact(),
        references=bed.references(16),
        untrained=[lambda X: np.zeros((len(X), 2))],
        runs=16,
        claim=["loss-auc", "kl[S]"],
        runner=Runner(tmp_path, progress=told.append),
    )
    assert report.verdict == "CONSISTENT"
    assert set(report.skipped) == {"relearn"}
    assert not report.utility_lost
    names = {metric.name for metric in report.metrics}
    assert len(names) == len(report.metrics)
    assert {"accuracy[S]", "macro-f1[T]", "accuracy-gap[R]", "tow", "disagreement[S]"} <= names
    assert {"kl[T]", "loss-auc", "loss-test", "svc-efficacy[confidence]", "rmia-auc[S]"} <= names
    assert {"rmia-auc[R]", "lira-auc[S]", "zrf", "klom[S]", "klom-quantile-95[T]"} <= names
    assert {"ulira", "ulira-worst", "ruli-efficacy", "challenge", "confusion[T]", "poison"} <= names
    for metric in report.metrics:
        assert metric.reading
        assert metric.seconds >= 0
        assert metric.runs > 0
        assert metric.ci is None or metric.ci[0] <= metric.value + 1e-12
        assert metric.ci is None or metric.value <= metric.ci[1] + 1e-12 or "worst" in metric.name
    assert len(report.flagged) <= binom.ppf(0.999, len(names), 0.15)
    back = json.loads(report.to_json())
    assert back["verdict"] == "CONSISTENT"
    assert {m["name"] for m in back["metrics"]} == names
    assert back["sizes"] == {"S": 40, "R": 120, "T": 400, "Z": 200}
    assert any("retrained: run 32 of 32" in line for line in told)
    kept = len(told)
    audit(
        bed, bed.retrained(99), pipeline=bed.models.exact(), runs=16,
        metrics=["klom"], runner=Runner(tmp_path, progress=told.append),
    )  # fmt: skip
    assert any("16 of 16 runs were kept" in line for line in told[kept:])


def test_doing_nothing_is_flagged(bed):
    report = audit(
        bed, bed.original, pipeline=bed.models.noop(), references=bed.references(), runs=24,
        claim=["loss-auc"],
    )  # fmt: skip
    assert report.verdict == "FALSIFIED"
    for name in (
        "loss-auc",
        "kl[S]",
        "disagreement[S]",
        "rmia-auc[S]",
        "klom[S]",
        "ulira",
        "ruli-efficacy",
        "challenge-one",
        "confusion[S]",
    ):
        assert report[name].in_band is False, name
        assert report[name].no_power is False, name
    assert report["loss-auc"].value > report["loss-auc"].band[1]


def test_over_unlearning_is_flagged_too(bed):
    """A model that is wrong on S on purpose leaks S as well: its area is far below one half."""
    S = bed.data.forget
    wrong = bed.models.train(joined(S.labelled(1 - S.y), bed.data.retain), 3)
    report = audit(bed, wrong, metrics=["loss"], claim=["loss-auc"])
    assert report["loss-auc"].value < report["loss-auc"].band[0]
    assert report["loss-test"].flagged
    assert report.verdict == "FALSIFIED"


def test_forget_against_retain_is_voided_by_the_oracles(bed):
    """Perfect retrains differ there, so nothing may be concluded."""
    setting = suite._setting(bed.data, bed.retrained(99), bed.oracles, bed.original)
    wrong = {m.name: m for m in attacks.loss_attack(setting, against="R")}
    right = {m.name: m for m in attacks.loss_attack(setting)}
    test = wrong["loss-test[S-vs-R]"]
    assert test.in_band is False
    assert test.gate.failures == 5
    assert test.status == "void"
    assert not test.flagged
    assert right["loss-test"].status == "ok"


def test_a_constant_model_is_greyed(bed):
    """It leaks nothing, and it is good for nothing."""
    report = audit(bed, Linear(np.zeros(60)), references=bed.references(), metrics=CHEAP)
    assert report.utility_lost
    assert report["loss-auc"].value == 0.5
    assert report["loss-auc"].status == "greyed"
    assert report["accuracy[R]"].status == "ok"
    greyed = replace(report["loss-auc"], in_band=True)
    assert suite._verdict([greyed]) is None
    assert suite._verdict([replace(greyed, greyed=False)]) == "CONSISTENT"
    assert suite._verdict([replace(greyed, in_band=False)]) == "FALSIFIED"
    assert suite._verdict([replace(greyed, in_band=False, cannot="no")]) is None


def test_easy_rows_give_no_power():
    """S of which nothing was memorised: the original is not flagged, and that is said."""
    bed = Bed(sigma=0.5, d=2)
    report = audit(bed, bed.retrained(9), metrics=["loss"])
    assert report["loss-auc"].no_power


def test_rows_of_users_are_drawn_together(bed):
    S, R, T = bed.data.forget, bed.data.retain, bed.data.unseen
    owned = [(p.X, p.y, np.arange(len(p)) // 20) for p in (S, R, T)]
    alone = run(bed.original, bed.oracles, (S, R, T), metrics=["loss", "utility"])
    grouped = run(bed.original, bed.oracles, owned, metrics=["loss", "utility"])
    assert grouped["loss-auc"].value == alone["loss-auc"].value
    assert grouped["loss-auc"].ci != alone["loss-auc"].ci
    assert grouped["accuracy[T]"].ci != alone["accuracy[T]"].ci


def test_third_party_callables(bed):
    """Nothing but a function; logits and probabilities give the same report."""

    def shares(model):
        return lambda X: np.column_stack([1 / (1 + np.exp(X @ model.coef_[0])),
                                          1 / (1 + np.exp(-X @ model.coef_[0]))])  # fmt: skip

    plain = run(bed.original, bed.oracles, bed.data, metrics=["agreement", "loss"])
    wrapped = run(
        shares(bed.original), [shares(o) for o in bed.oracles], bed.data,
        metrics=["agreement", "loss"],
    )  # fmt: skip
    for one, other in zip(plain.metrics, wrapped.metrics, strict=True):
        assert one.value == pytest.approx(other.value, rel=1e-9)


def test_networks_relearn():
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    parts = []
    for n in (24, 48, 64):
        X = rng.normal(size=(n, 8)).astype(np.float32)
        parts.append((torch.as_tensor(X), rng.integers(3, size=n)))
    S, R, T = parts

    def train(rows, seed):
        torch.manual_seed(seed)
        net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
        optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
        X, y = (torch.cat([torch.as_tensor(p[k]) for p in rows]) for k in (0, 1))
        for _ in range(30):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(net(X), y).backward()
            optimiser.step()
        return net

    original = train([S, R], 0)
    oracles = [train([R], k + 1) for k in range(5)]
    before = [p.detach().clone() for p in original.parameters()]
    report = run(original, oracles, (S, R, T), original=original, metrics=["relearn", "loss"])
    assert report["relearn"].value == 0.0
    assert report["relearn"].in_band is False
    assert all(torch.equal(a, b) for a, b in zip(before, original.parameters(), strict=True))
    assert report["loss-auc"].flagged
    made = Pipeline(
        lambda p, seed: train([(p.X, p.y)], seed), lambda model, forget, retain, seed: model
    )
    report = run(original, oracles, (S, R, T), original=original, pipeline=made,
                 metrics=["confusion"])  # fmt: skip
    assert report["confusion[S]"].flagged
    with pytest.raises(InvalidInput, match="torch modules"):
        run(lambda X: X[:, :3], oracles, (S, R, T), original=original, metrics=["relearn"])


def test_bad_input_is_refused(bed):
    good = (bed.original, bed.oracles, bed.data)
    for arguments, more, word in (
        ((bed.original, bed.oracles[:4], bed.data), {}, "at least 5 retrained"),
        (good, {"metrics": ["magic"]}, "unknown families"),
        (good, {"metrics": "loss"}, "unknown families"),
        (good, {"metrics": ["loss"], "claim": ["kl[S]"]}, "was not measured"),
        (good, {"metrics": ["klom"]}, "a pipeline"),
        (good, {"metrics": ["rmia"]}, "references"),
        (good, {"metrics": ["zrf"]}, "untrained"),
        (good, {"metrics": ["klom"], "pipeline": bed.models.exact(), "runs": 4}, "at least 16"),
        (good, {"alpha": 2.0}, "alpha"),
        (good, {"claim": ["tow", "tow"]}, "once"),
        ((3, bed.oracles, bed.data), {}, "no model"),
        ((lambda X: np.zeros((3, 2)), bed.oracles, bed.data), {}, "one label"),
        ((lambda X: np.zeros((len(X), 3)), bed.oracles, bed.data), {}, "same rows and classes"),
    ):
        with pytest.raises(InvalidInput, match=word):
            run(*arguments, **more)
    with pytest.raises(KeyError, match="no metric"):
        run(*good, metrics=["loss"])["klom"]


def test_levels_are_shared_by_the_claim(bed):
    one = run(bed.original, bed.oracles, bed.data, metrics=["loss"], claim=["loss-auc"])
    two = run(
        bed.original, bed.oracles, bed.data, metrics=["loss", "agreement"],
        claim=["loss-auc", "kl[S]", "kl[T]"],
    )  # fmt: skip
    assert two["loss-auc"].band[1] > one["loss-auc"].band[1]
