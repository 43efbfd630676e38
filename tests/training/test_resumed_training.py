"""Going on from a checkpoint gives what would have been without the interruption; and training on
typed graphs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from gnntrain.config import CheckpointConfig, from_dict
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.errors import Diverged, RunError
from gnntrain.models.embedding import EmbeddingTable, embedding_tables
from gnntrain.training.checkpoint import CheckpointError, load_checkpoint, load_last
from gnntrain.training.records import EpochRecord, Pruned, StepProgress
from gnntrain.training.trainer import Trainer
from tests.evaluators import layerwise
from tests.graphs import stored
from tests.hetero_graphs import hetero_graph, random_hetero_data
from tests.trainers import trainer_of
from tests.training.test_trainer import Recorder, make_trainer

EPOCHS, STEPS = 4, 4  # 30 training nodes, 8 a step


class Interrupting(Recorder):
    """Breaks training off when it hears of so many steps."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def on_step(self, progress: StepProgress) -> None:
        super().on_step(progress)
        if len(self.steps) == self.step:
            raise KeyboardInterrupt


def make(
    store: StoredGraph,
    directory: Path,
    *,
    context: DistributedContext | None = None,
    listener: Recorder | None = None,
    dropout: float = 0.5,
    **keys: Any,
) -> Trainer:
    context = context or DistributedContext()
    directory.mkdir(exist_ok=True)
    trainer = make_trainer(
        store,
        context,
        batch_size=8 // context.world_size,
        evaluator=layerwise(store, directory, context),
        model={"dropout": dropout, "norm": "batch" if dropout else "none"},
        listeners=() if listener is None else (listener,),
        checkpoints=directory if context.is_main else None,
        checkpoint_config=CheckpointConfig(every_steps=1),
        **{"epochs": EPOCHS, **keys},
    )
    torch.manual_seed(1 + context.rank)  # ranks drop other values
    return trainer


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StoredGraph:
    return stored(tmp_path_factory.mktemp("graph") / "store")


def outcome(trainer: Trainer) -> tuple[list[Any], int | None, dict[str, torch.Tensor]]:
    """All that must not depend on interruptions."""
    records = [(r.epoch, r.step, r.train_loss, r.metrics, r.lr) for r in trainer.result.records]
    return records, trainer.result.best_epoch, trainer.model.state_dict()


def assert_same(found: Trainer, wanted: Trainer) -> None:
    found_records, found_best, found_weights = outcome(found)
    records, best, weights = outcome(wanted)
    assert (found_records, found_best) == (records, best)
    assert found_weights.keys() == weights.keys()
    assert all(torch.equal(found_weights[name], weights[name]) for name in weights)


def resumed(store: StoredGraph, directory: Path, **keys: Any) -> Trainer:
    trainer = make(store, directory, **keys)
    state, path, _ = load_last(directory)
    trainer.load_state(state, path)
    return trainer


def interrupted(trainer: Trainer) -> None:
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()


@pytest.mark.parametrize(
    "keys",
    [
        {"scheduler": "cosine", "warmup_epochs": 1},
        {"optimizer": "sgd", "scheduler": "plateau", "scheduler_step": 1, "clip_norm": 0.5},
        {"optimizer": "adamw", "weight_decay": 0.1, "eval_every": 2, "on_nonfinite": "skip"},
        {"kind": "full", "scheduler": "step", "scheduler_step": 1},
        {"max_steps": 6},
        {"patience": 2, "epochs": 40, "lr": 0.5},
    ],
    ids=lambda keys: ",".join(map(str, keys.values())),
)
def test_a_run_broken_off_anywhere_ends_bit_for_bit_as_one_that_was_not(
    store: StoredGraph, tmp_path: Path, keys: dict[str, Any]
) -> None:
    whole = make(store, tmp_path / "whole", **keys)
    whole.fit()
    assert len(whole.result.records) < 40
    # The first kind of run at each step of an epoch; the others within epochs, at ends and starts.
    steps = range(2, whole.result.records[-1].step + 1)
    for step in steps[:4] if keys.get("scheduler") == "cosine" else steps[::5]:
        directory = tmp_path / str(step)
        interrupted(make(store, directory, listener=Interrupting(step), **keys))
        again = resumed(store, directory, **keys)
        again.fit()
        assert_same(again, whole)


@pytest.mark.parametrize(
    ("optimizer", "setting"), [("adam", "capturable"), ("adamw", "capturable"), ("sgd", "fused")]
)
def test_the_settings_of_a_step_recorded_on_a_gpu_bind_no_later_run(
    store: StoredGraph, tmp_path: Path, optimizer: str, setting: str
) -> None:
    trainer = make(store, tmp_path / "run", epochs=1, optimizer=optimizer)
    usual = trainer.update.optimizer.param_groups[0][setting]
    trainer.fit()
    state = load_checkpoint(tmp_path / "run" / "last.pt")
    state["optimizer"]["param_groups"][0][setting] = True
    again = make(store, tmp_path / "again", epochs=2, optimizer=optimizer)
    again.load_state(state)
    assert again.update.optimizer.param_groups[0][setting] == usual
    again.fit()  # Adam would refuse a state that is said to be a GPU's


def test_a_state_without_an_entry_is_refused(store: StoredGraph, tmp_path: Path) -> None:
    trainer = make(store, tmp_path, epochs=1)
    trainer.fit()
    state = load_checkpoint(tmp_path / "last.pt")
    for entry in ("ranks", "loader", "history"):
        with pytest.raises(CheckpointError, match="does not hold what going on needs"):
            trainer.load_state({name: state[name] for name in state if name != entry})


def test_the_seconds_of_a_run_are_added_up(store: StoredGraph, tmp_path: Path) -> None:
    make(store, tmp_path / "run", epochs=1).fit()
    state = load_checkpoint(tmp_path / "run" / "last.pt")
    assert state["seconds"] > 0
    again = resumed(store, tmp_path / "run", epochs=2)
    assert again.result.seconds_before == state["seconds"]
    again.fit()
    assert load_checkpoint(tmp_path / "run" / "last.pt")["seconds"] > state["seconds"]


# Typed graphs, whose embedding tables are updated by row


def make_typed(
    folder: Path,
    *,
    context: DistributedContext | None = None,
    sampler: str = "neighbor",
    num_train: int = 20,
    listeners: tuple[Recorder, ...] = (),
    **keys: Any,
) -> Trainer:
    context = context or DistributedContext()
    folder.mkdir(exist_ok=True)
    data = random_hetero_data()
    data.splits = {**data.splits, "train": data.splits["train"][:num_train]}
    data.nodes["author"].features = None  # as those of venues
    trained = {"lr": 0.05, "epochs": 3, "batch_size": 12 // context.world_size, **keys}
    drawn = {"fan_outs": [3, 3]} if sampler == "neighbor" else {}
    model = {"name": "rgcn", "hidden_channels": 8, "dropout": 0.0, "norm": "none"}
    config = from_dict({"model": model, "sampler": {"name": sampler, **drawn}, "trainer": trained})
    return trainer_of(config, hetero_graph(data), folder, context=context, listeners=listeners)


def tables_of(trainer: Trainer) -> list[EmbeddingTable]:
    return [table for _, table in embedding_tables(trainer.model)]


class PrunesAfterTwo(Recorder):
    """Says after the second epoch that the run is hopeless."""

    def on_epoch(self, record: EpochRecord) -> None:
        if record.epoch == 2:
            raise Pruned


RANKS: dict[str, dict[str, Any]] = {
    "clipped": {"clip_norm": 0.1, "optimizer": "adamw"},
    "full": {"sampler": "full"},
    "weighted": {"class_weights": "balanced", "label_smoothing": 0.1},
    "few": {"num_train": 14},  # the second step has seeds for two ranks alone
    "pruned": {"listeners": (PrunesAfterTwo(),)},
}


def fit_rank(context: DistributedContext, payload: dict[str, Any]) -> None:
    folder = payload["folder"]
    for name, keys in RANKS.items():
        trainer = make_typed(folder / "same", context=context, **keys)
        trainer.fit()
        assert trainer.result.records[-1].time["all_reduce"] > 0
        assert trainer.result.is_pruned == (name == "pruned")
        weights = trainer.model.state_dict()
        assert all(
            torch.equal(weights[key], weight)
            for own in context.gather(weights)
            for key, weight in own.items()
        )
        if context.is_main:
            torch.save(outcome(trainer), folder / f"four {name}")
    store = StoredGraph.open(payload["store"])
    trainer = resumed(store, folder / "run", context=context, dropout=0)
    trainer.fit()
    if context.is_main:
        torch.save(outcome(trainer), folder / "four gone on")


def test_four_ranks_agree_and_go_on_as_one_within_1e_4(store: StoredGraph, tmp_path: Path) -> None:
    stopped = make(store, tmp_path / "run", dropout=0, listener=Interrupting(STEPS + 3))
    interrupted(stopped)
    payload = {"store": store.path, "folder": tmp_path}
    launch(fit_rank, payload, LaunchPlan(4, "cpu", 1, 60), tmp_path)
    alone = {name: make_typed(tmp_path / "alone", **keys) for name, keys in RANKS.items()}
    alone["gone on"] = make(store, tmp_path / "whole", dropout=0)
    for name, trainer in alone.items():
        trainer.fit()
        records, _, weights = torch.load(tmp_path / f"four {name}")
        losses = [record[2] for record in records]
        assert losses == pytest.approx([r.train_loss for r in trainer.result.records], rel=1e-4)
        close = 1e-4 if name == "gone on" else 1e-3
        for key, weight in outcome(trainer)[2].items():
            torch.testing.assert_close(weights[key], weight, rtol=close, atol=close / 10)


def test_clipping_counts_the_rows_of_tables(tmp_path: Path) -> None:
    trainer = make_typed(tmp_path, clip_norm=1e-9, optimizer="sgd", momentum=0.0, lr=1.0)
    before = {name: weight.clone() for name, weight in trainer.model.state_dict().items()}
    trainer.fit()
    after = trainer.model.state_dict()
    moved = sum(float((after[name] - weight).norm()) for name, weight in before.items())
    assert moved < 1e-6


def test_memory_that_runs_out_in_a_step_on_the_full_graph_advises_mini_batches(
    tmp_path: Path,
) -> None:
    trainer = make_typed(tmp_path, sampler="full")
    trainer.model.register_forward_pre_hook(lambda *_: torch.empty(1 << 60))
    with pytest.raises(RunError, match="ran out in epoch 1") as caught:
        trainer.fit()
    assert "sampler=neighbor" in (caught.value.hint or "")
    assert "batch_size" not in (caught.value.hint or "")


def test_a_step_with_a_gradient_that_is_not_finite_changes_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_typed(tmp_path, on_nonfinite="skip", epochs=1)
    take, before = EmbeddingTable.take_gradient, [t.weight.clone() for t in tables_of(trainer)]

    def spoilt(table: EmbeddingTable) -> Any:
        found = take(table)
        assert found is not None
        return found._replace(gradient=found.gradient * math.nan)

    monkeypatch.setattr(EmbeddingTable, "take_gradient", spoilt)
    with pytest.raises(Diverged):  # all steps were skipped
        trainer.fit()
    assert all(map(torch.equal, [t.weight for t in tables_of(trainer)], before))
