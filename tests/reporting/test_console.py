"""A run on a terminal and in a log."""

from __future__ import annotations

import io
import os
import re
import select
import signal
import subprocess
import sys
import textwrap

import pytest

from gnntrain.reporting.console import Console
from gnntrain.reporting.tables import restore_terminal
from gnntrain.training.records import Summary
from tests.processes import started
from tests.reporting.samples import INFO, SUMMARY, info, record, record_with_val, step, summary
from tests.reporting.terminals import HIDE, SHOW, Clock, Terminal, drawn_lines, final_lines, golden

COLOURS = re.compile(r"\x1b\[(?:[0-9]+;)*(?:3[0-7]|9[0-7]|38;[0-9;]*)m")


def shown_live(width: int = 80, end: Summary = SUMMARY) -> str:
    file, clock = Terminal(width), Clock()
    with Console(file, clock) as console:
        console.on_start(INFO)
        for epoch, value in enumerate([0.5, 0.7, 0.6], 1):
            clock.now += 1
            console.on_step(step(epoch=epoch))
            clock.now += 1
            console.on_epoch(record_with_val(epoch, value))
        console.on_finish(end)
    return file.getvalue()


def logged(end: Summary, *epochs: int, **changes: object) -> str:
    file = io.StringIO()
    with Console(file) as console:
        console.on_start(info(**changes))
        for epoch in epochs:
            console.on_epoch(record_with_val(epoch, epoch / 10))
        console.on_finish(end)
    return file.getvalue()


def test_a_run_leaves_a_table_on_a_terminal_of_80_columns() -> None:
    assert final_lines(shown_live())[2:-1] == golden("run")[2:]


def test_a_resumed_run_that_fails_leaves_plain_lines_in_a_log() -> None:
    end = summary(status="failed", error="The loss is\nnan in epoch 4.", epochs=3, best_epoch=3)
    before = [record_with_val(epoch, epoch / 10) for epoch in (1, 2)]
    assert logged(end, 3, epochs=4, records=before).splitlines()[2:] == golden("failed_run")[2:]


def test_the_bar_keeps_to_the_width() -> None:
    lines = [line for line in drawn_lines(shown_live(60)) if re.match("epoch|loss", line)]
    assert max(map(len, lines)) <= 60
    assert any("━" in line and "step 10/20 ETA" in line for line in lines)
    assert any(line.startswith("loss 1.9375  12.3k seeds/s  1.21M edges/s") for line in lines)


def test_a_log_gets_a_line_a_minute_from_inside_a_long_epoch() -> None:
    file, clock = io.StringIO(), Clock()
    with Console(file, clock) as console:
        console.on_start(INFO)
        for number in range(1, 21):
            clock.now += 7
            console.on_step(step(step=number))
    found = re.findall(r"step (\d+)/20  ETA .*  loss 2.0000 .* edges/s", file.getvalue())
    assert found == ["9", "18"]


def test_a_long_run_keeps_some_of_its_rows_on_a_terminal_and_all_in_a_log() -> None:
    kept = {}
    for live in (True, False):
        file = Terminal() if live else io.StringIO()
        with Console(file) as console:
            console.on_start(info(epochs=500))
            for epoch in range(1, 193):
                console.on_epoch(record(epoch))
            console.on_finish(SUMMARY)
        lines = "\n".join(final_lines(file.getvalue()))
        kept[live] = [int(number) for number in re.findall(r"(\d+)/500 ", lines)]
    assert kept[True] == [1, *range(5, 191, 5)]
    assert kept[False] == list(range(1, 193))


def test_a_notice_is_one_line_as_it_was_written() -> None:
    file = io.StringIO()
    with Console(file) as console:
        console.on_message("fan-outs [25, 10]\n :smile: [red]x[/red] " + "long " * 40)
    assert file.getvalue().count("\n") == 1
    assert "[25, 10] :smile: [red]x[/red] long" in file.getvalue()


def test_numbers_that_are_not_finite_are_shown() -> None:
    file, nan = Terminal(), float("nan")
    with Console(file) as console:
        console.on_start(INFO)
        console.on_step(step(loss=nan, seeds_per_s=float("inf")))
        for epoch in (1, 2):
            undefined = {"val": {"accuracy": nan}}
            console.on_epoch(record(epoch, train_loss=nan, edges_per_s=nan, metrics=undefined))
        console.on_finish(summary(train_loss=[nan, float("inf")], val={"accuracy": nan}))
    assert "nan" in file.getvalue()
    assert "none has a val accuracy: epoch 2 counts as the best" in file.getvalue()
    assert not re.search("^  accuracy .*→", "\n".join(final_lines(file.getvalue())), re.MULTILINE)


def test_no_color_leaves_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    assert COLOURS.search(shown_live())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not COLOURS.search(shown_live())


def test_an_output_without_unicode_does_not_end_the_run() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="cp1252")
    with Console(file) as console:
        console.on_start(info(facts={"dataset": "節 \udcff é"}))
    file.flush()
    assert "dataset   ? ? é" in raw.getvalue().decode("cp1252")


def test_paths_and_commands_stay_whole_on_40_columns() -> None:
    file, run = Terminal(40), "runs/a-name-that-is-longer-than-the-line-has-room-for"
    with Console(file) as console:
        console.on_start(info(run_dir=run))
        console.on_finish(SUMMARY)
    lines = final_lines(file.getvalue())
    assert f"  next      gnntrain evaluate {run}" in lines
    assert f"  run       {run}" in lines


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
    with started("-c", SCRIPT, "2000") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == ""


@pytest.mark.parametrize("redirection", ["> /dev/full", ">&-"])
def test_a_full_disk_or_a_closed_output_does_not_end_the_run(redirection: str) -> None:
    command = f'"{sys.executable}" -c "$0" 3 {redirection}'
    done = subprocess.run(
        ["sh", "-c", command, SCRIPT], stderr=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_on_a_real_terminal_shows_the_cursor_again() -> None:
    ours, theirs = os.openpty()
    process = started("-c", SCRIPT, "2", "forever", stdout=theirs, stderr=theirs)
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


def test_a_terminal_is_restored_for_a_process_that_was_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        restore_terminal()
        assert os.read(ours, 100).decode() == SHOW
    os.close(ours)
