"""A run whose disk is full for a while."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from gnntrain.errors import RunError
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.tasks import NodeClassification
from gnntrain.training import checkpoint
from tests.disks import full_disk
from tests.outcomes.test_resume import assert_same_run, begin, cache, go_on, whole

__all__ = ["cache", "whole"]  # the fixtures


def fill_disk(monkeypatch: pytest.MonkeyPatch, first: int, last: int | None = None) -> ExitStack:
    """No file grows beyond 200 bytes from the loss's `first` call to its `last`."""
    loss, num_calls, full = NodeClassification.loss, 0, ExitStack()

    def counting(task: NodeClassification, *tensors: torch.Tensor) -> torch.Tensor:
        nonlocal num_calls
        num_calls += 1
        if num_calls == first:
            full.enter_context(full_disk(200))
        if num_calls == last:
            full.close()
        return loss(task, *tensors)

    monkeypatch.setattr(NodeClassification, "loss", counting)
    monkeypatch.setattr(checkpoint, "_SECONDS_BETWEEN_WRITES", 0.01)
    return full


def test_a_run_whose_disk_is_full_for_a_while_ends_as_one_with_room(
    cache: Path,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill_disk(monkeypatch, 10, 35)
    with caplog.at_level(logging.WARNING, logger="gnntrain"):
        begin(tmp_path / "run", cache)
    assert_same_run(tmp_path / "run", whole)
    told = caplog.text
    assert told.count("logger jsonl") == 1
    assert told.count("logger csv") == 1
    assert told.count("could not be written") == told.count("are written again") == 1


def test_a_run_whose_disk_stays_full_says_so_and_can_be_gone_on_with(
    cache: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        full = fill_disk(patch, 10)
        with full, pytest.raises(RunError, match="could not be written"):
            begin(run, cache)
    assert not RunDirectory(run).summary()
    go_on(run)
    assert_same_run(run, whole)
