"""Training on typed graphs, whose embedding tables are updated by row."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from gnntrain.config import from_dict
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.errors import Diverged, RunError
from gnntrain.models.embedding import EmbeddingTable, embedding_tables
from gnntrain.training.trainer import Trainer
from tests.hetero_graphs import hetero_graph, random_hetero_data
from tests.trainers import trainer_of
from tests.training.test_resumed_training import outcome


def make(
    folder: Path,
    *,
    context: DistributedContext | None = None,
    sampler: str = "neighbor",
    **keys: Any,
) -> Trainer:
    context = context or DistributedContext()
    folder.mkdir(exist_ok=True)
    data = random_hetero_data()
    data.nodes["author"].features = None  # as those of venues
    trained = {"lr": 0.05, "epochs": 3, "batch_size": 6 // context.world_size, **keys}
    drawn = {"fan_outs": [3, 3]} if sampler == "neighbor" else {}
    model = {"name": "rgcn", "hidden_channels": 8, "dropout": 0.0, "norm": "none"}
    config = from_dict({"model": model, "sampler": {"name": sampler, **drawn}, "trainer": trained})
    return trainer_of(config, hetero_graph(data), folder, context=context)


def tables_of(trainer: Trainer) -> list[EmbeddingTable]:
    return [table for _, table in embedding_tables(trainer.model)]


RANKS: list[dict[str, Any]] = [{"clip_norm": 0.1, "optimizer": "adamw"}, {"sampler": "full"}]


def fit_rank(context: DistributedContext, folder: Path) -> None:
    for keys in RANKS:
        trainer = make(folder / "same", context=context, **keys)
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
        alone = make(tmp_path / "alone", **keys)
        alone.fit()
        records, _, weights = torch.load(tmp_path / "-".join(["two", *keys]))
        losses = [record[2] for record in records]
        assert losses == pytest.approx([r.train_loss for r in alone.result.records], rel=1e-4)
        for name, weight in outcome(alone)[2].items():
            torch.testing.assert_close(weights[name], weight, rtol=1e-3, atol=1e-4)


def test_clipping_counts_the_rows_of_tables(tmp_path: Path) -> None:
    trainer = make(tmp_path, clip_norm=1e-9, optimizer="sgd", momentum=0.0, lr=1.0)
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


def test_a_step_with_a_gradient_that_is_not_finite_changes_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make(tmp_path, on_nonfinite="skip", epochs=1)
    take, before = EmbeddingTable.take_gradient, [t.weight.clone() for t in tables_of(trainer)]

    def spoilt(table: EmbeddingTable) -> Any:
        found = take(table)
        assert found is not None
        return found._replace(gradient=found.gradient * math.nan)

    monkeypatch.setattr(EmbeddingTable, "take_gradient", spoilt)
    with pytest.raises(Diverged):  # all steps were skipped
        trainer.fit()
    assert all(map(torch.equal, [t.weight for t in tables_of(trainer)], before))
