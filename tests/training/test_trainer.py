from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnntrain.config import TrainerConfig
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.errors import Interrupted, RunError
from gnntrain.loading.features import in_place
from gnntrain.loading.graph import GraphTensors
from gnntrain.loading.loader import Loader, SampledLoader, SeedPlan
from gnntrain.models import SAGE
from gnntrain.sampling.block import NO_NEEDS
from gnntrain.sampling.cpu import CPUSampler
from gnntrain.tasks import NodeClassification
from gnntrain.training.callbacks import Callback
from gnntrain.training.checkpoint import load_checkpoint
from gnntrain.training.evaluation import Evaluator
from gnntrain.training.records import EpochRecord, Pruned, RunInfo, StepProgress, Summary
from gnntrain.training.snapshot import EpochTotals
from gnntrain.training.trainer import Trainer
from tests.evaluators import layerwise
from tests.graphs import random_graph, stored
from tests.loading.graphs import cpu_loader, full_loader


class Scripted(Evaluator):
    """An evaluator that gives a fixed validation metric at each call."""

    def __init__(self, values: list[float] | None = None) -> None:
        self.values = values or [0.5] * 100
        self.num_calls = 0

    def evaluate(self, model: nn.Module) -> dict[str, dict[str, float]]:  # noqa: ARG002
        value = self.values[self.num_calls]
        self.num_calls += 1
        return {"train": {}, "val": {"accuracy": value}, "test": {"accuracy": value / 2}}


class Recorder:
    def __init__(self) -> None:
        self.steps: list[StepProgress] = []
        self.epochs: list[EpochRecord] = []

    def on_start(self, info: RunInfo) -> None: ...
    def on_step(self, progress: StepProgress) -> None:
        self.steps.append(progress)

    def on_epoch(self, record: EpochRecord) -> None:
        self.epochs.append(record)

    def on_message(self, text: str) -> None: ...
    def on_finish(self, summary: Summary) -> None: ...


def make_loader(
    store: StoredGraph, context: DistributedContext, batch_size: int, kind: str = "neighbor"
) -> Loader:
    plan = SeedPlan(store.split("train"), batch_size, context.rank, context.world_size)
    if kind == "full":
        return full_loader(store, plan)
    return cpu_loader(store, plan, threads=1)


def make_trainer(
    store: StoredGraph,
    context: DistributedContext | None = None,
    *,
    batch_size: int = 8,
    values: list[float] | None = None,
    kind: str = "neighbor",
    model: SAGE | None = None,
    checkpoints: Path | None = None,
    listeners: tuple[Recorder, ...] = (),
    task: NodeClassification | None = None,
    **keys: Any,
) -> Trainer:
    context = context or DistributedContext()
    torch.manual_seed(0)
    model = model or SAGE(store.num_features, store.num_outputs, hidden_channels=8)
    return Trainer(
        model,
        make_loader(store, context, batch_size, kind),
        Scripted(values),
        task=task or NodeClassification(store),
        config=TrainerConfig(lr=0.05, **keys),
        context=context,
        checkpoints=checkpoints,
        listeners=listeners,
    )


def fit(context: DistributedContext, job: dict[str, Any]) -> tuple[list[float], list[Tensor]]:
    """Losses and weights of three epochs."""
    store = StoredGraph.open(job["store"])
    model = SAGE(store.num_features, store.num_outputs, hidden_channels=8)
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    trainer = make_trainer(
        store,
        context,
        batch_size=job["global_batch"] // context.world_size,
        model=model,
        kind=job["kind"],
        task=NodeClassification(store, **job.get("task", {})),
        epochs=3,
        clip_norm=1.0,
    )
    losses = [record.train_loss for record in trainer.fit().records]
    assert (trainer.result.records[-1].time.get("all_reduce", 0) > 0) == (context.world_size > 1)
    return losses, [p.detach().clone() for p in model.parameters()]


def fit_rank(context: DistributedContext, payload: dict[str, Any]) -> None:
    fitted = {name: fit(context, job) for name, job in payload["jobs"].items()}
    torch.save(fitted, payload["out"] / f"{context.world_size}-{context.rank}.pt")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ranks of 1, 2 and 4 give: all jobs in one launch, since ranks take long to start."""
    folder = tmp_path_factory.mktemp("ranks")
    few = random_graph()
    few.splits = {**few.splits, "train": few.splits["train"][:2]}
    # 30 train nodes in global batches of 8: the last one has 6, so 4 ranks get uneven shares
    all_of_them = {"store": stored(folder / "store").path, "global_batch": 8}
    jobs = {
        "neighbor": all_of_them | {"kind": "neighbor"},
        "full": all_of_them | {"kind": "full"},
        "weighted": all_of_them
        | {"kind": "neighbor", "task": {"balanced": True, "label_smoothing": 0.1}},
        "few": {"store": stored(folder / "few", few).path, "global_batch": 4, "kind": "neighbor"},
    }
    for world_size in (1, 2, 4):
        plan = LaunchPlan(world_size, "cpu", 1, 60)
        launch(fit_rank, {"jobs": jobs, "out": folder}, plan, folder)
    return {rank: torch.load(folder / f"{rank}.pt") for rank in ("1-0", "2-0", "2-1", "4-0", "4-3")}


@pytest.mark.parametrize("job", ["neighbor", "full", "weighted"])
def test_any_number_of_ranks_gives_the_same_losses_and_weights(
    fitted: dict[str, Any], job: str
) -> None:
    losses, weights = fitted["1-0"][job]
    for rank in ("2-0", "2-1", "4-0", "4-3"):
        other_losses, other_weights = fitted[rank][job]
        assert other_losses == pytest.approx(losses, rel=1e-5)
        for own, other in zip(weights, other_weights, strict=True):
            torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-6)


def test_more_ranks_than_train_nodes_end_and_give_the_same_loss(fitted: dict[str, Any]) -> None:
    (alone, _), (many, _) = fitted["1-0"]["few"], fitted["4-3"]["few"]
    assert many == pytest.approx(alone, rel=1e-5)


def test_an_epoch_tells_where_its_time_went(tmp_path: Path) -> None:
    store = stored(tmp_path / "store")
    record = make_trainer(store, epochs=1).fit().records[0]
    made = {"background/sample", "background/gather"}
    step = {"wait", "transfer", "forward", "backward", "optimizer"}
    assert set(record.time) == made | step | {"evaluation"}
    assert 0 < sum(record.time[name] for name in step) <= record.seconds
    assert record.time["evaluation"] == record.eval_seconds


def test_an_sgd_step_is_taken_along_the_gradient_of_the_mean_loss(tmp_path: Path) -> None:
    store = stored(tmp_path / "store")
    torch.manual_seed(1)
    model = SAGE(store.num_features, store.num_outputs, hidden_channels=8)
    twin = SAGE(store.num_features, store.num_outputs, hidden_channels=8)
    twin.load_state_dict(model.state_dict())
    (batch,) = make_loader(store, DistributedContext(), 8, "full")
    blocks = [block for hop in batch.hops for block in hop.edges.values()]
    loss = F.cross_entropy(twin(batch.x, blocks)[batch.seed_rows], batch.y.long())
    torch.autograd.backward(loss)
    trainer = make_trainer(store, model=model, kind="full", epochs=1, optimizer="sgd", momentum=0.0)
    trainer.fit()
    for before, after in zip(twin.parameters(), model.parameters(), strict=True):
        assert before.grad is not None
        torch.testing.assert_close(after, before - 0.05 * before.grad)
    assert trainer.result.records[0].train_loss == pytest.approx(float(loss.detach()))


def test_training_lowers_the_loss_and_tells_every_epoch(tmp_path: Path) -> None:
    listener = Recorder()
    store = stored(tmp_path / "store")
    result = make_trainer(store, epochs=30, listeners=(listener,), log_every=2).fit()
    losses = [record.train_loss for record in result.records]
    assert losses[-1] < 0.8 * losses[0]
    assert listener.epochs == result.records
    assert [record.epoch for record in result.records] == list(range(1, 31))
    assert [record.step for record in result.records] == list(range(4, 121, 4))
    steps = [(progress.epoch, progress.step) for progress in listener.steps[:5]]
    assert steps == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1)]
    assert [p.loss is None for p in listener.steps[:4]] == [True, False, True, False]
    assert listener.steps[3].loss == pytest.approx(losses[0])


def test_a_record_tells_the_rate_of_the_epochs_last_step(tmp_path: Path) -> None:
    store = stored(tmp_path / "store")
    result = make_trainer(store, epochs=2, kind="full", scheduler="linear").fit()
    assert [record.lr for record in result.records] == pytest.approx([0.05, 0.025])


def test_the_best_epoch_is_the_first_with_the_best_validation_metric(tmp_path: Path) -> None:
    store = stored(tmp_path / "store")
    result = make_trainer(store, epochs=4, values=[0.1, 0.7, 0.7, 0.2]).fit()
    assert result.best_epoch == 2
    assert result.best["test"] == {"accuracy": 0.35}


def test_a_validation_metric_that_is_no_number_is_never_the_best(tmp_path: Path) -> None:
    store = stored(tmp_path / "store")
    nan = float("nan")
    assert make_trainer(store, epochs=3, values=[nan, 0.2, nan]).fit().best_epoch == 2
    assert make_trainer(store, epochs=3, values=[0.3, nan, 0.0]).fit().best_epoch == 1


def test_training_stops_when_the_metric_has_stalled_for_patience_evaluations(
    tmp_path: Path,
) -> None:
    store = stored(tmp_path / "store")
    result = make_trainer(store, epochs=9, patience=2, values=[0.1, 0.5, 0.4, 0.3, 0.9]).fit()
    assert len(result.records) == 4
    assert result.best_epoch == 2


class PrunesAfter(Recorder):
    """Says after an epoch that the run is hopeless."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.epoch = epoch

    def on_epoch(self, record: EpochRecord) -> None:
        super().on_epoch(record)
        if record.epoch == self.epoch:
            raise Pruned


def test_a_callback_can_end_training_and_the_others_are_still_told(tmp_path: Path) -> None:
    store = stored(tmp_path / "store")
    other = Recorder()
    result = make_trainer(store, epochs=9, listeners=(PrunesAfter(2), other)).fit()
    assert result.is_pruned
    assert [record.epoch for record in other.epochs] == [1, 2]
    assert not make_trainer(store, epochs=2).fit().is_pruned


def fit_pruned_rank(context: DistributedContext, payload: dict[str, Any]) -> None:
    store = StoredGraph.open(payload["store"])
    trainer = make_trainer(store, context, epochs=9, listeners=(PrunesAfter(2),))
    result = trainer.fit()
    told = (len(result.records), result.is_pruned)
    torch.save(told, payload["out"] / f"pruned-{context.rank}.pt")


def test_all_ranks_end_where_a_callback_of_rank_0_ends_training(tmp_path: Path) -> None:
    payload = {"store": stored(tmp_path / "store").path, "out": tmp_path}
    launch(fit_pruned_rank, payload, LaunchPlan(2, "cpu", 1, 60), tmp_path)
    for rank in (0, 1):
        assert torch.load(tmp_path / f"pruned-{rank}.pt") == (2, True)


def test_evaluation_is_due_every_few_epochs_and_after_the_last(tmp_path: Path) -> None:
    store = stored(tmp_path / "store")
    result = make_trainer(store, epochs=5, eval_every=2).fit()
    assert [bool(record.metrics) for record in result.records] == [False, True, False, True, True]


def test_max_steps_ends_training_inside_an_epoch(tmp_path: Path) -> None:
    store = stored(tmp_path / "store")
    result = make_trainer(store, epochs=5, max_steps=6).fit()
    assert [record.step for record in result.records] == [4, 6]
    assert result.records[-1].metrics


def test_checkpoints_hold_what_going_on_will_need(tmp_path: Path) -> None:
    store = stored(tmp_path / "store")
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    make_trainer(store, epochs=3, values=[0.1, 0.9, 0.2], checkpoints=checkpoints).fit()
    last, best = (load_checkpoint(checkpoints / f"{name}.pt") for name in ("last", "best"))
    assert (last["epoch"], best["epoch"], last["best_epoch"]) == (3, 2, 2)
    assert last["loader"] == {"epoch": 3, "step": 4}
    assert set(last) >= {"model", "optimizer", "schedule", "scaler", "ranks", "history", "step"}
    weight = "convs.0.lin_l.weight"
    assert not torch.equal(last["model"][weight], best["model"][weight])


class Failing(Scripted):
    def evaluate(self, model: nn.Module) -> dict[str, dict[str, float]]:
        if self.num_calls == 2:
            raise KeyboardInterrupt
        return super().evaluate(model)


def test_an_interrupted_run_keeps_what_it_reached(tmp_path: Path) -> None:
    store = stored(tmp_path / "store")
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    trainer = make_trainer(store, epochs=5, checkpoints=checkpoints)
    trainer.evaluator = Failing()
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    assert load_checkpoint(checkpoints / "last.pt")["epoch"] == 2
    assert trainer.result.best_epoch == 1


def test_a_loss_that_is_no_number_names_the_step_and_the_users_ids(tmp_path: Path) -> None:
    ids = np.array([f"user-{number:02}".encode() for number in range(60)])
    store = stored(tmp_path / "store", random_graph(node_ids=ids))
    model = SAGE(store.num_features, store.num_outputs, hidden_channels=8)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(RunError, match="nan in epoch 1, step 1 of 4") as caught:
        make_trainer(store, model=model, epochs=2).fit()
    seeds = make_loader(store, DistributedContext(), 8).plan
    first = seeds.rank_batch(seeds.order(1), 0).seeds[:5].tolist()
    names = ", ".join(f"user-{number:02}" for number in first)
    assert f"seed nodes {names}, ..." in caught.value.message


def test_bfloat16_autocast_stays_near_float32(tmp_path: Path) -> None:
    store = stored(tmp_path / "store")
    full = make_trainer(store, epochs=2).fit().records[-1].train_loss
    half = make_trainer(store, epochs=2, precision="bf16").fit().records[-1].train_loss
    assert half == pytest.approx(full, rel=2e-2)
    assert half != full


@pytest.mark.parametrize("task", ["binary", "multilabel"])
def test_other_tasks_train_too(tmp_path: Path, task: str) -> None:
    data = random_graph(num_classes=2 if task == "binary" else 4, task=task)
    result = make_trainer(stored(tmp_path / "store", data), epochs=20).fit()
    assert result.records[-1].train_loss < 0.9 * result.records[0].train_loss


def test_ten_lines_train_a_model(tmp_path: Path) -> None:
    """What a notebook needs: a graph, a loader, a model and a trainer."""
    graph = stored(tmp_path / "store")
    task = NodeClassification(graph)
    sampler = CPUSampler(graph.fused, dict.fromkeys(graph.edges, (10, 5)))
    plan = SeedPlan(task.examples("train"), 8)
    loader = SampledLoader(GraphTensors.of(graph, NO_NEEDS), in_place(graph), sampler, plan)
    model = SAGE(graph.num_features, task.num_outputs)
    context = DistributedContext()
    evaluator = layerwise(graph, tmp_path, context)
    result = Trainer(model, loader, evaluator, task=task, config=TrainerConfig(epochs=3)).fit()
    assert len(result.records) == 3
    assert result.best["val"]["accuracy"] >= 0


def test_listeners_and_callbacks_see_the_step_after_which_a_signal_ends_training(
    tmp_path: Path,
) -> None:
    class Asking(Callback):
        """Asks the run to stop in the second step, and counts the steps that it sees."""

        num_seen = 0

        def before_step(self, trainer: Trainer) -> None:
            if trainer.step == 2:
                trainer.context.control.request_stop(signal.SIGTERM)

        def after_step(self, trainer: Trainer, totals: EpochTotals) -> None:  # noqa: ARG002
            self.num_seen += 1

    store, recorder, asking = stored(tmp_path / "store"), Recorder(), Asking()
    (tmp_path / "run").mkdir()
    trainer = make_trainer(store, listeners=(recorder,), checkpoints=tmp_path / "run", epochs=1)
    trainer.callbacks.insert(-1, asking)
    with pytest.raises(Interrupted):
        trainer.fit()
    assert load_checkpoint(tmp_path / "run" / "last.pt")["step"] == trainer.step == 2
    assert asking.num_seen == 2
    assert [progress.step for progress in recorder.steps] == [1, 2]
