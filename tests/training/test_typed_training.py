"""Training on typed graphs, whose embedding tables are updated by row."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from gnntrain.config import CheckpointConfig, from_dict
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.errors import Diverged, RunError
from gnntrain.models.embedding import EmbeddingTable, embedding_tables
from gnntrain.training.checkpoint import load_last
from gnntrain.training.trainer import Trainer
from tests.hetero_graphs import SIZES, hetero_graph, random_hetero_data
from tests.trainers import trainer_of
from tests.training.test_resumed_training import Interrupting, assert_same, outcome


def make(
    folder: Path,
    *,
    context: DistributedContext | None = None,
    listener: Interrupting | None = None,
    dropout: float = 0.5,
    model: str = "rgcn",
    sampler: str = "neighbor",
    **keys: Any,
) -> Trainer:
    context = context or DistributedContext()
    folder.mkdir(exist_ok=True)
    data = random_hetero_data()
    data.nodes["author"].features = None  # as those of venues
    scaffold = {"hidden_channels": 8, "dropout": dropout, "norm": "batch" if dropout else "none"}
    trained = {"lr": 0.05, "epochs": 3, "batch_size": 6 // context.world_size, **keys}
    drawn = {"fan_outs": [3, 3]} if sampler == "neighbor" else {}
    config = from_dict(
        {
            "model": {"name": model, **scaffold},
            "sampler": {"name": sampler, **drawn},
            "trainer": trained,
        }
    )
    return trainer_of(
        config,
        hetero_graph(data),
        folder,
        context=context,
        listeners=() if listener is None else (listener,),
        checkpoints=folder if context.is_main else None,
        checkpoint_config=CheckpointConfig(every_steps=1),
    )


def tables_of(trainer: Trainer) -> list[EmbeddingTable]:
    return [table for _, table in embedding_tables(trainer.model)]


@pytest.mark.parametrize(
    "keys",
    [
        {"optimizer": "sgd", "clip_norm": 0.5, "weight_decay": 0.01},
        {"model": "hgt", "optimizer": "adamw", "on_nonfinite": "skip", "scheduler": "cosine"},
        {"sampler": "full"},
    ],
    ids=lambda keys: ",".join(map(str, keys.values())),
)
def test_a_run_broken_off_anywhere_ends_bit_for_bit_as_one_that_was_not(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    whole = make(tmp_path / "whole", **keys)
    before = [table.weight.clone() for table in tables_of(whole)]
    assert [len(weight) for weight in before] == [SIZES["author"], SIZES["venue"]]
    whole.fit()
    assert not any(
        torch.equal(table.weight, first)
        for table, first in zip(tables_of(whole), before, strict=True)
    )
    for step in (2, whole.result.records[-1].step - 1):
        folder = tmp_path / str(step)
        with pytest.raises(KeyboardInterrupt):
            make(folder, listener=Interrupting(step=step), **keys).fit()
        again = make(folder, **keys)
        again.load_state(load_last(folder)[0])
        again.fit()
        assert_same(again, whole)


RANKS: list[dict[str, Any]] = [{"clip_norm": 0.1, "optimizer": "adamw"}, {"sampler": "full"}]


def fit_rank(context: DistributedContext, folder: Path) -> None:
    for keys in RANKS:
        trainer = make(folder / "same", context=context, dropout=0, **keys)
        trainer.fit()
        weights = trainer.model.state_dict()
        assert all(
            torch.equal(weights[name], weight)
            for own in context.gather(weights)
            for name, weight in own.items()
        )
        if context.is_main:
            torch.save(outcome(trainer), folder / "-".join(["two", *keys]))


def test_two_ranks_agree_and_give_what_one_gives_within_1e_4(tmp_path: Path) -> None:
    launch(fit_rank, tmp_path, LaunchPlan(2, "cpu", 1, 60), tmp_path)
    for keys in RANKS:
        alone = make(tmp_path / "alone", dropout=0, **keys)
        alone.fit()
        records, _, weights = torch.load(tmp_path / "-".join(["two", *keys]))
        losses = [record[2] for record in records]
        assert losses == pytest.approx([r.train_loss for r in alone.result.records], rel=1e-4)
        for name, weight in outcome(alone)[2].items():
            torch.testing.assert_close(weights[name], weight, rtol=1e-3, atol=1e-4)


def test_clipping_counts_the_rows_of_tables(tmp_path: Path) -> None:
    trainer = make(tmp_path, clip_norm=1e-9, optimizer="sgd", momentum=0.0, lr=1.0, dropout=0)
    before = {name: weight.clone() for name, weight in trainer.model.state_dict().items()}
    trainer.fit()
    after = trainer.model.state_dict()
    moved = sum(float((after[name] - weight).norm()) for name, weight in before.items())
    assert moved < 1e-6


def test_memory_that_runs_out_in_a_step_on_the_full_graph_advises_mini_batches(
    tmp_path: Path,
) -> None:
    trainer = make(tmp_path, sampler="full")
    trainer.model.register_forward_pre_hook(lambda *_: torch.empty(1 << 60))
    with pytest.raises(RunError, match="ran out in epoch 1") as caught:
        trainer.fit()
    assert "sampler=neighbor" in (caught.value.hint or "")
    assert "batch_size" not in (caught.value.hint or "")


def test_a_loss_that_is_no_number_names_the_node_type(tmp_path: Path) -> None:
    trainer = make(tmp_path)
    with torch.no_grad():
        for weight in trainer.model.parameters():
            weight.fill_(math.nan)
    with pytest.raises(Diverged, match=r"seed nodes of type paper \d+, "):
        trainer.fit()


def test_a_step_with_a_gradient_that_is_not_finite_changes_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make(tmp_path, on_nonfinite="skip", epochs=1, dropout=0)
    take, before = EmbeddingTable.take_gradient, [t.weight.clone() for t in tables_of(trainer)]

    def spoilt(table: EmbeddingTable) -> Any:
        found = take(table)
        assert found is not None
        return found._replace(gradient=found.gradient * math.nan)

    monkeypatch.setattr(EmbeddingTable, "take_gradient", spoilt)
    with pytest.raises(Diverged):  # all steps were skipped
        trainer.fit()
    assert all(map(torch.equal, [t.weight for t in tables_of(trainer)], before))
