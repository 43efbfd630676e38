"""What is said where a run does not fit, and which key it names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from gnntrain.planning.fitting import judge
from gnntrain.planning.measured import BatchSize, EvaluationCost, RankMeasure
from gnntrain.planning.memory import GPUMemory, HostMemory, gpu_memory, host_memory, layer_matrices
from gnntrain.reporting.text_report import Check

from gnntrain.app import compose_config
from gnntrain.config import Config
from gnntrain.data.store import StoredGraph
from gnntrain.planning import fitting, memory
from gnntrain.run_store import prepare_store

MIB, GIB = 2**20, 2**30
GPU = GPUMemory(0, 0, 0, 0)


def measure(**changes: object) -> RankMeasure:
    plain: dict[str, object] = {
        "num_parameters": 1000,
        "steps_per_epoch": 10,
        "step_seconds": 0.1,
        "num_timed": 4,
        "batches": (BatchSize(100, 400, (200, 100), (600, 300), 800),),
        "own_peak": 700 * MIB,
        "own_after": 400 * MIB,
        "library_bytes": 200 * MIB,
        "store_bytes": 100 * MIB,
        "gpu_peak": 0,
        "evaluation": EvaluationCost((1.0, 1.0, 0.1), 10 * MIB, (0, 8)),
    }
    return RankMeasure(**(plain | changes))  # type: ignore[arg-type]  # as above


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StoredGraph:
    folder = tmp_path_factory.mktemp("stores")
    keys = ["dataset.num_nodes=1000", f"dataset.store_dir={folder}"]
    return prepare_store(compose_config(keys).config.dataset).store


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A machine of any size."""
    here = SimpleNamespace(available=8 * GIB, total=16 * GIB, shm=8 * GIB, disk=100 * GIB)

    def usage(path: object) -> SimpleNamespace:
        free = here.shm if str(path) == "/dev/shm" else here.disk
        return SimpleNamespace(free=free, total=2 * free, used=free)

    for module in (fitting, memory):
        monkeypatch.setattr(module.psutil, "virtual_memory", lambda: here)
        monkeypatch.setattr(module.shutil, "disk_usage", usage)
    return here


def judged(
    store: StoredGraph, *overrides: str, ranks: int = 1, **changes: object
) -> dict[str, Check]:
    config = compose_config(["trainer.gpus=0", *overrides]).config
    measures = [measure(**changes)] * ranks
    moments = layer_matrices(config, store, measures[0].evaluation.widths, ranks)
    host = host_memory(config, store, measures, moments)
    return {found.name: found for found in judge(config, store, measures, host, GPU, moments)}


def test_a_run_that_fits_needs_no_hint(store: StoredGraph, machine: SimpleNamespace) -> None:
    found = judged(store)
    assert {one.judgement for one in found.values()} == {"ok"}
    assert not any(one.hint for one in found.values())
    assert machine.available == 8 * GIB


def test_steps_that_are_too_large_name_a_batch_size_that_fits(
    store: StoredGraph, machine: SimpleNamespace
) -> None:
    machine.available = 200 * MIB  # and the 400 MiB that this process holds already
    memory_found = judged(store)["memory"]
    assert memory_found.judgement == "problem"
    assert memory_found.hint == "Set trainer.batch_size=256."


def test_a_full_graph_step_that_is_too_large_names_the_sampler(
    store: StoredGraph, machine: SimpleNamespace
) -> None:
    machine.available = 200 * MIB
    assert "sampler=neighbor" in judged(store, "sampler=full")["memory"].hint


def test_too_many_ranks_name_a_number_that_fits(
    store: StoredGraph, machine: SimpleNamespace
) -> None:
    machine.available = 2 * GIB
    found = judged(store, "distributed.num_processes=4", ranks=4, own_peak=710 * MIB,
                   own_after=700 * MIB)  # fmt: skip
    assert found["memory"].judgement == "problem"
    assert found["memory"].hint == "Set distributed.num_processes=2."


def test_layers_that_are_too_large_name_a_limit_beyond_which_they_go_to_disk(
    store: StoredGraph, machine: SimpleNamespace
) -> None:
    wide = ["model.hidden_channels=1000000", "evaluation.memory_limit=100"]
    machine.available = 2 * GIB
    found = judged(store, *wide)
    assert found["memory"].judgement == "problem"
    key, value = found["memory"].hint.split()[1].rstrip(":").split("=")
    assert key == "evaluation.memory_limit"
    again = judged(store, wide[0], f"{key}={value}")
    assert again["memory"].judgement == "ok"
    assert "during evaluation" in again["disk"].text


def test_a_disk_that_is_too_small_names_the_run_directory(
    store: StoredGraph, machine: SimpleNamespace
) -> None:
    machine.disk = 100
    found = judged(store)["disk"]
    assert found.judgement == "problem"
    assert "run.dir=DIR" in found.hint
    assert "evaluation=sampled" not in found.hint


def test_shared_memory_that_is_too_small_says_how_much_would_do(
    store: StoredGraph, machine: SimpleNamespace
) -> None:
    wide = "model.hidden_channels=1000000"
    assert judged(store, wide, ranks=2)["/dev/shm"].judgement == "ok"
    machine.shm = 64 * MIB
    found = judged(store, wide, ranks=2)["/dev/shm"]
    assert found.judgement == "note"
    assert "7.45 GiB of shared memory" in found.hint
    assert "/dev/shm" not in judged(store, wide)


def test_a_store_beyond_the_page_cache_is_noted(
    store: StoredGraph, machine: SimpleNamespace
) -> None:
    found = judged(store, store_bytes=17 * GIB)["page cache"]
    assert found.judgement == "note"
    assert "dataset.feature_dtype=bfloat16" in found.hint
    assert machine.total == 16 * GIB


@pytest.mark.parametrize(("batch", "evaluation", "key"), [(9, 1, "batch_size"), (1, 9, "sampled")])
def test_a_gpu_that_is_too_small_names_the_key(
    batch: int,
    evaluation: int,
    key: str,
    store: StoredGraph,
    machine: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda _: (8 * GIB, 8 * GIB))
    gpu = GPUMemory(0, batch * GIB, evaluation * GIB, 9 * GIB)
    host = HostMemory(0, 0, 0, 0, 0, 0, 0, 0, 0)
    found = judge(Config(), store, [measure()], host, gpu, [])[-1]
    assert found.judgement == "problem"
    assert key in found.hint
    gpu = GPUMemory(0, GIB, GIB, GIB)
    assert judge(Config(), store, [measure()], host, gpu, [])[-1].judgement == "ok"
    assert machine


def test_memory_is_the_worst_of_training_and_evaluation(
    store: StoredGraph, machine: SimpleNamespace
) -> None:
    config = compose_config(["model.hidden_channels=100000"]).config
    moments = layer_matrices(config, store, (0, 8), 1)
    layers = 4 * 1000 * (100_000 + 8 + 8)
    host = host_memory(config, store, [measure()], moments)
    assert host.training == 700 * MIB + 12 * 1000
    assert host.evaluation == 400 * MIB + 10 * MIB + layers
    assert host.needed == max(host.training, host.evaluation)
    assert host.peak_rss == 200 * MIB + host.evaluation + 100 * MIB
    assert machine


def test_what_torch_measured_on_a_gpu_counts_more_than_the_formula(store: StoredGraph) -> None:
    estimate = gpu_memory(Config(), store, measure(), [])
    measured = gpu_memory(Config(), store, measure(gpu_peak=3 * GIB), [])
    assert estimate.total < GIB
    assert measured.total - estimate.total > 2 * GIB


def test_paths_are_looked_at_where_they_will_be(tmp_path: Path, store: StoredGraph) -> None:
    found = judged(store, f"run.dir={tmp_path}/not/yet")
    assert found["disk"].judgement == "ok"
    assert list(tmp_path.iterdir()) == []
