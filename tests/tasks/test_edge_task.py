"""A task whose examples are edges goes through the seams of node tasks: a toy link prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnntrain.data.graph import NODE, Int64Array
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.features import in_place
from gnntrain.loading.graph import BatchValues, GraphTensors
from gnntrain.loading.loader import FullGraphLoader, Loader, SeedPlan
from gnntrain.metrics import get_metric
from gnntrain.models import SAGE
from gnntrain.sampling.base import SampleKey, Seeds
from gnntrain.sampling.block import NO_NEEDS
from gnntrain.tasks import Columns, Task
from gnntrain.tasks.base import ComputedRows, SplitSlice
from gnntrain.training.checkpoint import load_checkpoint
from gnntrain.training.evaluation import SampledEvaluator
from gnntrain.training.trainer import Trainer
from tests.evaluators import layerwise
from tests.graphs import random_graph, stored
from tests.loading.graphs import cpu_loader
from tests.training.test_trainer import make_trainer


class Scaled(nn.Module):
    """The products of both ends' rows, summed and scaled: a decoder with a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, rows: Tensor, pairs: Tensor) -> Tensor:
        return (rows[pairs[0]] * rows[pairs[1]]).sum(1, keepdim=True) * self.scale


class LinkPrediction:
    """Tells the graph's edges from as many pairs of its nodes drawn at random."""

    num_outputs = 8
    metric = get_metric("roc_auc")
    reported = (metric,)

    def __init__(self, graph: StoredGraph) -> None:
        self.head = Scaled()
        self._graph = graph
        dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.only_edges.indptr))
        edges = np.random.default_rng(0).permutation(np.stack([graph.only_edges.indices, dst], 1))
        cuts = [len(edges) // 2, 3 * len(edges) // 4]
        self._edges = dict(zip(("train", "val", "test"), np.split(edges, cuts), strict=True))
        self.targets = torch.empty(0)

    def examples(self, split: str) -> Int64Array:
        return self._edges[split].astype(np.int64)

    def seeds(self, examples: Int64Array, key: SampleKey, values: BatchValues) -> Seeds:
        del values
        rng = np.random.default_rng([key.seed, key.epoch, key.step])
        negatives = rng.integers(self._graph.num_nodes, size=examples.shape)
        nodes, positions = np.unique(np.concatenate([examples, negatives]), return_inverse=True)
        pairs = torch.from_numpy(positions.reshape(-1, 2).T.copy())
        targets = torch.cat([torch.ones(len(examples)), torch.zeros(len(examples))])
        return Seeds({NODE: torch.from_numpy(nodes)}, targets, pairs)

    def in_words(self, examples: Int64Array) -> str:
        return f"edges {examples.tolist()}"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs[:, 0].float(), targets, reduction="sum")

    def metric_inputs(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return outputs, targets.long()

    def judge(
        self, split: str, computed: Sequence[ComputedRows], context: DistributedContext
    ) -> Iterator[SplitSlice]:
        del context
        (whole,) = computed
        key, values = SampleKey(0, 0, 0), GraphTensors.of(self._graph, NO_NEEDS)
        seeds = self.seeds(self.examples(split), key, values)
        assert seeds.pairs is not None
        outputs = self.head(whole.outputs[seeds.nodes[NODE]], seeds.pairs)
        yield SplitSlice(torch.arange(len(outputs)), outputs, seeds.targets)

    def predictions(self) -> Mapping[str, Callable[[], Columns]]:
        return {}

    def warnings(self) -> list[str]:
        return []


def trainer_of(graph: StoredGraph, folder: Path, kind: str, epochs: int) -> Trainer:
    torch.manual_seed(0)
    task: Task = LinkPrediction(graph)
    values = GraphTensors.of(graph, NO_NEEDS)

    def loader(split: str) -> Loader:
        is_training = split == "train"
        plan = SeedPlan(task.examples(split), 64, shuffle=is_training, redraw=is_training)
        if kind == "full" and is_training:
            rows = in_place(graph)
            return FullGraphLoader(values, rows, plan, num_layers=2, make_seeds=task.seeds)
        return cpu_loader(graph, plan, (4, 4), make_seeds=task.seeds)

    model = SAGE(graph.num_features, task.num_outputs, hidden_channels=16, dropout=0)
    model.add_module("head", task.head)
    loaders = {split: loader(split) for split in ("train", "val", "test")}
    evaluator = SampledEvaluator(task, loaders, DistributedContext())
    keys: dict[str, Any] = {"task": task, "epochs": epochs, "lr": 0.02, "checkpoints": folder}
    return make_trainer(graph, evaluator=evaluator, model=model, loader=loaders["train"], **keys)


@pytest.mark.parametrize("kind", ["neighbor", "full"])
def test_a_task_of_edges_trains_is_judged_and_goes_on(tmp_path: Path, kind: str) -> None:
    # Two groups with features of their own, and edges within each.
    rng = np.random.default_rng(0)
    group = np.arange(200) % 2
    src = rng.integers(200, size=1200)
    dst = (rng.integers(100, size=1200) * 2 + group[src]) % 200
    features = (rng.normal(size=(200, 5)) + 2 * group[:, None]).astype(np.float32)
    data = random_graph(200, src=src, dst=dst, features=features)
    graph = stored(tmp_path / "store", data)
    for name in ("whole", "half"):
        (tmp_path / name).mkdir()
    trainer = trainer_of(graph, tmp_path / "whole", kind, epochs=10)
    whole = trainer.fit()
    assert whole.best["val"]["roc_auc"] > 0.7
    with torch.no_grad():
        exact = layerwise(graph, tmp_path, task=trainer.task).evaluate(trainer.model)
    assert exact["val"]["roc_auc"] > 0.7
    trainer_of(graph, tmp_path / "half", kind, epochs=5).fit()
    again = trainer_of(graph, tmp_path / "half", kind, epochs=10)
    again.load_state(load_checkpoint(tmp_path / "half" / "last.pt"))
    assert again.fit().records[-1].train_loss == whole.records[-1].train_loss
