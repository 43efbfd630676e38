"""The page as a person sees it: opened in a headless browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gnntrain.report.writing import write_report
from tests.report.samples import records_of, write_run

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no chromium (apt-get install chromium)"),
]


def open_page(page: Path, folder: Path, *options: str) -> tuple[str, str, list[str]]:
    """The document as it is once drawn, what the console says, and the addresses asked for."""
    assert BROWSER is not None
    log = folder / "net.json"
    done = subprocess.run(
        [
            *(BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update"),
            *("--disable-extensions", f"--user-data-dir={folder / 'profile'}"),
            *("--enable-logging=stderr", f"--log-net-log={log}", "--virtual-time-budget=10000"),
            *(*options, page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    console = "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    # What the page asks for is booked under its own address; the browser's own errands are not.
    asked = re.findall(r'"network_isolation_key":"file:[^\n]*?"url":"([^"]*)"', log.read_text())
    return done.stdout, console, asked


def test_a_request_would_be_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<img src="http://nowhere.invalid/x.png"><script>nonsense()</script>')
    _, console, asked = open_page(page, tmp_path)
    assert "http://nowhere.invalid/x.png" in asked
    assert "nonsense is not defined" in console


def test_the_page_has_no_error_and_needs_no_network(tmp_path: Path) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    error = "</script><script>document.title='taken'</script>"
    runs = [
        write_run(tmp_path / hostile, records_of(0.5, 0.7, 0.6), {"error": error}, lr=0.1),
        write_run(tmp_path / "other", records_of(0.6, 0.5, 0.8), {}, lr=0.2),
    ]
    for number, chosen in enumerate((runs[:1], runs)):
        page = write_report(chosen, tmp_path / f"page{number}.html")
        document, console, asked = open_page(page, tmp_path, "--dump-dom")
        assert console == ""
        assert [address for address in asked if address.startswith("http")] == []
        assert "taken" not in re.findall("<title>(.*?)</title>", document)[0]


def test_the_mouse_shows_the_values_of_an_epoch(tmp_path: Path) -> None:
    page = write_report([write_run(tmp_path / "run", records_of(0.5, 0.7, 0.6), {})])
    move = """<script>
        const svg = document.querySelector("svg"), box = svg.getBoundingClientRect();
        const middle = { clientX: box.left + box.width / 2, clientY: box.top + 50 };
        svg.dispatchEvent(new PointerEvent("pointermove", middle));
    </script></body>"""
    text = re.sub("<meta http-equiv[^>]*>", "", page.read_text())  # it forbids this script
    page.write_text(text.replace("</body>", move))
    document, console, _ = open_page(page, tmp_path, "--dump-dom")
    assert console == ""
    (tip,) = re.findall('<div class="tip"[^>]*>([^<]*)</div>', document)
    assert tip.splitlines() == ["epoch 2: val 0.7000", "epoch 2: test 0.3500"]
