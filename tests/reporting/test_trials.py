"""The order of trials, and means over seeds and splits."""

from __future__ import annotations

import math
import statistics

import pytest

from gnntrain.reporting.trials import Spread, SweepResults, Trial


def trial(number: int, val: float | None, *varied: str, status: str = "completed") -> Trial:
    test = None if val is None else val + 0.01
    return Trial(number, [], f"/{number}", status, "accuracy", val, test, varied=list(varied))


def test_a_spread_is_over_the_values_that_are_numbers() -> None:
    spread = Spread.of([0.25, 0.5, 1.0, math.nan])
    assert spread == Spread(statistics.fmean([0.25, 0.5, 1]), statistics.stdev([0.25, 0.5, 1]))
    assert Spread.of([0.5]) == Spread(0.5, None)
    assert Spread.of([math.nan]) == Spread(None, None)
    assert [str(one) for one in (Spread.of([]), Spread.of([0.5]), Spread(5000, 3.14159))] == [
        *("-", "0.5000", "5000.0 ± 3.1")
    ]


def test_equal_trials_count_once_and_pruned_ones_are_told() -> None:
    trials = [
        trial(0, 0.8, "trainer.lr=1", "trainer.seed=0"),
        trial(1, 0.8, "trainer.lr=1", "trainer.seed=0"),
        trial(2, 0.4, "trainer.lr=1", "trainer.seed=1"),
        trial(3, 0.3, "trainer.lr=1", "trainer.seed=2", status="pruned"),
        trial(4, 0.2, "trainer.lr=2", "trainer.seed=0", status="pruned"),
    ]
    first, second = SweepResults(trials).groups
    assert [one.number for one in first.counted] == [0, 2]
    assert first.spread("val").mean == pytest.approx(0.6)
    assert [one.number for one in first.runs] == [0, 2, 3]
    assert [one.number for one in second.runs] == [4]
    assert second.spread("val") == Spread(None, None)
    assert SweepResults([trial(0, math.nan), trial(1, None)]).best is None
