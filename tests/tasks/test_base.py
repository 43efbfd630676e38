"""A task that the core does not know: it trains, evaluates, resumes and is judged as any other."""

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
from gnntrain.loading.loader import Loader, SeedPlan
from gnntrain.metrics import Metric, get_metric, metric
from gnntrain.models import SAGE
from gnntrain.tasks import Column, Columns, NodeTask, Task
from gnntrain.training.checkpoint import load_checkpoint
from gnntrain.training.evaluation import Evaluator, SampledEvaluator
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


class NodeRegression(NodeTask):
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


def loader_of(graph: StoredGraph, task: Task, kind: str, split: str = "train") -> Loader:
    is_training = split == "train"
    plan = SeedPlan(task.examples(split), 8, shuffle=is_training, redraw=is_training)
    if kind == "full":
        return full_loader(graph, plan, targets=task.targets)
    return cpu_loader(graph, plan, (-1, -1), targets=task.targets, threads=0)


def trainer_of(graph: StoredGraph, folder: Path, kind: str, exact: bool, epochs: int) -> Trainer:
    task: Task = NodeRegression(graph)
    context = DistributedContext()
    evaluator: Evaluator
    if exact:
        evaluator = layerwise(graph, folder, context, task=task)
    else:
        loaders = {split: loader_of(graph, task, "", split) for split in ("train", "val", "test")}
        evaluator = SampledEvaluator(task, loaders, context)
    torch.manual_seed(0)
    return Trainer(
        SAGE(graph.num_features, task.num_outputs, hidden_channels=8, dropout=0),
        loader_of(graph, task, kind),
        evaluator,
        task=task,
        config=TrainerConfig(epochs=epochs, lr=0.02),
        checkpoints=folder,
    )


@pytest.mark.parametrize("kind", ["neighbor", "full"])
def test_another_task_trains_and_its_best_epoch_has_the_least_error(
    tmp_path: Path, kind: str
) -> None:
    graph = stored(tmp_path / "store")
    result = trainer_of(graph, tmp_path, kind, exact=True, epochs=12).fit()
    errors = [record.metrics["val"]["root_error"] for record in result.records]
    assert result.records[-1].train_loss < 0.8 * result.records[0].train_loss
    assert result.best_epoch == 1 + errors.index(min(errors))
    assert result.best["val"]["root_error"] == min(errors) < errors[0]
    assert load_checkpoint(tmp_path / "best.pt")["best_epoch"] == result.best_epoch


def test_both_evaluators_judge_it_alike(tmp_path: Path) -> None:
    graph = stored(tmp_path / "store")
    exact = trainer_of(graph, tmp_path, "full", exact=True, epochs=1)
    sampled = trainer_of(graph, tmp_path, "full", exact=False, epochs=1)
    wanted = exact.evaluator.evaluate(exact.model)
    found = sampled.evaluator.evaluate(exact.model)
    for split in ("train", "val", "test"):
        assert found[split] == pytest.approx(wanted[split], rel=1e-5)


def test_it_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    graph = stored(tmp_path / "store")
    for name in ("whole", "half"):
        (tmp_path / name).mkdir()
    whole = trainer_of(graph, tmp_path / "whole", "neighbor", exact=True, epochs=4)
    whole.fit()
    trainer_of(graph, tmp_path / "half", "neighbor", exact=True, epochs=2).fit()
    again = trainer_of(graph, tmp_path / "half", "neighbor", exact=True, epochs=4)
    again.load_state(load_checkpoint(tmp_path / "half" / "last.pt"))
    again.fit()
    losses = [[record.train_loss for record in one.result.records] for one in (whole, again)]
    assert losses[0] == losses[1]
    assert again.result.best == whole.result.best
