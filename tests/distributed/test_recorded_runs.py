"""Whole runs call collectives as NCCL needs it: in one order, of one shape and type."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from gnntrain.app import compose_config
from gnntrain.distributed.launch import LaunchPlan
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.run import resume, train
from tests.distributed.recording import Call, check, names_of, recorded
from tests.simulated_device import present

pytestmark = pytest.mark.usefixtures("here")
KEYS = [
    *("dataset.num_nodes=300", "trainer.epochs=3", "trainer.batch_size=16", "trainer.gpus=0"),
    *("model.hidden_channels=8", "distributed.threads=1", "distributed.num_processes=3"),
    *("logger=[jsonl]", "checkpoint.every_steps=2", "trainer.patience=1"),
]


def trained(path: Path, *keys: str) -> dict[str, Any]:
    return train(compose_config([*KEYS, *keys, f"run.dir={path}"]))


MACHINES = (0, 1, 1)
SHARDED = ("distributed.graph=sharded",)
CASES: list[tuple[str, tuple[int, ...], tuple[str, ...]]] = [
    (device, machines, keys)
    for device in ("cpu", "sim")
    for machines, keys in (
        (MACHINES, ()),
        ((), ("model=gat", "evaluation=sampled")),
        ((), ("sampler=full", "model=gcn")),
        (MACHINES, SHARDED),
        *([(MACHINES, (*SHARDED, "evaluation=sampled"))] if device == "cpu" else []),
    )
]
USUAL = CASES[1:6]  # the last of them, on simulated GPUs, as the first
SLOW = [pytest.param(*case, marks=pytest.mark.slow) for case in CASES if case not in USUAL]


@pytest.mark.parametrize(("device", "machines", "keys"), [*USUAL, *SLOW])
def test_ranks_call_the_same_collectives_in_one_order(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    machines: tuple[int, ...],
    keys: tuple[str, ...],
) -> None:
    """Groups of GPUs refuse tensors of other devices, as NCCL's do."""
    plan = LaunchPlan(3, device, 1, 60, machines)
    monkeypatch.setattr(LaunchPlan, "of", classmethod(lambda *_: plan))
    monkeypatch.setenv("SIMULATED_GPUS", "2")
    if device == "sim":
        keys = ("trainer.gpus=2", "distributed.num_processes=1", *keys)
    with present(2) if device == "sim" else nullcontext(), recorded(tmp_path / "calls"):
        summary = trained(tmp_path / "run", *keys)
    assert summary["status"] == "completed"
    calls = check(tmp_path / "calls")
    assert sorted(calls) == [0, 1, 2]
    assert {"allreduce", "barrier"} <= set(names_of(calls))
    assert any(call.device == device for call in calls[0])


def test_a_run_that_goes_on_calls_them_in_one_order(tmp_path: Path) -> None:
    trained(tmp_path / "run", "trainer.max_steps=3")
    keys = RunDirectory.open(tmp_path / "run").config()
    keys["trainer"]["max_steps"] = None
    (tmp_path / "run" / "config.yaml").write_text(json.dumps(keys))  # as if it had been killed
    with recorded(tmp_path / "calls"):
        resume(tmp_path / "run")
    calls = check(tmp_path / "calls")
    assert "broadcast" in names_of(calls)


ROW = ((8,), "float32")
SUM = Call((0, 1, 2), "allreduce", (ROW,), -1, "sim", "MainThread")
OF_MACHINE = SUM._replace(group=(1, 2))
SENT = SUM._replace(name="send", peer=1)


@pytest.mark.parametrize(
    "calls",
    [
        [[SUM], [SUM], [SUM, SUM]],
        [[SUM], [SUM], [SUM._replace(tensors=(((9,), "float32"),))]],
        [[SUM], [SUM], [SUM._replace(tensors=(((8,), "float64"),))]],
        [[SUM], [SUM], [SUM._replace(name="broadcast", peer=0)]],
        [[SUM], [SUM, OF_MACHINE], [OF_MACHINE, SUM]],  # ranks 1 and 2 wait for each other
        [[SUM._replace(tensors=(((8,), "complex64"),))] * 1] * 3,
        [[SUM._replace(thread="loader")]] * 3,
        [[SENT], [], []],
        [[SENT], [SENT._replace(name="recv", peer=0, tensors=(((9,), "float32"),))], []],
    ],
)
def test_what_nccl_does_not_forgive_is_found(tmp_path: Path, calls: list[list[Call]]) -> None:
    for rank, mine in enumerate(calls):
        (tmp_path / f"{rank}.jsonl").write_text("\n".join(map(json.dumps, mine)))
    with pytest.raises(AssertionError):
        check(tmp_path)
