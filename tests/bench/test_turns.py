"""A contestant's end of the conversation."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from scripts.bench.peers.turns import Spec, Turns


def spec(**changes: Any) -> Spec:
    values: dict[str, Any] = {
        "stage": "step",
        "dataset": "synthetic",
        "overrides": [],
        "store": "",
        "num_classes": 3,
        "fan_outs": [3, 2],
        "batch_size": 8,
        "hidden": 4,
        "threads": 1,
        "precision": "fp32",
        "loader_workers": 0,
        "variant": "gnntrain",
    }
    return Spec(**(values | changes))


def answers_to(monkeypatch: pytest.MonkeyPatch, commands: str, lead_in: int) -> tuple[int, Any]:
    """How often a step of 10 edges was run, and what was answered."""
    monkeypatch.setattr("sys.stdin", io.StringIO(commands))
    output, calls = io.StringIO(), 0

    def step() -> int:
        nonlocal calls
        calls += 1
        return 10

    Turns(spec(), output).take(step, lead_in)
    return calls, [json.loads(line) for line in output.getvalue().splitlines()]


def test_a_turn_reports_its_batches_but_not_those_that_lay_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, answers = answers_to(monkeypatch, "run 3\nrun 2\nquit\n", lead_in=4)
    assert calls == 13
    assert [answer["batches"] for answer in answers] == [3, 2]
    assert [answer["edges"] for answer in answers] == [30, 20]
    assert all(answer["peak_rss"] > 2**20 for answer in answers)


def test_a_contestant_ends_with_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answers_to(monkeypatch, "run 1\n", lead_in=0)[0] == 1
