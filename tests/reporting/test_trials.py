"""The order of trials, and means over seeds and splits."""

from __future__ import annotations

import pytest

from gnntrain.reporting.trials import Spread, SweepResults, Trial


def trial(number: int, val: float | None, *varied: str, status: str = "completed") -> Trial:
    test = None if val is None else val + 0.01
    return Trial(number, [], f"/{number}", status, "accuracy", val, test, varied=list(varied))


def test_completed_trials_are_ranked_by_the_validation_metric() -> None:
    trials = [
        trial(0, 0.5, "trainer.lr=1"),
        trial(1, None, "trainer.lr=2"),
        trial(2, 0.7, "trainer.lr=3"),
        trial(3, 0.9, "trainer.lr=4", status="pruned"),
        trial(4, None, "trainer.lr=5", status="failed"),
    ]
    standings = SweepResults.of(trials)
    assert [one.number for one in standings.ranked] == [2, 0, 1]
    assert standings.best is trials[2]
    assert standings.repeated == ()
    assert [standings.count(word) for word in ("completed", "pruned", "failed")] == [3, 1, 1]


def test_trials_that_differ_in_seed_or_split_alone_are_one_group() -> None:
    trials = [
        trial(0, 0.50, "model=gcn", "trainer.seed=0"),
        trial(1, 0.60, "model=gcn", "trainer.seed=1"),
        trial(2, 0.61, "model=gat", "trainer.seed=0"),
        trial(3, 0.10, "model=gat", "trainer.seed=1"),
        trial(4, 0.99, "model=gat", "trainer.seed=2", status="failed"),
    ]
    standings = SweepResults.of(trials)
    assert standings.repeated == ("trainer.seed",)
    gcn, gat = standings.groups
    assert gcn.varied == ("model=gcn",)
    assert gcn.val is not None
    assert gcn.test is not None
    assert (gcn.val.mean, gcn.val.std) == pytest.approx((0.55, 0.0707107), abs=1e-6)
    assert gcn.test.mean == pytest.approx(0.56)
    assert [one.number for one in gat.trials] == [2, 3]
    # The best of the best group, not the luckiest of all.
    assert standings.best is trials[1]


def test_a_spread_needs_two_values_for_a_deviation() -> None:
    assert Spread.of([]) is None
    assert Spread.of([0.5]) == Spread(0.5, None)


def test_without_a_completed_trial_there_is_no_best() -> None:
    standings = SweepResults.of([trial(0, None, "trainer.seed=0", status="failed")])
    assert standings.best is None
    assert standings.groups == ()
    assert SweepResults.of([]).metric == "metric"
