"""The pages in a real browser: they fit a phone and a desktop, and ask the network for nothing."""

from __future__ import annotations

import functools
import http.server
import json
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

import certificate_example
import report_example
from expunge.certificate.render import page as certificate_page
from expunge.certificate.statement import Certificate
from expunge.report.page import page as report_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")

WIDTHS = (390, 1280)
HARNESS = """<!doctype html><meta charset="utf-8"><body><script>
const found = {}, widths = %s, pages = %s;
const all = pages.flatMap(page => widths.map(width => new Promise(done => {
  const frame = document.createElement("iframe");
  frame.style = `border:0;height:900px;width:${width}px`;
  frame.onload = () => {
    const inside = frame.contentDocument, root = inside.documentElement;
    const view = frame.contentWindow;
    const beyond = [...inside.querySelectorAll("body *")].filter(
      e => e.getBoundingClientRect().right > width + 0.5 && !e.closest(".scroll"));
    const small = [...inside.querySelectorAll("p, li, dd, dt, td, th, text, code")].map(
      e => parseFloat(view.getComputedStyle(e).fontSize) *
        (e.closest("svg") ? e.getScreenCTM().a : 1));
    found[`${page} ${width}`] = {
      width: root.scrollWidth, beyond: beyond.map(e => e.tagName), smallest: Math.min(...small),
      fetched: view.performance.getEntriesByType("resource").map(e => e.name),
    };
    done();
  };
  frame.src = page;
  document.body.append(frame);
})));
Promise.all(all).then(() => { document.title = "done";
  document.body.replaceChildren(JSON.stringify(found)); });
</script>"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    requested: list[str]

    def log_message(self, *arguments: object) -> None:
        self.requested.append(self.path)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the pages and the harness that measures them."""
    root = tmp_path_factory.mktemp("pages")
    long = "A data set with a name so long that it does not fit: " + "x" * 200
    report = report_example.report(data=long, issuer="An issuer with a rather long name, Ltd")
    certificate = Certificate.from_payload(certificate_example.payload(None))
    (root / "report.html").write_text(report_page(report), encoding="utf-8")
    (root / "certificate.html").write_text(
        certificate_page(certificate, certificate_example.envelope(None)), encoding="utf-8"
    )
    names = json.dumps(["report.html", "certificate.html"])
    (root / "harness.html").write_text(HARNESS % (list(WIDTHS), names), encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def measured(
    pages: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, dict[str, object]], list[str]]:
    """What the browser found, and the paths that it asked for."""
    requested: list[str] = []
    handler = type("Handler", (_Quiet,), {"requested": requested})
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(handler, directory=str(pages))
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = subprocess.run(
            [
                str(CHROMIUM),
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-background-networking",
                "--virtual-time-budget=10000",
                f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
                "--dump-dom",
                f"http://127.0.0.1:{server.server_port}/harness.html",
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        server.shutdown()
    found = re.search(r"<body>(\{.*\})</body>", done.stdout, re.DOTALL)
    assert found, done.stdout + done.stderr
    return json.loads(found[1]), requested


@pytest.mark.parametrize("page", ["report.html", "certificate.html"])
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_sticks_out(measured, page: str, width: int) -> None:  # type: ignore[no-untyped-def]
    found = measured[0][f"{page} {width}"]
    assert found["width"] <= width
    assert found["beyond"] == []


@pytest.mark.parametrize("width", WIDTHS)
def test_the_report_can_be_read(measured, width: int) -> None:  # type: ignore[no-untyped-def]
    assert measured[0][f"report.html {width}"]["smallest"] >= 9


def test_nothing_is_fetched(measured) -> None:  # type: ignore[no-untyped-def]
    found, requested = measured
    assert [it["fetched"] for it in found.values()] == [[]] * 4
    pages = ("/harness.html", "/report.html", "/certificate.html", "/favicon.ico")
    assert set(requested) <= set(pages)
