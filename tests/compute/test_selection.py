"""Who computes the operators is selected by kind of device; what a model learns is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func

from gnntrain.app import compose_config
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.rows import Gather
from gnntrain.compute.selection import CPU_KERNELS, SAMPLER, KernelChoice, select
from gnntrain.models.dropout import dropout
from tests.graphs import random_graph, stored
from tests.pyg_backends import use_backend
from tests.trainers import trainer_of

TORCH = KernelChoice("torch")


pytestmark = pytest.mark.usefixtures("_usual_kernels")


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


def test_a_kernel_that_is_replaced_computes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gather, "cpu", None)
    rows = torch.arange(12.0).view(4, 3)
    select(KernelChoice("numba", {"gather": "wrong"}), "cpu")
    assert torch.equal(LazyFeatures(rows).read(1, 3), rows[1:3])


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


WAYS = [
    *("model=sage", "model=sage model.aggregator=max", "model=gcn", "model=gin", "model=mlp"),
    *("model=gat model.heads=2", "model=gatv2 model.heads=2"),
    *(f"model=sage {key}" for key in ("sampler=full", "sampler.backend=pyg")),
    *(f"model=gat {key}" for key in ("sampler=full", "sampler.backend=pyg")),
]
PRECISIONS = [("fp32", "float32", 1e-4), ("bf16", "bfloat16", 1e-2)]
PLAIN = "model.hidden_channels=8 model.dropout=0 trainer.epochs=3 trainer.batch_size=32"
"""Without dropout, whose draws depend on the kernels."""


@pytest.mark.parametrize(("precision", "stored_as", "tolerance"), PRECISIONS)
@pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without")
@pytest.mark.parametrize("way", WAYS)
def test_torchs_operators_train_as_the_kernels_do(
    tmp_path: Path,
    way: str,
    precision: str,
    stored_as: str,
    tolerance: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_backend("torch_sparse", monkeypatch)
    weights = np.random.default_rng(0).random(1500).astype(np.float32)
    data = random_graph(200, 1500, num_features=12, edge_weight=weights)
    graph = stored(tmp_path / "store", data, feature_dtype=stored_as)
    keys = [*PLAIN.split(), *way.split(), f"trainer.precision={precision}"]
    config, told = compose_config(keys, for_here=False), []
    for choice in (CPU_KERNELS, TORCH):
        select(choice, "cpu")
        torch.manual_seed(0)
        records = trainer_of(config, graph, tmp_path).fit().records
        losses = [record.train_loss for record in records]
        told.append((losses, [record.metrics["val"]["accuracy"] for record in records]))
    assert told[1][0] == pytest.approx(told[0][0], rel=tolerance)
    assert told[1][1] == pytest.approx(told[0][1], abs=0.05)
