from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import pytest

from gnntrain.config import CheckpointConfig
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import RunError
from gnntrain.training import checkpointing
from gnntrain.training.checkpoint import State, load_checkpoint, save_checkpoint
from gnntrain.training.checkpointing import CheckpointClock, CheckpointWriter
from tests.disks import full_disk


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

    monkeypatch.setattr(checkpointing, "save_checkpoint", slow)
    monkeypatch.setattr(checkpointing, "_SECONDS_BETWEEN_WRITES", 0.0)
    writer = CheckpointWriter(tmp_path)
    for epoch in range(50):
        writer.offer({"epoch": epoch}, best=False)  # would hang here
    may_write.set()
    writer.close()
    assert written[-1] == ("last.pt", 49)
    assert len(written) <= 3


def test_a_full_disk_is_told_once_and_written_to_when_it_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkpointing, "_SECONDS_BETWEEN_WRITES", 0.02)
    with caplog.at_level(logging.WARNING, logger="gnntrain"):
        writer = CheckpointWriter(tmp_path)
        writer.offer({"epoch": 1}, best=True)
        wait_for(tmp_path / "last.pt")
        with full_disk(100):
            for epoch in (2, 3, 4):
                writer.offer({"epoch": epoch}, best=epoch == 3)
                time.sleep(0.1)
            assert load_checkpoint(tmp_path / "last.pt")["epoch"] == 1
        wait_for(tmp_path / "last.prev.pt")  # nothing new is offered
        writer.close()
    writer.raise_failure()
    refused, recovered = caplog.messages
    assert "could not be written" in refused
    assert "written again" in recovered
    assert load_checkpoint(tmp_path / "best.pt")["epoch"] == 3
    assert load_checkpoint(tmp_path / "last.pt")["epoch"] == 4
    assert {path.name for path in tmp_path.iterdir()} == {"best.pt", "last.pt", "last.prev.pt"}


def test_a_state_that_could_not_be_written_until_the_end_is_a_failure(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path)
    with full_disk(100):
        writer.offer({"epoch": 1}, best=True)
        writer.close()
    with pytest.raises(RunError, match=r"best\.pt could not be written"):
        writer.raise_failure()
    assert not list(tmp_path.iterdir())


def test_the_last_does_not_speak_of_a_best_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_best(path: Path, state: State, *, previous: Path | None = None) -> None:
        if path.name == "best.pt":
            raise RunError("The disk is full.")
        save_checkpoint(path, state, previous=previous)

    monkeypatch.setattr(checkpointing, "save_checkpoint", refuse_best)
    writer = CheckpointWriter(tmp_path)
    writer.offer({"epoch": 1}, best=True)
    writer.close()
    assert not list(tmp_path.iterdir())


def test_the_last_does_not_speak_of_a_best_that_was_offered_while_another_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[str, int]] = []

    def slow(path: Path, state: State, *, previous: Path | None = None) -> None:
        if not written:
            writer.offer({"epoch": 2}, best=True)
        written.append((path.name, state["epoch"]))
        save_checkpoint(path, state, previous=previous)

    monkeypatch.setattr(checkpointing, "save_checkpoint", slow)
    writer = CheckpointWriter(tmp_path)
    writer.offer({"epoch": 1}, best=True)
    wait_for(tmp_path / "last.pt")
    writer.close()
    assert written == [("best.pt", 1), ("last.pt", 1), ("best.pt", 2), ("last.pt", 2)]


def test_an_error_nobody_thought_of_does_not_end_the_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[Exception] = [MemoryError("no room for a copy")]

    def fail_once(path: Path, state: State, *, previous: Path | None = None) -> None:
        if errors:
            raise errors.pop()
        save_checkpoint(path, state, previous=previous)

    monkeypatch.setattr(checkpointing, "save_checkpoint", fail_once)
    monkeypatch.setattr(checkpointing, "_SECONDS_BETWEEN_WRITES", 0.0)
    writer = CheckpointWriter(tmp_path)
    writer.offer({"epoch": 1}, best=False)
    wait_for(tmp_path / "last.pt")
    writer.close()
    writer.raise_failure()
    assert "MemoryError" in caplog.text


def test_what_a_killed_writer_left_is_swept(tmp_path: Path) -> None:
    for name in (".last.pt.0123456789abcdef", ".best.pt.fedcba9876543210"):
        (tmp_path / name).touch()
    save_checkpoint(tmp_path / "last.pt", {"epoch": 1})
    CheckpointWriter(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["last.pt"]


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
