"""A task that the core does not know trains and is judged as any other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gnntrain import metrics
from gnntrain.config import TrainerConfig
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.loader import SeedPlan
from gnntrain.metrics import Metric, get_metric, metric
from gnntrain.models import SAGE
from gnntrain.tasks import Column, Columns, NodeTask, Task
from gnntrain.training.evaluation import SampledEvaluator
from gnntrain.training.trainer import Trainer
from tests.evaluators import layerwise
from tests.graphs import stored
from tests.loading.graphs import cpu_loader, full_loader


@pytest.fixture(autouse=True)
def _root_error() -> Iterator[None]:
    @metric("root_error", higher_is_better=False, label_kinds=("number",))
    def root_error(outputs: Tensor, targets: Tensor) -> float:
        return float(F.mse_loss(outputs[:, 0], targets).sqrt())

    yield
    metrics._REGISTERED.pop("root_error")


class FeatureSum(NodeTask):
    """Predicts the sum of a node's features."""

    def __init__(self, graph: StoredGraph) -> None:
        super().__init__(graph, 1)
        self._sums = torch.from_numpy(np.asarray(graph.features[:]).sum(axis=1))

    @property
    def targets(self) -> Tensor:
        return self._sums

    @property
    def metric(self) -> Metric:
        return get_metric("root_error")

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs[:, 0].float(), targets, reduction="sum")

    @property
    def reported(self) -> list[Metric]:
        return [self.metric]

    def metric_inputs(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return outputs, targets

    def predictions(self) -> Mapping[str, Callable[[], Columns]]:
        column = Column("value", np.dtype(np.float32), lambda outputs: outputs[:, 0].numpy())
        return {"value": lambda: Columns([column])}

    def warnings(self) -> list[str]:
        return []


@pytest.mark.parametrize("kind", ["neighbor", "full"])
def test_the_best_epoch_has_the_least_error_and_both_evaluators_judge_alike(
    tmp_path: Path, kind: str
) -> None:
    graph = stored(tmp_path / "store")
    task: Task = FeatureSum(graph)
    torch.manual_seed(0)
    model = SAGE(graph.num_features, task.num_outputs, hidden_channels=8, dropout=0)
    plan, targets = SeedPlan(task.examples("train"), 8), task.targets
    exact = layerwise(graph, tmp_path, task=task)
    trainer = Trainer(
        model,
        full_loader(graph, plan, targets=targets)
        if kind == "full"
        else cpu_loader(graph, plan, (-1, -1), targets=targets, threads=0),
        exact,
        task=task,
        config=TrainerConfig(epochs=12, lr=0.02),
    )
    result = trainer.fit()
    errors = [record.metrics["val"]["root_error"] for record in result.records]
    assert result.records[-1].train_loss < 0.8 * result.records[0].train_loss
    assert result.best_epoch == 1 + errors.index(min(errors))
    assert result.best["val"]["root_error"] == min(errors) < errors[0]

    loaders = {
        split: cpu_loader(
            graph,
            SeedPlan(task.examples(split), 8, shuffle=False, redraw=False),
            (-1, -1),
            targets=targets,
            threads=0,
        )
        for split in ("train", "val", "test")
    }
    found = SampledEvaluator(task, loaders, DistributedContext()).evaluate(model)
    for split, wanted in exact.evaluate(model).items():
        assert found[split] == pytest.approx(wanted, rel=1e-5)
