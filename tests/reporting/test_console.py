from __future__ import annotations

import io
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gnntrain import __version__
from gnntrain.reporting.console import Console, restore_terminal
from gnntrain.reporting.ranklog import forward_warnings
from gnntrain.training.records import Summary
from tests.reporting.samples import (
    INFO,
    RECORD,
    SUMMARY,
    info,
    record,
    record_with_val,
    step,
    summary,
)

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"

START = f"""\
gnntrain {__version__}

  dataset   synthetic
  graph     10,000 nodes · 120,345 edges · 64 features · 8 classes
  store     opened (12 ms)
            stores/synthetic-1234567890ab
  model     sage · 84,232 parameters
  sampler   neighbor [25, 10] (numba)
  training  3 epochs · 20 steps an epoch · 1,024 seeds a step · seed 0
  device    2 CPU ranks (gloo)
  run       runs/demo

"""
END = """\

completed after 3 of 3 epochs, the best was epoch 2

            accuracy
  train       0.7200
  val         0.7000
  test        0.6900

  accuracy  ▁█▅  0.5000 → 0.6000
  loss      █▄▁  1.9375 → 1.2500
  speed     12.3k seeds/s · 1.21M edges/s
  time      3.21 s · 600 ms an epoch
  memory    2.00 GiB peak
  run       runs/demo
  next      gnntrain evaluate runs/demo
"""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def _no_colours_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def play(console: Console, end: Summary = SUMMARY) -> None:
    with console:
        console.on_start(INFO)
        for epoch, value in enumerate([0.5, 0.7, 0.6], 1):
            console.on_step(step(epoch=epoch))
            console.on_epoch(record_with_val(epoch, value))
        console.on_finish(end)


def shown_plain(end: Summary = SUMMARY) -> str:
    file = io.StringIO()
    play(Console(file), end)
    return file.getvalue()


def shown_live(width: int) -> str:
    file = io.StringIO()
    play(Console(file, width=width, live=True))
    return file.getvalue()


def what_stays(text: str) -> list[str]:
    """The lines that a terminal shows in the end, for output that erases whole lines only."""
    lines, at = [""], 0
    for part in re.split(r"(\x1b\[[0-9;?]*[A-Za-z]|\r|\n)", text):
        if part == "\n":
            at += 1
            lines += [""] * (at + 1 - len(lines))
        elif part == "\x1b[1A":
            at -= 1
        elif part == "\x1b[2K":
            lines[at] = ""
        elif not ESCAPES.fullmatch(part):
            lines[at] += part.replace("\r", "")
    return [line.rstrip() for line in lines]


def test_a_log_has_a_start_a_line_an_epoch_and_an_end() -> None:
    tail = "  lr 0.001  time 600 ms  eval 200 ms  seeds/s 12.3k  edges/s 1.21M  memory 1.50 GiB\n"
    assert shown_plain() == (
        START
        + f"epoch 1/3  loss 1.9375  val accuracy 0.5000 *{tail}"
        + f"epoch 2/3  loss 1.9375  val accuracy 0.7000 *{tail}"
        + f"epoch 3/3  loss 1.9375  val accuracy 0.6000{tail}"
        + END
    )


def test_a_terminal_of_80_columns_keeps_a_table_and_nothing_of_the_live_view() -> None:
    table = [
        "epoch     loss  val accuracy      time      eval  seeds/s  edges/s    memory",
        "  1/3   1.9375      0.5000 *    600 ms    200 ms    12.3k    1.21M  1.50 GiB",
        "  2/3   1.9375      0.7000 *    600 ms    200 ms    12.3k    1.21M  1.50 GiB",
        "  3/3   1.9375      0.6000      600 ms    200 ms    12.3k    1.21M  1.50 GiB",
    ]
    expected = [*START.splitlines(), *table, *END.splitlines(), ""]
    assert what_stays(shown_live(80)) == expected


@pytest.mark.parametrize("width", [80, 160])
def test_the_live_view_keeps_to_the_width(width: int) -> None:
    lines = [ESCAPES.sub("", line) for line in re.split(r"[\r\n]", shown_live(width))]
    assert max(map(len, lines)) <= width
    assert any("━" in line and "step 10/20  ETA" in line for line in lines)
    assert any(line.startswith("loss 2.0000") and "1.21M edges/s" in line for line in lines)


def test_on_40_columns_words_stay_whole_and_so_does_what_is_to_be_copied() -> None:
    file = io.StringIO()
    with Console(file, width=40, live=True) as console:
        console.on_start(info(run_dir="runs/a-name-that-is-longer-than-the-line-has-room-for"))
        for epoch, value in enumerate([0.5, 0.7], 1):
            console.on_epoch(record_with_val(epoch, value))
        console.on_finish(SUMMARY)
    lines = what_stays(file.getvalue())
    assert "  graph     10,000 nodes · 120,345 edges" in lines
    assert "            · 64 features · 8 classes" in lines
    assert "epoch     loss  val accuracy    memory" in lines
    assert "completed after 3 of 3 epochs, the best" in lines
    command = "gnntrain evaluate runs/a-name-that-is-longer-than-the-line-has-room-for"
    assert f"  next      {command}" in lines


def test_the_live_view_shows_the_course_of_the_metric() -> None:
    lines = [ESCAPES.sub("", line) for line in re.split(r"[\r\n]", shown_live(80))]
    assert "▁█▅  best 0.7000 in epoch 2" in lines


def test_160_columns_show_more_than_80() -> None:
    assert "lr" in ESCAPES.sub("", shown_live(160)).split()
    assert "lr" not in ESCAPES.sub("", shown_live(80)).split()


def test_a_terminal_is_given_back_after_the_run() -> None:
    text = shown_live(80)
    assert text.count(HIDE) == text.count(SHOW) == 1


def test_an_interruption_gives_the_terminal_back() -> None:
    file = io.StringIO()

    def interrupted() -> None:
        with Console(file, width=80, live=True) as console:
            console.on_start(INFO)
            console.on_step(step())
            raise KeyboardInterrupt

    stdout = sys.stdout
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert file.getvalue().count(HIDE) == file.getvalue().count(SHOW) == 1
    assert sys.stdout is stdout
    assert not [line for line in what_stays(file.getvalue()) if "ETA" in line]


def test_the_live_view_is_drawn_ten_times_a_second_at_most() -> None:
    file, clock = io.StringIO(), Clock()
    with Console(file, width=80, live=True, clock=clock) as console:
        console.on_start(INFO)
        for number in range(1, 21):
            clock.now += 0.01
            console.on_step(step(step=number))
    drawn = len(re.findall(r"step \d+/20", file.getvalue()))
    assert drawn <= 4


def test_a_log_gets_a_line_a_minute_from_inside_a_long_epoch() -> None:
    file, clock = io.StringIO(), Clock()
    with Console(file, clock=clock) as console:
        console.on_start(INFO)
        for number in range(1, 21):
            clock.now += 7
            console.on_step(step(step=number))
    lines = [line for line in file.getvalue().splitlines() if "step" in line and "ETA" in line]
    assert [line.split("  ")[1] for line in lines] == ["step 9/20", "step 18/20"]
    assert lines[0].endswith("loss 2.0000  12.3k seeds/s  1.21M edges/s  1.50 GiB")


def test_a_long_run_keeps_some_of_its_lines_on_a_terminal_and_all_in_a_log() -> None:
    kept = {}
    for live in (True, False):
        file = io.StringIO()
        with Console(file, width=80, live=live) as console:
            console.on_start(info(epochs=200))
            for epoch in range(1, 193):
                console.on_epoch(record(epoch))
            console.on_finish(SUMMARY)
        lines = "\n".join(what_stays(file.getvalue()))
        kept[live] = [int(number) for number in re.findall(r"(\d+)/200 ", lines)]
    assert kept[True] == [1, *range(5, 191, 5), 192]
    assert kept[False] == list(range(1, 193))


def test_a_notice_is_one_line_as_it_was_written() -> None:
    file = io.StringIO()
    with Console(file) as console:
        console.on_message("fan-outs [25, 10]\n :smile: [red]x[/red] " + "long " * 40)
    assert file.getvalue().count("\n") == 1
    assert file.getvalue().startswith("note  fan-outs [25, 10] :smile: [red]x[/red] long")


@pytest.fixture
def _every_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        yield


@pytest.mark.usefixtures("_every_warning")
def test_a_warning_becomes_a_notice() -> None:
    file = io.StringIO()
    with Console(file) as console, closing(forward_warnings(console)):
        warnings.warn("old\nname", FutureWarning, stacklevel=1)
    assert file.getvalue() == "note  FutureWarning: old name\n"


def test_no_color_leaves_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    colours = re.compile(r"\x1b\[(?:[0-9]+;)*(?:3[0-7]|9[0-7]|38;[0-9;]*)m")
    assert colours.search(shown_live(80))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colours.search(shown_live(80))


def test_a_log_has_no_escapes() -> None:
    assert "\x1b" not in shown_plain()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("live", [True, False])
def test_an_output_without_unicode_gets_ascii(encoding: str, live: bool) -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    console = Console(file, width=80, live=live)
    console.on_message("naïve → ▁")
    play(console)
    file.flush()
    text = ESCAPES.sub("", raw.getvalue().decode(encoding))
    assert "accuracy  _#=  0.5000 -> 0.6000" in text
    assert "10,000 nodes | 120,345 edges" in text
    assert "\\u2581" in text


def test_a_run_that_failed_says_why_and_offers_nothing_to_evaluate() -> None:
    end = summary(
        status="failed", error="out of\nmemory", epochs=0, best_epoch=None, train={}, val={}
    )
    file = io.StringIO()
    with Console(file) as console:
        console.on_start(INFO)
        console.on_finish(Summary(**{**vars(end), "test": {}, "train_loss": []}))
    assert "failed after 0 of 3 epochs: out of memory\n" in file.getvalue()
    assert "next" not in file.getvalue()
    assert "run       runs/demo" in file.getvalue()


def test_a_run_that_ends_before_it_began_is_shown_too() -> None:
    file = io.StringIO()
    with Console(file) as console:
        console.on_step(step())
        console.on_epoch(RECORD)
        console.on_finish(summary(status="interrupted", error=None))
    assert "interrupted after 3 of 3 epochs" in file.getvalue()
    assert "gnntrain evaluate" not in file.getvalue()  # the command itself says how to go on


def test_losses_that_are_not_finite_are_shown() -> None:
    file = io.StringIO()
    with Console(file, width=80, live=True) as console:
        console.on_start(INFO)
        console.on_step(step(loss=float("nan"), seeds_per_s=float("inf")))
        console.on_epoch(record(1, train_loss=float("nan"), edges_per_s=float("nan")))
        console.on_finish(summary(train_loss=[float("nan"), float("inf")]))
    assert "nan" in file.getvalue()


def test_a_metric_that_is_never_defined_has_no_course() -> None:
    file = io.StringIO()
    with Console(file) as console:
        console.on_start(INFO)
        for epoch in (1, 2):
            console.on_epoch(record(epoch, metrics={"val": {"accuracy": float("nan")}}))
        console.on_finish(summary())
    end = file.getvalue().partition("completed")[2]
    assert re.search("^  loss ", end, re.MULTILINE)
    assert not re.search("^  accuracy ", end, re.MULTILINE)


def test_the_next_command_survives_a_path_with_spaces() -> None:
    file = io.StringIO()
    with Console(file) as console:
        console.on_start(info(run_dir="my runs/a"))
        console.on_finish(SUMMARY)
    assert "gnntrain evaluate 'my runs/a'\n" in file.getvalue()


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
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "2000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
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
    """What a pseudo-terminal has to read; fails where nothing comes."""
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
