from __future__ import annotations

import os
import pickle
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gnntrain.errors import RunError, UserError
from gnntrain.training import checkpoint
from tests.processes import wait_until

SAVE = checkpoint.save_checkpoint


def test_what_was_written_is_read_again_before_it_takes_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last.pt"
    checkpoint.save_checkpoint(path, {"w": torch.ones(100)})
    save = torch.save

    def bad_disk(state: object, file: Any) -> None:
        save(state, file)
        file.seek(700)
        file.write(b"\0" * 64)

    monkeypatch.setattr(torch, "save", bad_disk)
    with pytest.raises(RunError, match="could not be written"):
        checkpoint.save_checkpoint(path, {"w": torch.ones(100)}, previous=tmp_path / "last.prev.pt")
    assert checkpoint.load_checkpoint(path)["w"].sum() == 100
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]


class _Malicious:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("code ran",)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such file"),
        (pickle.dumps({"a": 1}), "no checkpoint"),
        (pickle.dumps(_Malicious()), "no checkpoint"),
        (b"PK\x03\x04" + b"x" * 100, "no checkpoint"),
        ({"state_dict": {"w": torch.ones(1)}}, "gnntrain did not write it"),
        (torch.ones(2), "gnntrain did not write it"),
        ({"format_version": torch.ones(2)}, "gnntrain did not write it"),
        ({"format_version": "2"}, "gnntrain did not write it"),
        ({"format_version": 99}, "version 99"),
        ({"format_version": 2, "model": _Malicious()}, "could run code"),
    ],
)
def test_another_file_is_refused_with_a_sentence_and_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: Any, said: str
) -> None:
    path = tmp_path / "last.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(checkpoint.CheckpointError, match=said) as caught:
        checkpoint.load_checkpoint(path)
    assert "weights_only" not in str(caught.value)
    assert "code ran" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["last.pt", "last.prev.pt"])
def test_a_folder_in_a_checkpoints_place_is_to_be_moved_away(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(UserError, match="folder") as unreadable:
        checkpoint.load_last(tmp_path)
    last, previous = tmp_path / "last.pt", tmp_path / "last.prev.pt"
    if name == "last.prev.pt":
        checkpoint.save_checkpoint(last, {"epoch": 1})
    with pytest.raises(RunError) as unwritten:
        checkpoint.save_checkpoint(last, {"epoch": 2}, previous=previous)
    for caught in (unreadable, unwritten):
        assert f"Move {tmp_path / name} away" in str(caught.value.hint)


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    """What is in the place of the newest is told, and the one before it is used."""
    checkpoint.save_checkpoint(tmp_path / "last.prev.pt", {"step": 7})
    path = tmp_path / "last.pt"
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: os.mkfifo(path), "no regular file"),
        (lambda: path.symlink_to("/dev/zero"), "no regular file"),
        (lambda: path.symlink_to("nowhere"), "no such file"),
        (lambda: path.symlink_to("last.pt"), "symbolic links"),
    ]
    for put, said in cases:
        put()
        state, found, (problem,) = checkpoint.load_last(tmp_path)
        assert (state["step"], found.name) == (7, "last.prev.pt")
        assert said in problem.reason
        path.unlink()


def test_damage_is_noticed_or_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    weights = torch.arange(500.0)
    checkpoint.save_checkpoint(path, {"w": weights, "epoch": 3, "names": ["a", "b"]})
    whole = path.read_bytes()
    for length in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(checkpoint.CheckpointError):
            checkpoint.load_checkpoint(path)
    rng = random.Random(0)
    bits = [rng.randrange(8 * len(whole)) for _ in range(300)]
    # all of what the directory says of the weights: torch's reader takes some on trust
    name = whole.rindex(b"archive/data/0")
    bits += range(8 * (name - 46), 8 * name)
    num_noticed = 0
    for bit in bits:
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            state = checkpoint.load_checkpoint(path)
        except checkpoint.CheckpointError:
            num_noticed += 1
            continue
        assert torch.equal(state["w"], weights)
        assert (state["epoch"], state["names"]) == (3, ["a", "b"])
    assert num_noticed > 150


def test_the_last_whole_checkpoint_is_found(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint in"):
        checkpoint.load_last(tmp_path)
    last, previous = tmp_path / "last.pt", tmp_path / "last.prev.pt"
    for epoch in (1, 2):
        checkpoint.save_checkpoint(last, {"epoch": epoch}, previous=previous)
    state, path, damaged = checkpoint.load_last(tmp_path)
    assert (state["epoch"], path, damaged) == (2, last, [])
    last.unlink()  # between two renames
    assert checkpoint.load_last(tmp_path)[0]["epoch"] == 1
    previous.write_bytes(b"")
    with pytest.raises(UserError, match=r"last\.prev\.pt cannot be used"):
        checkpoint.load_last(tmp_path)


def test_the_writer_writes_the_first_state_at_once_and_then_the_newest_and_training_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write, written = threading.Event(), []

    def slow(path: Path, state: checkpoint.State, *, previous: Path | None = None) -> None:
        may_write.wait(60)
        written.append((path.name, state["epoch"]))
        SAVE(path, state, previous=previous)

    writer = checkpoint.CheckpointWriter(tmp_path)
    writer.offer({"epoch": 1}, best=False)
    wait_until((tmp_path / "last.pt").exists)
    for epoch in (2, 3, 4):
        writer.offer({"epoch": epoch}, best=epoch == 3)
    assert checkpoint.load_checkpoint(tmp_path / "last.pt")["epoch"] == 1
    assert not (tmp_path / "best.pt").exists()
    monkeypatch.setattr(checkpoint, "save_checkpoint", slow)
    monkeypatch.setattr(checkpoint, "_SECONDS_BETWEEN_WRITES", 0.0)
    for epoch in range(5, 50):
        writer.offer({"epoch": epoch}, best=False)  # would hang here
    may_write.set()
    writer.close()
    writer.raise_failure()
    assert checkpoint.load_checkpoint(tmp_path / "best.pt")["epoch"] == 3
    assert written[-1] == ("last.pt", 49)
    assert len(written) <= 3


def test_without_the_best_the_last_is_not_written_and_the_run_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after an error that nobody thought of."""

    def refuse_best(path: Path, state: checkpoint.State, *, previous: Path | None = None) -> None:
        if path.name == "best.pt":
            raise MemoryError("no room for a copy")
        SAVE(path, state, previous=previous)

    monkeypatch.setattr(checkpoint, "save_checkpoint", refuse_best)
    writer = checkpoint.CheckpointWriter(tmp_path)
    writer.offer({"epoch": 1}, best=True)
    writer.close()
    assert not list(tmp_path.iterdir())
    with pytest.raises(RunError, match="MemoryError"):
        writer.raise_failure()


def test_the_last_does_not_speak_of_a_best_that_was_offered_while_another_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[str, int]] = []

    def slow(path: Path, state: checkpoint.State, *, previous: Path | None = None) -> None:
        if not written:
            writer.offer({"epoch": 2}, best=True)
        written.append((path.name, state["epoch"]))
        SAVE(path, state, previous=previous)

    monkeypatch.setattr(checkpoint, "save_checkpoint", slow)
    writer = checkpoint.CheckpointWriter(tmp_path)
    writer.offer({"epoch": 1}, best=True)
    wait_until((tmp_path / "last.pt").exists)
    writer.close()
    assert written == [("best.pt", 1), ("last.pt", 1), ("best.pt", 2), ("last.pt", 2)]


def test_weights_of_another_dtype_are_refused() -> None:
    model = torch.nn.Linear(2, 1)
    weights = {name: weight.long() for name, weight in model.state_dict().items()}
    with pytest.raises(checkpoint.CheckpointError, match=r"weight is \[1, 2\] of torch.int64"):
        checkpoint.load_weights(model, {"model": weights}, "best.pt")
