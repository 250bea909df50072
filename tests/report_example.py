"""A small lineage with three deletions, and reports about it."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache

import numpy as np

from expunge.certificate.blocks import Issuer, Request
from expunge.certificate.checks import Check, Verdict
from expunge.certificate.policy import Policy
from expunge.certificate.statement import Certificate, ModelRelease
from expunge.guarantee import Tag, tolerance_for
from expunge.linear.lineage import Context, begin
from expunge.linear.rows import make_rows
from expunge.noise import OsEntropy
from expunge.report.facts import Accuracy, Control, Findings, Realised, Report, Timing

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


@cache
def statements(
    unit: str = "person", tag: str = "enforced", issuer: str = "Example Ltd"
) -> tuple[ModelRelease, tuple[Certificate, ...]]:
    """A training and three deletions, the last one a batch of two people."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((60, 3))
    y = np.where(X[:, 0] + rng.standard_normal(60) > 0, 1.0, -1.0)
    policy = Policy(
        loss="logistic",
        l2=1.0,
        fit_intercept=True,
        features=3,
        outputs=1,
        epsilon=1.0,
        delta=1e-6,
        releases=1000,
        sigma=0.01,
        tolerance=tolerance_for(0.01, 1.0, 1e-6, 1000),
        capacity=60,
        feature_map={},
        feature_map_tag=Tag(tag),
        classes=(False, True),
        unit=unit,  # type: ignore[arg-type]
    )
    ids = [str(k) for k in range(60)]
    rows = make_rows(X, y)
    lineage, first = begin(
        policy, rows, OsEntropy(), ids=ids, context=Context(Issuer(issuer), 0, NOW)
    )
    certificates, gone = [], []
    for people in ([0], [1], [2, 3]):
        gone += people
        asked = tuple(
            Request(f"{k:064x}", "gdpr", ("17(1)(b)",), NOW, None, NOW)  # type: ignore[arg-type]
            for k in people
        )
        step = lineage.prepare(
            rows.take(np.array(people)),
            OsEntropy(),
            ids=[ids[k] for k in people],
            retained=rows.without(np.array(gone)),
            context=Context(Issuer(issuer), 0, NOW, asked),
        )
        lineage.accept(step)
        certificates.append(step.published.statement)
    return first.published.statement, tuple(certificates)  # type: ignore[return-value]


def findings(mus: tuple[float, ...] = (1e-7, 1e-4, 0.002)) -> Findings:
    """What an auditor might find."""
    timings = [
        Timing("delete one person", 0.004, whole=False, retrain=False),
        Timing("delete 2 people", 0.05, whole=False, retrain=False),
        Timing("retrain, expunge", 0.03, whole=False, retrain=True),
        Timing("retrain, scikit-learn", 0.02, whole=False, retrain=True),
        Timing("delete one person", 0.1, whole=True, retrain=False),
        Timing("retrain, expunge", 1.2, whole=True, retrain=True),
    ]
    releases = [Realised(mu, idle=0.4, accuracy=0.7, retrained=0.71) for mu in mus]
    return Findings(releases, timings, Accuracy(0.72, 0.6, 0.01, 2000, 700), 3e-9)


def checks(**failed: str) -> tuple[Check, ...]:
    """All checks passed, but for those given with a reason."""
    names = ("signature", "budget", "model", "commitments", "evidence", "noise")
    return tuple(
        Check(name, Verdict.FAIL, failed[name]) if name in failed else Check(name, Verdict.PASS)
        for name in names
    )


def report(
    *,
    audited: bool = True,
    unit: str = "person",
    tag: str = "enforced",
    issuer: str = "Example Ltd",
    mus: tuple[float, ...] = (1e-7, 1e-4, 0.002),
    data: str = "The data.",
    found: tuple[Check, ...] | None = None,
) -> Report:
    """A report, with or without the auditor's part."""
    training, certificates = statements(unit, tag, issuer)
    lie = Control("Somebody lies.", "Nothing is deleted.", checks(evidence="not within tolerance"))
    return Report(
        data=data,
        model="The model.",
        training=training,
        certificates=certificates,
        checks=checks() if found is None else found,
        summary="signature and algebra are consistent; model and data not seen",
        repeat=[("All", "expunge verify clinic")],
        findings=findings(mus) if audited else None,
        control=lie if audited else None,
        note="The data are public." if audited else "",
    )
