from __future__ import annotations

import copy
import signal
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from gnntrain.config import CheckpointConfig, TrainerConfig
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import Interrupted, RunError, UserError
from gnntrain.loading.loader import Loader, SeedPlan
from gnntrain.models import GAT, GCN, GNN, SAGE, GATv2
from gnntrain.tasks import NodeClassification
from gnntrain.training.checkpoint import CheckpointWriter, State
from gnntrain.training.evaluation import Evaluator
from gnntrain.training.optimizer import build_optimizer, build_schedule
from gnntrain.training.records import EpochRecord, RunInfo, StepProgress, Summary
from gnntrain.training.totals import EpochTotals
from gnntrain.training.trainer import Callback, Trainer
from gnntrain.training.update import compiled
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
        self.messages: list[str] = []

    def on_start(self, info: RunInfo) -> None: ...
    def on_step(self, progress: StepProgress) -> None:
        self.steps.append(progress)

    def on_epoch(self, record: EpochRecord) -> None:
        self.epochs.append(record)

    def on_message(self, text: str) -> None:
        self.messages.append(text)

    def on_finish(self, summary: Summary) -> None: ...


def make_trainer(
    store: StoredGraph,
    context: DistributedContext | None = None,
    *,
    batch_size: int = 8,
    values: list[float] | None = None,
    evaluator: Evaluator | None = None,
    kind: str = "neighbor",
    model: GNN | dict[str, Any] | None = None,
    loader: Loader | None = None,
    **keys: Any,
) -> Trainer:
    """A trainer of this model, or of GraphSAGE with these options; `keys` are of its configuration,
    or arguments of the trainer."""
    context = context or DistributedContext()
    torch.manual_seed(0)
    if not isinstance(model, GNN):
        model = SAGE(store.num_features, store.num_outputs, hidden_channels=8, **model or {})
    arguments = {name: keys.pop(name) for name in [*keys] if name not in TrainerConfig.model_fields}
    plan = SeedPlan(store.split("train"), batch_size, context.rank, context.world_size)
    if loader is None and kind == "full":
        loader = full_loader(store, plan, model.needs)
    return Trainer(
        model,
        loader or cpu_loader(store, plan, needs=model.needs, threads=1),
        evaluator or Scripted(values),
        config=TrainerConfig(**{"lr": 0.05, **keys}),
        context=context,
        **{"task": NodeClassification(store), **arguments},
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StoredGraph:
    return stored(tmp_path_factory.mktemp("graph") / "store")


def test_an_epoch_tells_where_its_time_went(store: StoredGraph) -> None:
    record = make_trainer(store, epochs=1).fit().records[0]
    made = {"background/sample", "background/gather"}
    step = {"wait", "forward", "backward", "optimizer"}
    assert set(record.time) == made | step | {"evaluation"}
    assert 0 < sum(record.time[name] for name in step) <= record.seconds
    assert record.time["evaluation"] == record.eval_seconds


def test_an_sgd_step_is_taken_along_the_gradient_of_the_mean_loss(store: StoredGraph) -> None:
    torch.manual_seed(1)
    model = SAGE(store.num_features, store.num_outputs, hidden_channels=8)
    twin = copy.deepcopy(model)
    trainer = make_trainer(store, model=model, kind="full", epochs=1, optimizer="sgd", momentum=0.0)
    (batch,) = full_loader(store, trainer.loader.plan)
    blocks = [block for hop in batch.hops for block in hop.edges.values()]
    loss = F.cross_entropy(twin(batch.x, blocks)[batch.seed_rows], batch.y.long())
    torch.autograd.backward(loss)
    trainer.fit()
    for before, after in zip(twin.parameters(), model.parameters(), strict=True):
        assert before.grad is not None
        torch.testing.assert_close(after, before - 0.05 * before.grad)
    assert trainer.result.records[0].train_loss == pytest.approx(float(loss.detach()))


def test_training_lowers_the_loss_and_tells_every_epoch(store: StoredGraph) -> None:
    listener = Recorder()
    keys: dict[str, Any] = {"epochs": 30, "scheduler": "linear", "log_every": 2}
    result = make_trainer(store, listeners=(listener,), **keys).fit()
    losses = [record.train_loss for record in result.records]
    assert losses[-1] < 0.8 * losses[0]
    assert listener.epochs == result.records
    assert [record.epoch for record in result.records] == list(range(1, 31))
    assert [record.step for record in result.records] == list(range(4, 121, 4))
    rates = [0.05 * (1 - step / 120) for step in range(3, 120, 4)]  # of each epoch's last step
    assert [record.lr for record in result.records] == pytest.approx(rates)
    steps = [(progress.epoch, progress.step) for progress in listener.steps[:5]]
    assert steps == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1)]
    assert [p.loss is None for p in listener.steps[:4]] == [True, False, True, False]
    assert listener.steps[3].loss == pytest.approx(losses[0])


NAN = float("nan")


@pytest.mark.parametrize(
    ("keys", "values", "evaluated", "best"),
    [
        ({"epochs": 4}, [0.1, 0.7, 0.7, 0.2], [4, 8, 12, 16], 2),
        ({"epochs": 3}, [NAN, 0.2, NAN], [4, 8, 12], 2),
        ({"epochs": 3}, [0.3, NAN, 0.0], [4, 8, 12], 1),
        ({"epochs": 9, "patience": 2}, [0.1, 0.5, 0.4, 0.3, 0.9], [4, 8, 12, 16], 2),
        ({"epochs": 5, "eval_every": 2}, [0.1, 0.2, 0.1], [8, 16, 20], 4),
        ({"epochs": 5, "max_steps": 6}, [0.1, 0.2], [4, 6], 2),
    ],
)
def test_evaluation_says_when_training_ends_and_which_epoch_is_the_best(
    store: StoredGraph, keys: dict[str, Any], values: list[float], evaluated: list[int], best: int
) -> None:
    result = make_trainer(store, values=values, **keys).fit()
    assert [record.step for record in result.records if record.metrics] == evaluated
    assert result.best_epoch == best
    assert result.best == result.records[best - 1].metrics


class Asking(Callback):
    """Asks for a signal's action after the first step, and counts the steps that it sees."""

    def __init__(self, number: int) -> None:
        self.number, self.num_seen = number, 0

    def after_step(self, trainer: Trainer, totals: EpochTotals) -> None:  # noqa: ARG002
        self.num_seen += 1
        if trainer.step == 1 and self.number == signal.SIGUSR1:
            trainer.context.control.request_save()
        elif trainer.step == 1 and self.number:
            trainer.context.control.request_stop(self.number)


@pytest.mark.parametrize(
    ("number", "keys", "saved", "at_once"),
    [
        (0, {}, [4, 8], []),
        (0, {"every_steps": 3}, [3, 4, 6, 8], []),
        (0, {"every_minutes": 1e-9}, [1, 2, 3, 4, 4, 5, 6, 7, 8, 8], []),
        (0, {"every_minutes": 10.0}, [4, 8], []),
        (signal.SIGUSR1, {}, [2, 4, 8], [2]),
        (signal.SIGINT, {}, [2], [2]),
        (signal.SIGTERM, {"every_minutes": 1e-9}, [1, 2], [2]),
        (signal.SIGHUP, {}, [2], [2]),
    ],
)
def test_checkpoints_are_due_after_epochs_steps_minutes_and_signals(
    store: StoredGraph,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    keys: dict[str, Any],
    saved: list[int],
    at_once: list[int],
) -> None:
    """Callbacks and listeners see the step after which a signal ends training."""
    offered: list[tuple[int, bool]] = []

    def offer(_: object, state: State, *, best: bool, at_once: bool) -> None:  # noqa: ARG001
        offered.append((state["step"], at_once))

    monkeypatch.setattr(CheckpointWriter, "offer", offer)
    recorder, asking = Recorder(), Asking(number)
    trainer = make_trainer(
        store,
        listeners=(recorder,),
        callbacks=[asking],
        checkpoints=tmp_path,
        checkpoint_config=CheckpointConfig(**{"every_minutes": None, **keys}),
        epochs=2,
    )
    ends = number not in (0, signal.SIGUSR1)
    with pytest.raises(Interrupted) if ends else nullcontext() as caught:
        trainer.fit()
    assert [step for step, _ in offered] == saved
    assert [step for step, is_now in offered if is_now] == at_once
    assert asking.num_seen == len(recorder.steps) == trainer.step == (2 if ends else 8)
    said = "saving step 2 and stopping." if ends else "saving step 2."
    assert recorder.messages == ([f"{signal.Signals(number).name}: {said}"] if number else [])
    assert caught is None or caught.value.number == number


def test_a_loss_that_is_no_number_names_the_step_and_the_users_ids(tmp_path: Path) -> None:
    ids = np.array([f"user-{number:02}".encode() for number in range(60)])
    store = stored(tmp_path / "store", random_graph(node_ids=ids))
    model = SAGE(store.num_features, store.num_outputs, hidden_channels=8)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    trainer = make_trainer(store, model=model, epochs=2)
    with pytest.raises(RunError, match="nan in epoch 1, step 1 of 4") as caught:
        trainer.fit()
    seeds = trainer.loader.plan
    first = seeds.rank_batch(seeds.order(1), 0).seeds[:5].tolist()
    names = ", ".join(f"user-{number:02}" for number in first)
    assert f"seed nodes {names}, ..." in caught.value.message


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SAGE, GCN, GAT, GATv2])
def test_a_compiled_model_trains_as_the_eager_one(
    store: StoredGraph, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The same is traced and differentiated; only no code is generated.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    losses = []
    for is_compiled in (False, True):
        torch.manual_seed(0)
        model = kind(store.num_features, store.num_outputs, hidden_channels=8, dropout=0.2)
        assert model.needs.rows == (kind in (SAGE, GCN))
        result = make_trainer(store, model=model, epochs=2, compile=is_compiled).fit()
        losses.append([record.train_loss for record in result.records])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.parametrize(
    ("keys", "rates"),
    [
        ({}, [1.0] * 4),
        ({"scheduler": "linear"}, [1.0, 0.75, 0.5, 0.25]),
        ({"scheduler": "cosine"}, [1.0, 0.853553, 0.5, 0.146447]),
        ({"scheduler": "step", "scheduler_step": 2, "scheduler_gamma": 0.1}, [1.0] * 4 + [0.1] * 4),
        ({"scheduler": "linear", "warmup_epochs": 1}, [1 / 3, 2 / 3, 1.0, 0.75, 0.5, 0.25]),
    ],
)
def test_schedules_by_step(keys: dict[str, Any], rates: list[float]) -> None:
    config = TrainerConfig(lr=1.0, **keys)
    optimizer = build_optimizer([nn.Parameter(torch.zeros(1))], config)
    schedule = build_schedule(optimizer, config, steps_per_epoch=2, num_steps=len(rates))
    assert isinstance(schedule, LambdaLR)
    found = []
    for _ in rates:
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert found == pytest.approx(rates, abs=1e-6)


@pytest.mark.parametrize(("name", "is_fused"), [("adam", True), ("adamw", True), ("sgd", None)])
def test_on_a_gpu_adam_is_one_kernel_and_sgd_is_not(name: Any, is_fused: bool | None) -> None:
    """Torch's kernel of SGD leaves the momentum uninitialised where fp16 skips the first step."""
    with FakeTensorMode():
        weight = nn.Parameter(torch.zeros(3, device="cuda"))
        optimizer = build_optimizer([weight], TrainerConfig(optimizer=name))
    assert optimizer.param_groups[0]["fused"] is is_fused


@pytest.mark.parametrize(
    ("metrics", "num_bad", "rates"),
    [
        ((0.1, 0.2, 0.2, 0.2, 0.3), 1, [1, 1, 0.5, 0.25, 0.25]),
        ((0.1, 0.2, 0.2, 0.2, 0.3), 2, [1, 1, 1, 0.5, 0.5]),
        ((-607.61, -607.62, -607.63), 2, [1, 1, 0.5]),  # negative ones fall, too
        ((0.5, 0.500001, 0.500002), 1, [1, 1, 1]),  # each is the best so far
    ],
)
def test_the_rate_falls_after_so_many_evaluations_without_a_better_metric(
    metrics: tuple[float, ...], num_bad: int, rates: list[float]
) -> None:
    keys: dict[str, Any] = {"scheduler_step": num_bad, "scheduler_gamma": 0.5}
    config = TrainerConfig(lr=1.0, scheduler="plateau", **keys)
    optimizer = build_optimizer([nn.Parameter(torch.zeros(1))], config)
    schedule = build_schedule(optimizer, config, steps_per_epoch=1, num_steps=9)
    assert isinstance(schedule, ReduceLROnPlateau)
    found = []
    for metric in metrics:
        schedule.step(metric)
        found.append(optimizer.param_groups[0]["lr"])
    assert found == rates


@pytest.mark.parametrize(
    ("compiler", "told"),
    [("/nowhere/c++ -O3", "/nowhere/c"), ("true", r"trainer\.compile=true: .*3\.99")],
)
def test_without_a_compiler_or_pythons_support_there_is_one_clear_sentence(
    monkeypatch: pytest.MonkeyPatch, compiler: str, told: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("torch.compile is not supported on Python 3.99")

    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setattr(torch, "compile", refuse)
    with pytest.raises(UserError, match=told):
        compiled(torch.nn.Linear(2, 2), torch.device("cpu"))
