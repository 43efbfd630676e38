"""Whole runs call collectives as NCCL needs it: in one order, of one shape and type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gnntrain.app import compose_config
from gnntrain.distributed.launch import LaunchPlan
from gnntrain.run import train
from tests.distributed.recording import check, names_of, recorded
from tests.simulated_device import present

KEYS = [
    *("dataset.num_nodes=300", "trainer.epochs=3", "trainer.batch_size=16", "trainer.gpus=0"),
    *("model.hidden_channels=8", "distributed.threads=1", "distributed.num_processes=3"),
    *("logger=[jsonl]", "checkpoint.every_steps=2", "trainer.patience=1"),
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def trained(path: Path, *keys: str) -> dict[str, Any]:
    return train(compose_config([*KEYS, *keys, f"run.dir={path}"]).config)


@pytest.mark.parametrize(
    ("machines", "keys"),
    [
        ((), ()),
        ((), ("model=gat", "evaluation=sampled")),
        ((), ("sampler=full", "model=gcn")),
        ((0, 1, 1), ()),
        ((0, 1, 1), ("distributed.graph=sharded",)),
        ((0, 1, 1), ("distributed.graph=sharded", "evaluation=sampled")),
    ],
)
def test_ranks_call_the_same_collectives_in_one_order(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    machines: tuple[int, ...],
    keys: tuple[str, ...],
) -> None:
    plan = LaunchPlan(3, "cpu", 1, 60, machines)
    monkeypatch.setattr(LaunchPlan, "of", classmethod(lambda *_: plan))
    with recorded(tmp_path / "calls"):
        summary = trained(tmp_path / "run", *keys)
    assert summary["status"] == "completed"
    calls = check(tmp_path / "calls")
    assert sorted(calls) == [0, 1, 2]
    assert {"allreduce", "barrier"} <= set(names_of(calls))


@pytest.mark.parametrize(
    ("machines", "keys"),
    [
        ((), ()),
        ((), ("model=gat", "evaluation=sampled")),
        ((), ("sampler=full", "model=gcn")),
        ((0, 1, 1), ()),
        ((0, 1, 1), ("distributed.graph=sharded",)),
    ],
)
def test_ranks_of_gpus_give_a_group_tensors_of_their_own_gpu(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    machines: tuple[int, ...],
    keys: tuple[str, ...],
) -> None:
    """The groups refuse others, as NCCL's do."""
    plan = LaunchPlan(3, "sim", 1, 60, machines)
    monkeypatch.setattr(LaunchPlan, "of", classmethod(lambda *_: plan))
    monkeypatch.setenv("SIMULATED_GPUS", "2")
    gpus = ("trainer.gpus=2", "distributed.num_processes=1")
    with present(2), recorded(tmp_path / "calls"):
        summary = trained(tmp_path / "run", *gpus, *keys)
    assert summary["status"] == "completed"
    calls = check(tmp_path / "calls")
    assert sorted(calls) == [0, 1, 2]
    assert any(call.device == "sim" for call in calls[0])
