"""Who computes the operators is selected by kind of device; what a model learns is the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func

from gnntrain.compute.selection import CPU_KERNELS, SAMPLER, KernelChoice, select
from gnntrain.config import from_dict
from gnntrain.data.store import StoredGraph
from gnntrain.models.dropout import dropout
from tests.graphs import random_graph, stored
from tests.pyg_backends import use_backend
from tests.trainers import trainer_of

TORCH = KernelChoice("torch")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    select(CPU_KERNELS, "cpu")


def test_a_kernel_that_is_replaced_is_counted_on_nowhere() -> None:
    every = KernelChoice("triton")
    assert every.samples_on_gpu
    assert every.reads_host
    assert not KernelChoice("triton", {SAMPLER: "hangs"}).samples_on_gpu
    for name in ("gather", "aggregate", "aggregate_max", "aggregate_linear", "host memory"):
        assert not KernelChoice("triton", {name: "wrong"}).reads_host
    assert KernelChoice("triton", {"edge_softmax": "wrong"}).reads_host
    for choice in (CPU_KERNELS, TORCH):
        assert not choice.samples_on_gpu
        assert not choice.reads_host


def test_compiled_dropout_follows_the_selection() -> None:
    """Torch keeps compiled code, in the process and on the disk."""
    compiled_codes: list[str] = []

    def kept(graph: torch.fx.GraphModule, _: object) -> Any:
        compiled_codes.append(graph.code)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=kept, bw_compiler=lambda graph, _: make_boxed_func(graph))
    compiled = torch.compile(lambda x: dropout(x, 0.5), backend=backend)
    for choice in (CPU_KERNELS, TORCH, CPU_KERNELS):
        select(choice, "cpu")
        x = torch.ones(4, 3, requires_grad=True)
        out = compiled(x)
        (gradient,) = torch.autograd.grad(out.sum(), x)
        assert torch.equal(gradient, out.detach())
    assert ["gnntrain.dropout" in code for code in compiled_codes] == [True, False]


MODELS: list[dict[str, Any]] = [
    {"name": "sage"},
    {"name": "sage", "aggregator": "max"},
    {"name": "gat", "heads": 2},
    {"name": "gatv2", "heads": 2},
    {"name": "gcn"},
    {"name": "gin"},
    {"name": "mlp"},
]


def losses_and_metrics(
    choice: KernelChoice, graph: StoredGraph, folder: Path, keys: dict[str, Any]
) -> tuple[list[float], list[float]]:
    """Of three epochs without dropout, whose draws depend on the kernels."""
    select(choice, "cpu")
    model = {"hidden_channels": 8, "num_layers": 2, "dropout": 0.0, **keys["model"]}
    sampler = {"fan_outs": [4, 4], **keys["sampler"]}
    trainer_keys = {"epochs": 3, "batch_size": 32, **keys["trainer"]}
    given = {"model": model, "sampler": sampler, "trainer": trainer_keys}
    config = from_dict(given, saved=True)
    torch.manual_seed(0)
    records = trainer_of(config, graph, folder).fit().records
    metrics = [record.metrics["val"]["accuracy"] for record in records]
    return [record.train_loss for record in records], metrics


@pytest.mark.parametrize(
    ("sampler", "precision", "stored_as"),
    [
        ("neighbor", "fp32", "float32"),
        ("neighbor", "bf16", "bfloat16"),
        ("full", "fp32", "float32"),
        ("pyg", "fp32", "float32"),
    ],
)
@pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without")
@pytest.mark.parametrize("model", MODELS, ids=lambda model: " ".join(map(str, model.values())))
def test_torchs_operators_train_as_the_kernels_do(
    model: dict[str, Any],
    sampler: str,
    precision: str,
    stored_as: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_backend("torch_sparse", monkeypatch)
    weights = np.random.default_rng(0).random(1500).astype(np.float32)
    data = random_graph(200, 1500, num_features=12, edge_weight=weights)
    graph = stored(tmp_path / "store", data, feature_dtype=stored_as)
    by_name: dict[str, dict[str, Any]] = {
        "neighbor": {},
        "full": {"name": "full"},
        "pyg": {"backend": "pyg"},
    }
    keys = {"model": model, "sampler": by_name[sampler], "trainer": {"precision": precision}}
    expected, found = (
        losses_and_metrics(choice, graph, tmp_path, keys) for choice in (CPU_KERNELS, TORCH)
    )
    tolerance = 1e-4 if precision == "fp32" else 1e-2
    assert found[0] == pytest.approx(expected[0], rel=tolerance)
    assert found[1] == pytest.approx(expected[1], abs=0.05)
