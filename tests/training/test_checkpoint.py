from __future__ import annotations

import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gnntrain.errors import RunError, UserError
from gnntrain.training.checkpoint import (
    CheckpointError,
    epoch_of,
    load_checkpoint,
    load_last,
    load_weights,
    save_checkpoint,
)


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, {"model": {"w": torch.arange(3)}, "epoch": 4, "config": {"a": [1, "b"]}})
    state = load_checkpoint(path)
    assert state["model"]["w"].tolist() == [0, 1, 2]
    assert state["epoch"] == 4
    assert state["config"] == {"a": [1, "b"]}
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]


def test_the_previous_checkpoint_is_kept_beside_the_new_one(tmp_path: Path) -> None:
    last, previous = tmp_path / "last.pt", tmp_path / "last.prev.pt"
    for epoch in (1, 2, 3):
        save_checkpoint(last, {"epoch": epoch}, previous=previous)
    assert (load_checkpoint(previous)["epoch"], load_checkpoint(last)["epoch"]) == (2, 3)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_failed_write_leaves_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, {"epoch": 1})

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(RunError, match="No space left"):
        save_checkpoint(path, {"epoch": 2})
    assert load_checkpoint(path)["epoch"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]


def test_what_was_written_is_read_again_before_it_takes_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, {"w": torch.ones(100)})
    save = torch.save

    def bad_disk(state: object, file: Any) -> None:
        save(state, file)
        file.seek(700)
        file.write(b"\0" * 64)

    monkeypatch.setattr(torch, "save", bad_disk)
    with pytest.raises(RunError, match="could not be written"):
        save_checkpoint(path, {"w": torch.ones(100)}, previous=tmp_path / "last.prev.pt")
    assert load_checkpoint(path)["w"].sum() == 100
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]


class _Malicious:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("code ran",)


def test_a_pickle_with_code_in_it_is_refused_in_our_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "last.pt"
    torch.save({"format_version": 2, "model": _Malicious()}, path)
    with pytest.raises(CheckpointError, match="could run code") as caught:
        load_checkpoint(path)
    assert "weights_only" not in str(caught.value)
    assert "code ran" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["last.pt", "last.prev.pt"])
def test_a_folder_in_a_checkpoints_place_is_to_be_moved_away(tmp_path: Path, name: str) -> None:
    last, previous = tmp_path / "last.pt", tmp_path / "last.prev.pt"
    (tmp_path / name).mkdir()
    (tmp_path / name / "mine.txt").write_text("kept")
    with pytest.raises(UserError, match="folder") as unreadable:
        load_last(tmp_path)
    assert f"Move {tmp_path / name} away" in str(unreadable.value.hint)
    if name == "last.prev.pt":
        save_checkpoint(last, {"epoch": 1})
    with pytest.raises(RunError) as unwritten:
        save_checkpoint(last, {"epoch": 2}, previous=previous)
    assert f"Move {tmp_path / name} away" in str(unwritten.value.hint)
    assert (tmp_path / name / "mine.txt").read_text() == "kept"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (pickle.dumps({"a": 1}), "no checkpoint"),
        (pickle.dumps(_Malicious()), "no checkpoint"),
        (b"", "no checkpoint"),
        (b"PK\x03\x04" + b"x" * 100, "no checkpoint"),
    ],
)
def test_what_is_no_checkpoint_is_refused_with_a_sentence(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "last.pt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=said):
        load_checkpoint(path)


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    """What is in the place of the newest is told, and the one before it is used."""
    save_checkpoint(tmp_path / "last.prev.pt", {"step": 7})
    path = tmp_path / "last.pt"
    cases: list[tuple[Callable[[], object], str]] = [
        (path.mkdir, "a folder"),
        (lambda: os.mkfifo(path), "no regular file"),
        (lambda: path.symlink_to("/dev/zero"), "no regular file"),
        (lambda: path.symlink_to("nowhere"), "no such file"),
        (lambda: path.symlink_to("last.pt"), "symbolic links"),
    ]
    for put, said in cases:
        put()
        state, found, (problem,) = load_last(tmp_path)
        assert (state["step"], found.name) == (7, "last.prev.pt")
        assert said in problem.reason
        path.rmdir() if path.is_dir() else path.unlink()


def test_checkpoints_of_others_and_of_other_versions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    with pytest.raises(CheckpointError, match="no such file"):
        load_checkpoint(path)
    for foreign in ({"state_dict": {"w": torch.ones(1)}}, [1, 2], torch.ones(2)):
        torch.save(foreign, path)
        with pytest.raises(CheckpointError, match="gnntrain did not write it"):
            load_checkpoint(path)
    torch.save({"format_version": 99}, path)
    with pytest.raises(CheckpointError, match="version 99"):
        load_checkpoint(path)


def test_a_truncated_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, {"w": torch.zeros(1000)})
    whole = path.read_bytes()
    for length in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            load_checkpoint(path)


def test_a_flipped_bit_is_noticed_or_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    weights = torch.arange(500.0)
    save_checkpoint(path, {"w": weights, "epoch": 3, "names": ["a", "b"]})
    whole = path.read_bytes()
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
            state = load_checkpoint(path)
        except CheckpointError:
            num_noticed += 1
            continue
        assert torch.equal(state["w"], weights)
        assert (state["epoch"], state["names"]) == (3, ["a", "b"])
    assert num_noticed > 150


def test_the_last_whole_checkpoint_is_found(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint in"):
        load_last(tmp_path)
    last, previous = tmp_path / "last.pt", tmp_path / "last.prev.pt"
    for epoch in (1, 2):
        save_checkpoint(last, {"epoch": epoch}, previous=previous)
    state, path, damaged = load_last(tmp_path)
    assert (state["epoch"], path, damaged) == (2, last, [])
    last.write_bytes(last.read_bytes()[:-50])
    state, path, damaged = load_last(tmp_path)
    assert (state["epoch"], path) == (1, previous)
    assert "last.pt" in damaged[0].message
    last.unlink()  # between two renames
    assert load_last(tmp_path)[0]["epoch"] == 1
    previous.write_bytes(b"")
    with pytest.raises(UserError, match=r"last\.prev\.pt cannot be used"):
        load_last(tmp_path)


def test_a_checkpoint_that_does_not_say_its_epoch_is_refused(tmp_path: Path) -> None:
    assert epoch_of({"epoch": 3}, tmp_path) == 3
    for state in ({}, {"epoch": "3"}, {"epoch": torch.ones(2)}):
        with pytest.raises(CheckpointError, match="of which epoch"):
            epoch_of(state, tmp_path)


def test_weights_of_another_kind_are_refused() -> None:
    model = torch.nn.Linear(2, 1)
    weights = {name: weight.long() for name, weight in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"weight is \[1, 2\] of torch.int64"):
        load_weights(model, {"model": weights}, "best.pt")


@pytest.mark.parametrize("version", [torch.ones(2), "2", None])
def test_a_format_version_that_is_no_number_is_refused(tmp_path: Path, version: Any) -> None:
    torch.save({"format_version": version}, tmp_path / "last.pt")
    with pytest.raises(CheckpointError, match="gnntrain did not write it"):
        load_checkpoint(tmp_path / "last.pt")
