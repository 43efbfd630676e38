from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import pytest

from gnntrain.config import CheckpointConfig
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import RunError
from gnntrain.training import checkpoint_writer
from gnntrain.training.checkpoint import State, load_checkpoint, save_checkpoint
from gnntrain.training.checkpoint_writer import CheckpointClock, CheckpointWriter


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_the_writer_writes_the_first_state_at_once_and_then_the_newest(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path)
    writer.offer({"epoch": 1}, best=False)
    wait_for(tmp_path / "last.pt")
    for epoch in (2, 3, 4):
        writer.offer({"epoch": epoch}, best=epoch == 3)
    assert load_checkpoint(tmp_path / "last.pt")["epoch"] == 1
    assert not (tmp_path / "best.pt").exists()
    writer.close()
    writer.raise_failure()
    assert load_checkpoint(tmp_path / "best.pt")["epoch"] == 3
    assert load_checkpoint(tmp_path / "last.pt")["epoch"] == 4
    assert load_checkpoint(tmp_path / "last.prev.pt")["epoch"] == 1


def test_training_does_not_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write, written = threading.Event(), []

    def slow(path: Path, state: State, **_: object) -> None:
        may_write.wait(60)
        written.append((path.name, state["epoch"]))

    monkeypatch.setattr(checkpoint_writer, "save_checkpoint", slow)
    monkeypatch.setattr(checkpoint_writer, "_SECONDS_BETWEEN_WRITES", 0.0)
    writer = CheckpointWriter(tmp_path)
    for epoch in range(50):
        writer.offer({"epoch": epoch}, best=False)  # would hang here
    may_write.set()
    writer.close()
    assert written[-1] == ("last.pt", 49)
    assert len(written) <= 3


def test_a_full_disk_is_told_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save = save_checkpoint
    is_full = True

    def sometimes(path: Path, state: State, *, previous: Path | None = None) -> None:
        if is_full:
            raise RunError("The disk is full.")
        save(path, state, previous=previous)

    monkeypatch.setattr(checkpoint_writer, "save_checkpoint", sometimes)
    monkeypatch.setattr(checkpoint_writer, "_SECONDS_BETWEEN_WRITES", 0.0)
    with caplog.at_level(logging.WARNING, logger="gnntrain"):
        writer = CheckpointWriter(tmp_path)
        for epoch in (1, 2):
            writer.offer({"epoch": epoch}, best=True)
        writer.close()
    assert caplog.messages == ["The disk is full. Training goes on."]
    with pytest.raises(RunError):
        writer.raise_failure()
    is_full = False
    writer = CheckpointWriter(tmp_path)
    writer.offer({"epoch": 3}, best=True)
    writer.close()
    writer.raise_failure()
    assert load_checkpoint(tmp_path / "last.pt")["epoch"] == 3


def due_steps(
    config: CheckpointConfig, seconds_a_step: float, num_steps: int
) -> tuple[list[int], int]:
    """The steps after which a checkpoint is due, and how often rank 0's clock was asked."""
    now = 0.0
    num_looks = 0

    class Counting(DistributedContext):
        def broadcast(self, value: object) -> object:  # type: ignore[override]
            nonlocal num_looks
            num_looks += 1
            return value

    clock = CheckpointClock(config, Counting(), lambda: now)
    due = []
    for step in range(1, num_steps + 1):
        now += seconds_a_step
        if clock.is_due(step):
            due.append(step)
            clock.restart(step)
    return due, num_looks


def test_checkpoints_are_due_by_steps() -> None:
    config = CheckpointConfig(every_steps=4, every_minutes=None)
    assert due_steps(config, 1.0, 10) == ([4, 8], 0)


def test_checkpoints_are_due_by_minutes_and_few_steps_ask_for_the_time() -> None:
    config = CheckpointConfig(every_minutes=1.0)
    due, num_looks = due_steps(config, 0.01, 20_000)
    assert due == pytest.approx([6_000, 12_000, 18_000], abs=3)
    assert num_looks < 150


def test_a_step_longer_than_the_interval_is_saved_each_time() -> None:
    assert due_steps(CheckpointConfig(every_minutes=1.0), 90.0, 3)[0] == [1, 2, 3]
