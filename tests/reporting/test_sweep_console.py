"""What a person sees of a sweep, at several widths and in a log."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from gnntrain.reporting.sweep_console import SweepConsole, SweepInfo
from gnntrain.reporting.trials import SweepResults, Trial
from tests.reporting.samples import INFO, record_with_val, step
from tests.reporting.test_console import ESCAPES, HIDE, SHOW, Clock, what_stays

LR, WIDTH = "trainer.lr", "model.hidden_channels"


@pytest.fixture(autouse=True)
def _a_plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def trial(number: int, lr: str, channels: int, **changes: Any) -> Trial:
    varied = [f"{LR}={lr}", f"{WIDTH}={channels}"]
    return Trial(number, [], f"/runs/{number}", "running", "accuracy", varied=varied, **changes)


def trials() -> list[Trial]:
    return [trial(0, "0.0123456789", 64), trial(1, "0.1", 128), trial(2, "1.0", 64)]


def sweep_info(**changes: Any) -> SweepInfo:
    keys: dict[str, Any] = {
        "num_trials": 3,
        "num_ended": 0,
        "best": (),
        "kind": "optuna (tpe, pruner median, seed 0)",
        "jobs": 2,
        "shared": ("experiment=cora_gcn",),
        "space": ((LR, "0.001 to 1, log"), (WIDTH, "64, 128")),
        "examples": trials(),
        "folder": "runs/multirun/demo",
    }
    return SweepInfo(**{**keys, **changes})


def end(one: Trial, status: str, val: float | None = None, **changes: Any) -> Trial:
    one.status, one.val, one.test = status, val, val
    one.seconds, one.epochs = 3.21, 2
    for key, value in changes.items():
        setattr(one, key, value)
    return one


def play(console: SweepConsole) -> None:
    first, second, third = trials()
    with console:
        console.on_start(sweep_info())
        for one in (first, second):
            console.on_trial(one)
            console.on_info(one, INFO)
            console.on_step(one, step())
        console.on_epoch(first, record_with_val(1, 0.5))
        console.on_epoch(first, record_with_val(2, 0.75))
        console.refresh(at_once=True)
        console.on_message(second, "a\nnote")
        console.on_trial_end(end(first, "completed", 0.75))
        console.on_trial_end(end(second, "pruned", 0.25))
        console.on_trial(third)
        console.on_trial_end(end(third, "failed", error="The loss\nis nan in epoch 2 of 3, alas."))
        console.on_finish(SweepResults.of([first, second, third]), "completed", 61.0)


def shown(width: int | None = None) -> str:
    file = io.StringIO()
    play(SweepConsole(file, width=width, live=width is not None, clock=Clock()))
    return file.getvalue()


def test_a_log_has_a_line_a_trial_that_explains_itself() -> None:
    text = shown()
    assert "\x1b" not in text
    start, _, rest = text.partition("note  trial 1: a note\n")
    assert start.splitlines()[2:] == [
        "  sweep     3 trials · optuna (tpe, pruner median, seed 0) · 2 at a time",
        "  all       experiment=cora_gcn",
        "  search    trainer.lr             0.001 to 1, log",
        "            model.hidden_channels  64, 128",
        "  folder    runs/multirun/demo",
        "",
    ]
    values = "val accuracy 0.7500 *  test accuracy 0.7500  epochs 2"
    assert rest.splitlines() == [
        f"trial 0 (1/3)  trainer.lr=0.01235 model.hidden_channels=64  {values}  time 3.21 s",
        "trial 1 (2/3)  trainer.lr=0.1 model.hidden_channels=128  val accuracy 0.2500  "
        "test accuracy 0.2500  epochs 2  pruned  time 3.21 s",
        "trial 2 (3/3)  trainer.lr=1 model.hidden_channels=64  "
        "failed: The loss is nan in epoch 2 of 3, alas.  time 3.21 s",
        "",
        "completed after 3 of 3 trials: 1 completed, 1 pruned, 1 failed",
        "",
        "  trial         lr  hidden_channels  val accuracy    test accuracy  epochs     time",
        "      0    0.01235               64        0.7500 *         0.7500       2   3.21 s",
        "      1        0.1              128        0.2500           0.2500       2   3.21 s"
        "  pruned",
        "",
        "  best      trial 0 · val accuracy 0.7500 · test 0.7500",
        "            trainer.lr=0.01235 model.hidden_channels=64",
        "  time      1:01 · 3.21 s a trial",
        "  folder    runs/multirun/demo",
        "  next      gnntrain runs/multirun/demo/best.yaml",
    ]


TABLES = {
    40: """\
trial         lr  val accuracy
    0    0.01235        0.7500 *
    1        0.1        0.2500    pruned
    2          1             -    failed
  The loss is nan in epoch 2 of 3, al…""",
    80: """\
trial         lr  hidden_channels  val accuracy    test accuracy  epochs
    0    0.01235               64        0.7500 *         0.7500       2
    1        0.1              128        0.2500           0.2500       2  pruned
    2          1               64             -                -       2  failed
  The loss is nan in epoch 2 of 3, alas.""",
    160: """\
trial         lr  hidden_channels  val accuracy    test accuracy  epochs     time  course
    0    0.01235               64        0.7500 *         0.7500       2   3.21 s  ▁█
    1        0.1              128        0.2500           0.2500       2   3.21 s  \
                  pruned
    2          1               64             -                -       2   3.21 s  \
                  failed
  The loss is nan in epoch 2 of 3, alas.""",
}


@pytest.mark.parametrize("width", [40, 80, 160])
def test_a_terminal_keeps_a_table_and_nothing_of_the_live_view(width: int) -> None:
    stays = what_stays(shown(width))
    rows = [line for line in stays[stays.index("note  trial 1: a note") :] if line]
    first = next(number for number, line in enumerate(stays) if line.startswith("trial "))
    table = [stays[first].rstrip(), *rows[1:6]]
    assert "\n".join(table[: len(TABLES[width].splitlines())]) == TABLES[width]
    assert not [line for line in stays if "ETA" in line]


@pytest.mark.parametrize("width", [40, 80, 160])
def test_the_live_view_keeps_to_the_width(width: int) -> None:
    lines = [ESCAPES.sub("", line) for line in re.split(r"[\r\n]", shown(width))]
    assert max(len(line) for line in lines if "gnntrain runs/" not in line) <= width
    assert any(line.startswith("    0") and "epoch 2/3  val 0.7500" in line for line in lines)
    assert any("/3 trials" in line for line in lines)
    if width > 40:
        assert any("━" in line and "ETA" in line for line in lines)


def test_a_terminal_is_given_back() -> None:
    text = shown(80)
    assert text.count(HIDE) == text.count(SHOW) == 1


def test_no_color_leaves_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    colours = re.compile(r"\x1b\[(?:[0-9]+;)*(?:3[0-7]|9[0-7]|38;[0-9;]*)m")
    assert colours.search(shown(80))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colours.search(shown(80))


def test_an_output_without_unicode_gets_ascii() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    play(SweepConsole(file, width=60, live=True, clock=Clock()))
    file.flush()
    assert "3 trials | optuna" in raw.getvalue().decode("ascii")


def test_seeds_are_told_as_mean_and_deviation() -> None:
    done = [
        Trial(n, [], f"/{n}", "completed", "accuracy", 0.8 + n / 100, 0.7, 1.0, varied=varied)
        for n, varied in enumerate(
            [["model=gcn", "trainer.seed=0"], ["model=gcn", "trainer.seed=1"], ["model=sage"]]
        )
    ]
    file = io.StringIO()
    with SweepConsole(file, clock=Clock()) as console:
        console.on_start(sweep_info(space=(), examples=done))
        console.on_finish(SweepResults.of(done), "completed", 3.0)
    text = file.getvalue()
    assert "  mean ± standard deviation over trainer.seed\n" in text
    assert "  model=sage       1           0.8200           0.7000\n" in text
    assert "  model=gcn        2  0.8050 ± 0.0071  0.7000 ± 0.0000\n" in text
    ranked = re.findall(r"^ +(\d)\s+(?:gcn|sage)", text, re.MULTILINE)
    assert ranked == ["2", "1", "0"]


def test_a_log_gets_a_line_a_minute_while_no_trial_ends() -> None:
    file, clock = io.StringIO(), Clock()
    one = trials()[0]
    with SweepConsole(file, clock=clock) as console:
        console.on_start(sweep_info())
        console.on_trial(one)
        clock.now = 61
        console.refresh()
        console.on_info(one, INFO)
        console.on_step(one, step())
        clock.now = 122
        for _ in range(9):
            console.refresh()
    told = [line for line in file.getvalue().splitlines() if "ETA" in line]
    assert told == [
        "0/3 trials  ETA -  trial 0: starting",
        "0/3 trials  ETA 34:34  trial 0: epoch 1/3",
    ]


def test_the_best_of_before_stays_the_best_of_a_sweep_that_goes_on() -> None:
    before, now = trials()[:2]
    end(before, "completed", 0.9)
    file = io.StringIO()
    with SweepConsole(file, clock=Clock()) as console:
        console.on_start(sweep_info(num_ended=1, best=(before,)))
        console.on_trial(now)
        console.on_trial_end(end(now, "completed", 0.5))
    assert "1 of them have ended before" in file.getvalue()
    assert "val accuracy 0.5000  test" in file.getvalue()


def test_pruned_trials_stand_below_the_completed_ones_whatever_they_reached() -> None:
    many = [
        Trial(n, [], f"/{n}", "completed" if n % 4 == 0 else "pruned", "accuracy", n / 100, 0.5, 1)
        for n in range(20)
    ]
    file = io.StringIO()
    with SweepConsole(file, clock=Clock()) as console:
        console.on_start(sweep_info(num_trials=20, examples=many[:1]))
        console.on_finish(SweepResults.of(many), "completed", 3.0)
    text = file.getvalue()
    shown = re.findall(r"^ +(\d+) +0\.\d{4} ([ *])", text, re.MULTILINE)
    assert [int(number) for number, _ in shown] == [16, 12, 8, 4, 0, 19, 18, 17, 15, 14]
    assert [mark for _, mark in shown] == ["*"] + [" "] * 9
    assert text.count("  pruned\n") == 5
    assert "and 10 more in sweep.json, 10 pruned" in text


def test_a_sweep_of_which_all_trials_are_pruned_has_no_best() -> None:
    many = [Trial(n, [], f"/{n}", "pruned", "accuracy", 0.5, 0.5, 1.0) for n in range(2)]
    file = io.StringIO()
    with SweepConsole(file, clock=Clock()) as console:
        console.on_start(sweep_info(examples=many))
        console.on_finish(SweepResults.of(many), "completed", 3.0)
    assert "*" not in file.getvalue()
    assert file.getvalue().count("pruned") >= 2


def test_thousands_of_trials_are_not_all_ranked() -> None:
    many = [
        Trial(n, [], f"/{n}", "completed", "accuracy", n / 1000, 0.5, 1.0, varied=[f"{LR}={n}"])
        for n in range(1000)
    ]
    file = io.StringIO()
    with SweepConsole(file, clock=Clock()) as console:
        console.on_start(sweep_info(num_trials=1000, examples=many[:1]))
        console.on_finish(SweepResults.of(many), "completed", 3.0)
    assert "  and 990 more in sweep.json\n" in file.getvalue()


def test_a_trial_that_ends_before_it_began_has_its_row_too() -> None:
    file = io.StringIO()
    one = trials()[0]
    with SweepConsole(file, width=80, live=True, clock=Clock()) as console:
        console.on_start(sweep_info())
        console.on_trial(one)
        console.on_trial_end(end(one, "interrupted"))
    lines = what_stays(file.getvalue())
    assert any(line.startswith("trial         lr") for line in lines)
    assert any(line.startswith("    0    0.01235") and "interrupted" in line for line in lines)
