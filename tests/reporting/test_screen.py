"""The terminal under a live view, and outputs that are none."""

from __future__ import annotations

import io
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from gnntrain.reporting.console import Console
from gnntrain.reporting.stream import restore_terminal
from tests.reporting.samples import INFO, SUMMARY, info, record_with_val, step
from tests.reporting.terminals import ESCAPES, HIDE, SHOW, Clock, final_lines

COLOURS = re.compile(r"\x1b\[(?:[0-9]+;)*(?:3[0-7]|9[0-7]|38;[0-9;]*)m")


def shown_live(width: int = 80) -> str:
    file = io.StringIO()
    with Console(file, width=width, live=True) as console:
        console.on_start(INFO)
        console.on_step(step())
        console.on_epoch(record_with_val(1, 0.5))
        console.on_message("a notice")
        console.on_finish(SUMMARY)
    return file.getvalue()


def test_a_notebook_has_one_output_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []
    updated: list[dict[str, str]] = []

    def display(bundle: dict[str, str], **_: object) -> object:
        shown.append(bundle)
        return SimpleNamespace(update=lambda bundle, **_: updated.append(bundle))

    kernel = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=True))
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    clock = Clock()
    with Console(clock=clock) as console:
        console.on_start(INFO)
        clock.now += 1
        console.on_step(step())
        assert "ETA" in updated[-1]["text/plain"]
        console.on_epoch(record_with_val(1, 0.5))
        console.on_finish(SUMMARY)
    assert len(shown) == 1
    assert "gnntrain" in updated[-1]["text/plain"]
    assert "completed" in updated[-1]["text/html"]
    assert "ETA" not in updated[-1]["text/plain"]


def test_a_terminal_is_restored_after_the_run() -> None:
    assert shown_live().count(HIDE) == shown_live().count(SHOW) == 1


def test_an_interruption_restores_the_terminal() -> None:
    file, stdout = io.StringIO(), sys.stdout

    def interrupted() -> None:
        with Console(file, width=80, live=True) as console:
            console.on_start(INFO)
            console.on_step(step())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert file.getvalue().count(HIDE) == file.getvalue().count(SHOW) == 1
    assert sys.stdout is stdout
    assert not [line for line in final_lines(file.getvalue()) if "ETA" in line]


def test_the_live_view_is_drawn_five_times_a_second_at_most() -> None:
    file, clock = io.StringIO(), Clock()
    with Console(file, width=80, live=True, clock=clock) as console:
        console.on_start(INFO)
        for number in range(1, 21):
            clock.now += 0.05
            console.on_step(step(step=number))
    assert 4 <= len(re.findall(r"step \d+/20", file.getvalue())) <= 7


def test_no_color_leaves_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    assert COLOURS.search(shown_live())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not COLOURS.search(shown_live())


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
@pytest.mark.parametrize("live", [True, False])
def test_an_output_without_unicode_gets_ascii(encoding: str, live: bool) -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    with Console(file, width=80, live=live) as console:
        console.on_start(INFO)
        console.on_step(step())
        for epoch, value in enumerate((0.5, 0.7), 1):
            console.on_epoch(record_with_val(epoch, value))
        console.on_finish(SUMMARY)
    file.flush()
    text = ESCAPES.sub("", raw.getvalue().decode(encoding))
    assert "_#  0.5000 -> 0.7000" in text
    assert "\\u" not in text


def test_paths_and_commands_stay_whole_on_40_columns() -> None:
    file, run = io.StringIO(), "runs/a-name-that-is-longer-than-the-line-has-room-for"
    with Console(file, width=40, live=True) as console:
        console.on_start(info(run_dir=run))
        console.on_finish(SUMMARY)
    lines = final_lines(file.getvalue())
    assert f"  next      gnntrain evaluate {run}" in lines
    assert f"  run       {run}" in lines
    assert all(len(line) <= 40 for line in lines if "/" not in line)


def test_a_log_has_no_escapes_and_no_live_view() -> None:
    code = (
        "import sys; from tests.reporting.test_screen import run_to_end; run_to_end(); "
        "sys.exit('rich.live' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert b"\x1b" not in done.stdout
    assert b"completed" in done.stdout


def run_to_end() -> None:
    with Console() as console:
        console.on_start(INFO)
        console.on_step(step())
        console.on_epoch(record_with_val(1, 0.5))
        console.on_finish(SUMMARY)


SCRIPT = textwrap.dedent(
    """
    import itertools, sys
    from gnntrain.reporting.console import Console
    from tests.reporting.samples import INFO, SUMMARY, record, step

    with Console() as console:
        console.on_start(INFO)
        for epoch in range(1, int(sys.argv[1]) + 1):
            console.on_step(step(epoch=epoch))
            console.on_epoch(record(epoch))
        for _ in itertools.count() if len(sys.argv) > 2 else ():
            console.on_step(step())
        console.on_finish(SUMMARY)
    """
)


def test_a_closed_pipe_does_not_end_the_run() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "2000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == ""


def test_ctrl_c_on_a_real_terminal_shows_the_cursor_again() -> None:
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "2", "forever"], stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    text = ""
    while "ETA" not in text:
        text += read_some(ours)
    process.send_signal(signal.SIGINT)
    while SHOW not in text:
        text += read_some(ours)
    assert HIDE in text
    assert process.wait(timeout=60) == -signal.SIGINT
    os.close(ours)


def read_some(descriptor: int) -> str:
    """Output of a pseudo-terminal; fails where none comes."""
    ready, _, _ = select.select([descriptor], [], [], 60)
    assert ready, "the terminal stayed silent"
    return os.read(descriptor, 65536).decode()


def test_a_terminal_is_restored_for_a_process_that_was_killed(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal, (tmp_path / "log").open("w+") as log:
        restore_terminal(terminal)
        restore_terminal(log)
        assert os.read(ours, 100).decode() == SHOW
        log.seek(0)
        assert log.read() == ""
    os.close(ours)
