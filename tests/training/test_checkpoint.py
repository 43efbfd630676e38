from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

from gnntrain.errors import RunError, UserError
from gnntrain.training import checkpoint
from gnntrain.training.checkpoint import CheckpointWriter, load_checkpoint, save_checkpoint


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, {"model": {"w": torch.arange(3)}, "epoch": 4, "config": {"a": [1, "b"]}})
    state = load_checkpoint(path)
    assert state["model"]["w"].tolist() == [0, 1, 2]
    assert state["epoch"] == 4
    assert state["config"] == {"a": [1, "b"]}
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]


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


class _Malicious:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("code ran",)


def test_what_is_no_checkpoint_is_refused_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "last.pt"
    with pytest.raises(UserError, match="no checkpoint"):
        load_checkpoint(path)
    torch.save({"model": _Malicious()}, path)
    with pytest.raises(UserError, match="cannot be read"):
        load_checkpoint(path)
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(UserError):
        load_checkpoint(path)
    assert "code ran" not in capsys.readouterr().out
    torch.save({"format_version": 99}, path)
    with pytest.raises(UserError, match="version 99"):
        load_checkpoint(path)


def test_a_truncated_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, {"w": torch.zeros(1000)})
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match="cannot be read"):
        load_checkpoint(path)


def test_the_writer_writes_the_first_state_at_once_and_then_the_newest(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path)
    for epoch in (1, 2, 3):
        writer.offer({"epoch": epoch}, best=epoch == 2)
        assert load_checkpoint(tmp_path / "last.pt")["epoch"] == 1
    assert not (tmp_path / "best.pt").exists()
    writer.flush()
    assert load_checkpoint(tmp_path / "best.pt")["epoch"] == 2
    assert load_checkpoint(tmp_path / "last.pt")["epoch"] == 3


def test_the_writer_writes_by_itself_once_in_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "_SECONDS_BETWEEN_WRITES", 0.0)
    writer = CheckpointWriter(tmp_path)
    for epoch in (1, 2):
        writer.offer({"epoch": epoch}, best=False)
    assert load_checkpoint(tmp_path / "last.pt")["epoch"] == 2
