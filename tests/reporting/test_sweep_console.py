"""A sweep on a terminal and in a log."""

from __future__ import annotations

import io
import re
from typing import Any

from gnntrain.reporting.console import SweepConsole
from gnntrain.reporting.trials import SweepResults, Trial
from tests.reporting.samples import record_with_val, step
from tests.reporting.terminals import Clock, Terminal, drawn_lines, final_lines, golden

LR, WIDTH = "trainer.lr", "model.hidden_channels"
FACTS = {"sweep": "3 trials", "all": "experiment=cora_gcn", "search": f"{LR}\n{WIDTH}"}


def trial(number: int, lr: str, channels: int, **changes: Any) -> Trial:
    varied = [f"{LR}={lr}", f"{WIDTH}={channels}"]
    return Trial(number, [], f"/runs/{number}", "running", "accuracy", varied=varied, **changes)


def trials() -> list[Trial]:
    return [trial(0, "0.0123456789", 64), trial(1, "0.1", 128), trial(2, "1.0", 64)]


def end(one: Trial, status: str, val: float | None = None, **changes: Any) -> Trial:
    one.status, one.val, one.test = status, val, val
    one.seconds, one.epochs = 3.21, 2
    for key, value in changes.items():
        setattr(one, key, value)
    return one


def shown(width: int | None = None) -> str:
    file, clock = io.StringIO() if width is None else Terminal(width), Clock()
    first, second, third = trials()
    with SweepConsole(file, clock) as console:
        console.on_start(3, [], "runs/multirun/demo", FACTS)
        for one in (first, second):
            console.on_trial(one)
            console.on_step(one, step(), 3)
        console.on_epoch(first, record_with_val(1, 0.5), 3)
        console.on_epoch(first, record_with_val(2, 0.75), 3)
        clock.now += 1
        console.refresh()
        console.on_message("trial 1: a\nnote")
        console.on_trial_end(end(first, "completed", 0.75))
        console.on_trial_end(end(second, "pruned", 0.25))
        console.on_trial(third)
        console.on_trial_end(end(third, "failed", error="The loss is nan in epoch 2.\nLower lr."))
        console.on_finish(SweepResults([first, second, third]), "completed", 61.0)
    return file.getvalue()


def finished(many: list[Trial]) -> str:
    file = io.StringIO()
    with SweepConsole(file) as console:
        console.on_start(len(many), [], "runs/multirun/demo", {})
        console.on_finish(SweepResults(many), "completed", 3.0)
    return file.getvalue()


def test_a_sweep_leaves_two_tables_on_a_terminal_of_80_columns() -> None:
    assert final_lines(shown(80))[2:-1] == golden("sweep")[2:]


def test_a_log_has_a_line_a_trial_with_the_names_of_its_numbers() -> None:
    text = shown()
    assert "\x1b" not in text
    assert not any(line.endswith(" ") for line in text.splitlines())
    told = re.findall(r"^trial (\d)  val .*  lr (\S+)", text, re.MULTILINE)
    assert told == [("0", "0.01235"), ("1", "0.1"), ("2", "1")]
    assert "val accuracy * 0.7500" in text
    assert "test accuracy 0.7500  epochs 2  time 3.21 s" in text
    assert "\n  The loss is nan in epoch 2.\n  Lower lr.\n" in text


def test_the_bars_keep_to_the_width() -> None:
    lines = [line for line in drawn_lines(shown(60)) if "ETA" in line]
    assert max(map(len, lines)) <= 60
    assert any(re.match(r"trial 0 .*epoch 2/3  val 0.7500 ETA", line) for line in lines)
    assert any(re.match(r"0/3 trials .* ETA", line) for line in lines)


def test_seeds_are_told_as_mean_and_deviation() -> None:
    runs = [("gcn", 0.8), ("gcn", 0.81), ("sage", 0.82), ("sage", 0.1), ("sage", 0.99)]
    many = [
        Trial(n, [], f"/{n}", "completed", "accuracy", val, 0.7, 1.0)
        for n, (_, val) in enumerate(runs)
    ]
    for one, (model, _) in zip(many, runs, strict=True):
        one.varied = [f"model={model}", f"trainer.seed={one.number}"]
    many[-1].status = "failed"
    text = finished(many)
    assert "mean ± standard deviation over seeds and splits\n" in text
    first, second = re.findall(r"^  (\d .*\d)$", text, re.MULTILINE)
    assert re.fullmatch(r"1 +model=gcn +2 +0\.8050 ± 0\.0071 +0\.7000 ± 0\.0000", first)
    assert re.fullmatch(r"2 +model=sage +2 +0\.4600 ± 0\.5091 +0\.7000 ± 0\.0000", second)
    # The best of the best setting, not the luckiest of all.
    assert "trial 1 · val accuracy 0.8100" in text


def test_the_best_of_a_setting_is_a_trial_that_counts() -> None:
    many = [
        Trial(n, [], f"/{n}", status, "accuracy", val, 0.7, 1.0, varied=[f"trainer.seed={n}"])
        for n, (status, val) in enumerate([("completed", 0.8), ("pruned", 0.9)])
    ]
    (row,) = re.findall(r"^  (\d .*\d)$", finished(many), re.MULTILINE)
    assert re.fullmatch(r"0 +all +1 \+ 1 pruned +0\.8000 +0\.7000", row)


def test_pruned_trials_stand_below_the_completed_ones_whatever_they_reached() -> None:
    many = [trial(n, str(n), 64, val=n / 100, test=0.5, seconds=1.0) for n in range(20)]
    for one in many:
        one.status = "pruned" if one.number % 4 else "completed"
    text = finished(many)
    shown = re.findall(r"^ +(\d+) +\S+lr=\d+ .*=64 +(1|0 \+ 1 pruned) ", text, re.MULTILINE)
    assert [int(number) for number, _ in shown] == [16, 12, 8, 4, 0, 19, 18, 17, 15, 14]
    assert [trials == "1" for _, trials in shown] == [True] * 5 + [False] * 5
    assert "and 10 more in sweep.json" in text


def test_settings_over_other_splits_stand_behind_those_over_most() -> None:
    varied = [[f"{LR}={lr}", f"dataset.split={n}"] for n, lr in enumerate((1, 1, 2))]
    many = [
        Trial(n, [], f"/{n}", "completed", "accuracy", 0.5 + n / 10, 0.5, 1.0, varied=one)
        for n, one in enumerate(varied)
    ]
    text = finished(many)
    rows = re.findall(r"^  (\d) +(\S.*\S)  +\d  +", text, re.MULTILINE)
    assert rows == [("1", f"{LR}=1"), ("2", f"{LR}=2 (not ranked: split 2)")]
    assert "trial 1 · val accuracy 0.6000" in text
