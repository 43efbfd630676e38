"""Whole runs on typed graphs on the simulated GPU: the CPU's numbers, and no wait in a step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gnntrain.app import compose_config
from gnntrain.compute.selection import CPU_KERNELS, select
from gnntrain.data.partitioning.build import partition
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.results.prediction import predict
from gnntrain.run import prepare_store, train
from tests.simulated_device import Traffic, present, watched
from tests.test_run_on_simulated_gpu import (
    assert_no_wait_in_a_step,
    assert_same_run,
    rows,
    weights,
)

KEYS = [
    *("dataset=synthetic_mag", "dataset.scale=0.001", "model=rgcn", "model.hidden_channels=8"),
    *("trainer.batch_size=256", "trainer.epochs=2", "sampler.fan_outs=[3,2]"),
    *("compute.kernels=torch", "distributed.threads=1"),
]
LITTLE = 500_000
"""Bytes of memory that a model and a batch fit into, but not all nodes' features and layers."""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"dataset.store_dir={tmp_path_factory.mktemp('stores')}"


@pytest.fixture(autouse=True)
def _usual_kernels() -> Iterator[None]:
    yield
    select(CPU_KERNELS, "cpu")


def on_gpu(run: Path, *keys: str, memory: int = 4 << 30) -> Traffic:
    with present(total_memory=memory), watched() as traffic:
        train(compose_config([*KEYS, f"run.dir={run}", *keys]).config)
    assert (RunDirectory(run).summary() or {})["status"] == "completed"
    assert not traffic.races
    return traffic


def on_cpu(run: Path, *keys: str) -> None:
    train(compose_config([*KEYS, f"run.dir={run}", *keys, "trainer.device=cpu"]).config)


WAYS = [
    "model=hgt model.heads=2 evaluation=sampled",
    "model=rgat model.heads=2",
    "model=hetero_sage features.placement=memmap",
    "sampler=full",
    "trainer.optimizer=adamw trainer.clip_norm=1 trainer.weight_decay=0.1",
]


@pytest.mark.parametrize("way", WAYS)
def test_a_gpu_gives_the_cpus_numbers_and_no_step_waits(
    tmp_path: Path, stores: str, way: str
) -> None:
    keys = [stores, *way.split()]
    traffic = on_gpu(tmp_path / "gpu", *keys)
    on_cpu(tmp_path / "cpu", *[key for key in keys if "placement" not in key])
    assert_same_run(tmp_path / "gpu", tmp_path / "cpu")
    assert_no_wait_in_a_step(traffic, rows(tmp_path / "gpu")[-1]["step"])


def test_fp16_scales_the_gradients_of_tables_too(tmp_path: Path, stores: str) -> None:
    # Without a kink: where rounding flips a ReLU, a gradient of 0 becomes another.
    plain = [stores, "trainer.optimizer=sgd", "trainer.lr=1", "model.activation=none"]
    on_gpu(tmp_path / "gpu", *plain, "trainer.precision=fp16")
    on_cpu(tmp_path / "cpu", *plain)
    on_cpu(tmp_path / "still", stores, "trainer.lr=1e-30")
    for table in ("author", "institution", "field_of_study"):
        name = f"tables.{table}.weight"
        found, expected, before = (
            weights(tmp_path / run, "last")[name] for run in ("gpu", "cpu", "still")
        )
        moved = (expected - before).norm()
        assert moved > 0
        assert (found - expected).norm() < 0.005 * moved


@pytest.mark.parametrize("memory", [4 << 30, LITTLE])
def test_predictions_and_embeddings_are_the_cpus(tmp_path: Path, stores: str, memory: int) -> None:
    on_gpu(tmp_path / "run", stores)
    for what in ("logits", "embeddings"):
        with present(total_memory=memory):
            predict(tmp_path / "run", tmp_path / f"gpu-{what}.npy", what=what)
        predict(tmp_path / "run", tmp_path / f"cpu-{what}.npy", what=what)
        found, expected = (np.load(tmp_path / f"{name}-{what}.npy") for name in ("gpu", "cpu"))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_gpu_trains_on_a_graph_in_parts(tmp_path: Path, stores: str) -> None:
    store = prepare_store(compose_config([*KEYS, stores]).config.dataset).store
    partition(store, 3, tmp_path / "parts", "streaming")
    in_parts = ["distributed.graph=partitioned", f"distributed.parts={tmp_path / 'parts'}"]
    on_gpu(tmp_path / "gpu", stores, *in_parts)
    on_cpu(tmp_path / "cpu", stores)
    assert_same_run(tmp_path / "gpu", tmp_path / "cpu")
