"""What kinds of devices differ in, on devices of other kinds than this machine's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gnntrain import devices
from gnntrain.app import compose_config
from gnntrain.run import evaluate, train
from gnntrain.training.memory import lacking_memory
from tests.hills import install_hills
from tests.simulated_device import SimulatedTensor, present

KEYS = [
    *("model.hidden_channels=8", "trainer.batch_size=32", "trainer.epochs=2"),
    *("compute.kernels=torch", "distributed.threads=1", "trainer.matmul_precision=high"),
]
SYNTHETIC = "dataset.num_nodes=300 dataset.num_features=12 dataset.avg_degree=6"


def test_a_machine_has_no_gpu_or_those_of_one_kind() -> None:
    assert devices.gpus_here() == {}
    with present(2):
        assert devices.gpus_here() == {"sim": 2}


def test_cuda_is_not_started_to_count_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "init", lambda: pytest.fail("CUDA was started"))
    assert devices.gpus_here() == {"cuda": 4}


def test_the_peak_of_memory_begins_anew() -> None:
    with present():
        device = torch.device("sim", 0)
        rows = torch.zeros(1000, device=device)
        free, peak = devices.free_memory(device), devices.peak_memory(device)
        assert peak >= 4000
        del rows
        assert devices.free_memory(device) >= free + 4000
        devices.release_memory()
        assert devices.peak_memory(device) <= peak - 4000


def test_the_memory_of_a_cuda_graph_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = [(0, (0, 0), 100), (0, (0, 1), 60), (1, (0, 2), 500)]  # GPU, pool, size
    keys = ("device", "segment_pool_id", "total_size")
    segments = [dict(zip(keys, pool, strict=True)) | {"allocated_size": 20} for pool in pools]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 160)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 40)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1000, 2000))
    assert devices.free_memory(torch.device("cuda", 0)) == 1080


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "GPU memory"),
        (RuntimeError("MPS backend out of memory (MPS allocated: 18 GB)"), "GPU memory"),
        (RuntimeError("HIP error: out of memory"), "GPU memory"),
        (
            RuntimeError("UR backend failed: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"),
            "GPU memory",
        ),
        (RuntimeError("shapes do not match"), None),
    ],
    ids=str,
)
def test_every_kind_of_gpu_says_in_its_way_that_memory_ran_out(
    error: Exception, memory: str | None
) -> None:
    assert lacking_memory(error) == memory


@pytest.fixture
def _no_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated GPU refuses float64, as Apple's do."""
    new = SimulatedTensor.__new__

    def made(*args: Any) -> SimulatedTensor:
        out = new(*args)
        if out.dtype == torch.float64:
            raise TypeError("The device has no float64.")
        return out

    def float_type(device: torch.device) -> torch.dtype:
        return torch.float32 if device.type == "sim" else torch.float64

    monkeypatch.setattr(SimulatedTensor, "__new__", made)
    for user in ("tasks.node_regression", "tasks.base"):
        monkeypatch.setattr(f"gnntrain.{user}.float_type", float_type)


@pytest.mark.usefixtures("_no_float64", "_usual_kernels")
@pytest.mark.parametrize(
    "way",
    [
        f"{SYNTHETIC} model=sage trainer.clip_norm=1 evaluation=sampled",
        f"{SYNTHETIC} model=gat model.heads=2 sampler=full",
        "dataset=hills task.type=node_regression",
        "dataset=hills task.type=node_regression evaluation=sampled task.loss=huber",
    ],
)
def test_a_gpu_without_float64_trains_and_evaluates(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_hills(tmp_path / "site", monkeypatch, "hills_without_float64")
    places = [f"dataset.store_dir={tmp_path / 'stores'}", f"run.dir={tmp_path / 'run'}"]
    with present():
        summary = train(compose_config([*KEYS, *places, *way.split()]))
        found = evaluate(tmp_path / "run")["metrics"]
    assert summary["peak_gpu_bytes"] > 0
    assert torch.get_float32_matmul_precision() == "highest"  # the caller's, not the run's
    assert found["test"] == pytest.approx(summary["test"], rel=1e-4)
