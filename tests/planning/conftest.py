"""A small graph to plan for."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnntrain.planning import dry_run


@pytest.fixture(scope="module")
def store_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


@pytest.fixture
def small(tmp_path: Path, store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of a small graph in a folder of its own, and few steps to time."""
    monkeypatch.setattr(dry_run, "_MOST", 4)
    monkeypatch.chdir(tmp_path)
    return [
        "dataset.num_nodes=400",
        "dataset.num_train=100",
        f"dataset.store_dir={store_dir}",
        "model.hidden_channels=16",
        "trainer.batch_size=40",
        "trainer.gpus=0",
        "distributed.threads=1",
    ]
