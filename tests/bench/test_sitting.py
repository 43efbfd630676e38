"""What is made of the rounds' figures."""

from __future__ import annotations

import pytest

from scripts.bench.sitting import Entry, Result, Spread, ratios

OURS, FAST, WIDE = (Entry("gnntrain", *rest) for rest in (("fp32", 1), ("bf16", 1), ("fp32", 2)))
PEER, WIDE_PEER = Entry("pyg", "fp32", 1), Entry("pyg", "fp32", 2)


def test_a_spread_is_the_median_with_its_quartiles() -> None:
    assert Spread.of([5.0, 1.0, 2.0, 4.0, 3.0]) == Spread(3.0, 2.0, 4.0)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0)


def test_ratios_are_taken_round_by_round() -> None:
    # In the second round the machine was four times as slow for both.
    results = [Result(OURS, rates=(8.0, 2.0, 9.0)), Result(PEER, rates=(4.0, 1.0, 3.0))]
    assert ratios(results)[OURS, PEER].median == pytest.approx(2.0)


def test_ours_is_compared_with_peers_on_as_many_threads_and_with_itself_on_the_fewest() -> None:
    entries = (OURS, FAST, WIDE, PEER, WIDE_PEER)
    found = ratios([Result(entry, rates=(1.0,)) for entry in entries])
    assert set(found) == {(OURS, PEER), (FAST, PEER), (WIDE, WIDE_PEER), (WIDE, OURS)}


def test_who_is_absent_is_compared_with_nobody() -> None:
    results = [Result(OURS, rates=(1.0,)), Result(PEER, absent="not installed")]
    assert ratios(results) == {}
