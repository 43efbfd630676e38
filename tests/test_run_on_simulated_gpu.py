"""Whole runs on the simulated GPU: the CPU's numbers, no mix of devices, no wait in a step.

The CPU computes with the same operators (`compute.kernels=torch`), so that runs on both are equal:
the order of every sum is the same. On another GPU it need not be.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import numpy as np
import pytest
import torch

from gnntrain import devices, plugins
from gnntrain.app import compose_config, recompose_config
from gnntrain.data.partitioning.build import partition
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.results.export import export
from gnntrain.results.prediction import predict
from gnntrain.run import evaluate, prepare_store, resume, train
from gnntrain.training.checkpoint import load_checkpoint
from tests.outcomes.test_resume import assert_same_run, disturb, rows
from tests.processes import ROOT, python
from tests.simulated_device import Traffic, present, watched
from tests.simulated_device.module import DeviceModule

COMMON = ["model.hidden_channels=8", "logger=[csv]", "compute.kernels=torch"]
COMMON += ["distributed.threads=1"]
KEYS = ["dataset.num_nodes=300", "dataset.avg_degree=6", "dataset.num_features=12", *COMMON]
KEYS += ["trainer.batch_size=16", "trainer.epochs=1"]
TYPED = ["dataset=synthetic_mag", "dataset.scale=0.0003", "dataset.num_classes=8", "model=rgcn"]
TYPED += ["trainer.batch_size=64", "sampler.fan_outs=[3,2]", "trainer.epochs=1", *COMMON]
LITTLE = 500_000
"""Bytes of memory that a model and a batch fit into, but not all nodes' features and layers."""

STEPS = ("training/trainer.py:_train", "loading/loader.py:_batch")
"""What runs in every training step: in the main thread, and in the loader's."""

MEANT = {"training/trainer.py:_refuse_loss"}
"""What may wait in `STEPS`: once an epoch, after the last step."""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"dataset.store_dir={tmp_path_factory.mktemp('stores')}"


pytestmark = pytest.mark.usefixtures("_usual_kernels")


def on_gpu(run: Path, *keys: str, memory: int = 4 << 30, graph: Sequence[str] = KEYS) -> Traffic:
    """A run that leaves the simulated GPU's generator alone; what it copied and waited for."""
    with present(total_memory=memory), watched() as traffic:
        state = devices.rng_state(torch.device("sim"))
        train(compose_config([*graph, f"run.dir={run}", *keys]))
        assert torch.equal(devices.rng_state(torch.device("sim")), state)
    assert (RunDirectory(run).summary() or {})["status"] == "completed"
    return traffic


def on_cpu(run: Path, *keys: str, graph: Sequence[str] = KEYS) -> None:
    train(compose_config([*graph, f"run.dir={run}", *keys, "trainer.device=cpu"]))


def weights(run: Path, name: str) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_checkpoint(run / "checkpoints" / f"{name}.pt")["model"]
    return found


def assert_no_wait_in_a_step(traffic: Traffic, num_steps: int) -> None:
    """The device is never waited for in a step, and a batch is copied by few copies."""
    waits = {place for function in STEPS for place in traffic.waits_in(function)}
    # Backward runs in a thread of torch's own.
    waits |= {wait.stack[0] for wait in traffic.waits if wait.thread.startswith("Dummy")}
    assert waits <= MEANT
    copies = [copy for function in STEPS for copy in traffic.copies_in(function, "to device")]
    assert not any(copy.is_blocking for copy in copies)
    assert len(copies) <= 6 * num_steps  # by type of numbers; a cache asks twice more


WAYS = [
    "model=gcn model.norm=batch evaluation=sampled trainer.optimizer=sgd trainer.clip_norm=1",
    "model=gat model.heads=2 features.placement=cached features.cache_ratio=0.3 trainer.epochs=2",
    "model=gatv2 model.heads=2 sampler.replace=true dataset.feature_dtype=float16",
    "model=gin model.jk=cat trainer.precision=bf16 trainer.scheduler=cosine",
    "model.aggregator=max features.placement=memmap",
    "sampler=full model=gat model.heads=2",
]
TYPED_WAYS = [
    "model=hgt model.heads=2 evaluation=sampled",
    "model=rgat model.heads=2",
    "model=hetero_sage features.placement=memmap",
    "sampler=full trainer.optimizer=adamw trainer.clip_norm=1 trainer.weight_decay=0.1",
]


@pytest.mark.parametrize("way", [*WAYS, *TYPED_WAYS])
def test_a_gpu_gives_the_cpus_numbers_and_no_step_waits(
    tmp_path: Path, stores: str, way: str
) -> None:
    keys, graph = [stores, *way.split()], TYPED if way in TYPED_WAYS else KEYS
    traffic = on_gpu(tmp_path / "gpu", *keys, graph=graph)
    there = [key for key in keys if "placement" not in key and "cache" not in key]
    on_cpu(tmp_path / "cpu", *there, graph=graph)
    assert_same_run(tmp_path / "gpu", tmp_path / "cpu")
    assert_no_wait_in_a_step(traffic, rows(tmp_path / "gpu")[-1]["step"])


def test_a_gpu_without_streams_and_pinned_memory_gives_them_too(
    tmp_path: Path, stores: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Apple's, whose copies wait."""
    monkeypatch.delattr(DeviceModule, "Stream")
    monkeypatch.setattr(devices, "pins_memory", lambda _: False)
    traffic = on_gpu(tmp_path / "gpu", stores, "features.placement=cached")
    on_cpu(tmp_path / "cpu", stores)
    assert_same_run(tmp_path / "gpu", tmp_path / "cpu")
    steps = [copy for function in STEPS for copy in traffic.copies_in(function, "to device")]
    assert all(copy.is_blocking for copy in steps)


def test_fp16_scales_the_loss_and_the_gradients_of_tables_too(tmp_path: Path, stores: str) -> None:
    """The scaler waits for the device, to know whether a gradient is infinite."""
    # Without a kink: where rounding flips a ReLU, a gradient of 0 becomes another.
    many = "dataset.num_classes=349"  # their gradients are small enough for the first scale
    plain = [stores, many, "trainer.optimizer=sgd", "trainer.lr=1", "model.activation=none"]
    traffic = on_gpu(tmp_path / "gpu", *plain, "trainer.precision=fp16", graph=TYPED)
    assert traffic.waits_in(STEPS[0]) <= MEANT | {"training/update.py:_take_step"}
    on_cpu(tmp_path / "cpu", *plain, graph=TYPED)
    on_cpu(tmp_path / "still", stores, many, "trainer.lr=1e-30", graph=TYPED)
    losses = [[row["train/loss"] for row in rows(tmp_path / name)] for name in ("gpu", "cpu")]
    assert losses[0] == pytest.approx(losses[1], rel=0.01)
    for table in ("author", "institution", "field_of_study"):
        name = f"tables.{table}.weight"
        found, expected, before = (
            weights(tmp_path / run, "last")[name] for run in ("gpu", "cpu", "still")
        )
        moved = (expected - before).norm()
        assert moved > 0
        assert (found - expected).norm() < 0.005 * moved


def test_a_gpu_trains_on_a_graph_in_parts(tmp_path: Path, stores: str) -> None:
    store = prepare_store(compose_config([*TYPED, stores]).dataset).store
    partition(store, 3, tmp_path / "parts", "streaming")
    in_parts = ["distributed.graph=partitioned", f"distributed.parts={tmp_path / 'parts'}"]
    on_gpu(tmp_path / "gpu", stores, *in_parts, graph=TYPED)
    on_cpu(tmp_path / "cpu", stores, graph=TYPED)
    assert_same_run(tmp_path / "gpu", tmp_path / "cpu")


PACKAGE = """
from torch_geometric.nn import GraphSAGE

class Layered(GraphSAGE):
    def inference_layers(self):
        return [lambda x, edge_index: self.convs[0](x, edge_index).relu(), self.convs[1]]

def make(num_inputs, num_outputs, width=4):
    return Layered(num_inputs, width, num_layers=2, out_channels=num_outputs)
"""
MANY = ["dataset.num_nodes=12000", "dataset.avg_degree=2", "dataset.num_features=200"]
MANY += ["dataset.num_train=24"]
MANY += ["trainer.batch_size=8", "evaluation.batch_size=32", "sampler.fan_outs=[3,3]"]


@pytest.mark.parametrize(
    ("given", "memory"),
    [
        ([], 4 << 30),
        (["sampler=full"], 4 << 30),
        pytest.param(MANY, 30 * LITTLE, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_plain_model_of_pyg_does_the_same(
    tmp_path: Path, stores: str, monkeypatch: pytest.MonkeyPatch, given: list[str], memory: int
) -> None:
    """All at once, or where that does not fit by its layers, in batches."""
    (tmp_path / "their_package.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    found = EntryPoints([EntryPoint("theirs", "their_package:make", plugins.MODELS)])
    monkeypatch.setattr(plugins, "entry_points", lambda **wanted: found.select(**wanted))
    keys = [stores, "model=plugin", "model.name=theirs", *given]
    graph = [key for key in KEYS if key != "model.hidden_channels=8"]
    on_gpu(tmp_path / "gpu", *keys, memory=memory, graph=graph)
    on_cpu(tmp_path / "cpu", *keys, graph=graph)
    assert_same_run(tmp_path / "gpu", tmp_path / "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["sage", "gat"])
def test_little_memory_changes_the_places_but_no_number(
    tmp_path: Path, stores: str, model: str
) -> None:
    """Features beyond half of the memory stay on the host, as do the layers of evaluation."""
    keys = [stores, f"model={model}", "model.hidden_channels=32", "trainer.batch_size=8"]
    keys += ["dataset.num_nodes=1000", "dataset.num_features=100", "dataset.num_train=24"]
    keys += ["sampler.fan_outs=[3,3]", "trainer.epochs=1"]
    traffic = on_gpu(tmp_path / "gpu", *keys, memory=LITTLE)
    on_cpu(tmp_path / "cpu", *keys)
    assert_same_run(tmp_path / "gpu", tmp_path / "cpu")
    assert_no_wait_in_a_step(traffic, rows(tmp_path / "gpu")[-1]["step"])


def test_a_resumed_run_equals_an_uninterrupted_one(
    tmp_path: Path, stores: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[str] = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", chosen.append)
    keys = [stores, "model=mlp", "model.dropout=0.5", "checkpoint.every_steps=1"]
    keys += ["trainer.epochs=2", "trainer.matmul_precision=high"]
    on_gpu(tmp_path / "whole", *keys)
    run = tmp_path / "run"
    with monkeypatch.context() as patch, present():
        disturb(patch, {6}, ValueError("broken"))
        config = compose_config([*KEYS, f"run.dir={run}", *keys])
        with pytest.raises(ValueError, match="broken"):
            train(config)
    with present():
        resume(run, recompose_config(RunDirectory.open(run).config(), []))
    assert_same_run(run, tmp_path / "whole")
    assert chosen == ["high"] * 3


def test_it_goes_on_and_predicts_on_the_other_device(tmp_path: Path, stores: str) -> None:
    run = tmp_path / "run"
    plain = "model.dropout=0"  # each device has a generator of its own
    on_gpu(run, stores, plain)
    on_cpu(tmp_path / "whole", stores, plain, "trainer.epochs=2")
    longer = ["trainer.epochs=2", "trainer.device=cpu"]
    resume(run, recompose_config(RunDirectory.open(run).config(), longer), overrides=longer)
    assert_same_run(run, tmp_path / "whole")
    metrics = evaluate(run)["metrics"]
    with present():
        assert evaluate(run)["metrics"] == metrics


@pytest.mark.parametrize(
    ("evaluation", "placement"),
    [("layerwise", "pinned"), ("sampled", "sharded"), ("sampled", "wholegraph")],
)
def test_what_only_other_gpus_can_do_does_not_hinder_evaluation(
    tmp_path: Path, stores: str, evaluation: str, placement: str
) -> None:
    """As for a run on four of NVIDIA's GPUs."""
    run = tmp_path / "run"
    on_cpu(run, stores, f"evaluation={evaluation}")
    metrics = evaluate(run)["metrics"]
    theirs = RunDirectory.open(run).config()
    theirs["trainer"] |= {"device": "cuda", "gpus": 4}
    theirs["compute"]["kernels"] = "triton"
    theirs["sampler"] |= {"backend": "triton", "topology": "pinned"}
    theirs["features"]["placement"] = placement
    (run / "config.yaml").write_text(json.dumps(theirs))
    assert evaluate(run)["metrics"] == metrics
    with present():
        assert evaluate(run)["metrics"] == metrics


@pytest.mark.parametrize(("graph", "model"), [(KEYS, "gat"), (TYPED, "rgcn")])
def test_predictions_embeddings_and_exported_weights_are_the_cpus(
    tmp_path: Path, stores: str, graph: list[str], model: str
) -> None:
    run = tmp_path / "run"
    on_gpu(run, stores, f"model={model}", graph=graph)
    for what, memory in (("logits", LITTLE), ("embeddings", 4 << 30)):
        here, there = tmp_path / f"cpu-{what}.npy", tmp_path / f"gpu-{what}.npy"
        predict(run, here, what=what)
        with present(total_memory=memory), watched() as traffic:
            predict(run, there, what=what)
        assert traffic.copies
        np.testing.assert_allclose(np.load(there), np.load(here), rtol=1e-5, atol=1e-6)
    with present():
        done = export(run)
    exported = torch.load(done.path / "model.pt", weights_only=True)
    assert {value.device.type for value in exported.values()} == {"cpu"}
    if model == "gat":  # rows of tables belong to the nodes of this graph
        both = exported, weights(run, "best")
        numbers = [torch.cat([weight.flatten() for weight in of.values()]) for of in both]
        assert torch.equal(*(of.sort().values for of in numbers))  # PyG's names are other ones


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with two simulated GPUs: torch loads the device as a plug-in."""
    site = tmp_path / "site"
    info = site / "simulated-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: simulated\nVersion: 1.0\n")
    plugin = "[torch.backends]\nsim = tests.simulated_device:register_present\n"
    (info / "entry_points.txt").write_text(plugin)
    paths = os.pathsep.join([str(site), str(ROOT)])
    return {"PYTHONPATH": paths, "SIMULATED_GPUS": "2", "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
def test_the_command_trains_on_two_gpus_evaluates_and_plans(
    tmp_path: Path, stores: str, machine: dict[str, str]
) -> None:
    def command(*words: str) -> str:
        done = python("-m", "gnntrain", *words, env=machine)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "2 GPU ranks" in command(*KEYS, stores, f"run.dir={tmp_path / 'gpu'}")
    on_cpu(tmp_path / "cpu", stores, "distributed.num_processes=2")
    assert_same_run(tmp_path / "gpu", tmp_path / "cpu")
    command("evaluate", str(tmp_path / "gpu"))
    command("plan", *KEYS, stores, "trainer.gpus=1")
    command("doctor")
