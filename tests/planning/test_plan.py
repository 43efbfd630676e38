"""Plans of small runs, made as the command makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gnntrain.planning.evaluation import PartialEvaluator
from gnntrain.planning.memory import layer_matrices
from gnntrain.planning.resident import OwnPeak, mapped_from, resident
from gnntrain.planning.store import expected_bytes, open_small_or_built
from torch import Tensor

from gnntrain.app import compose_config
from gnntrain.cli import main
from gnntrain.config import Config
from gnntrain.data.graph import Graph
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import UserError
from gnntrain.loading.build import LoaderBuilder
from gnntrain.planning import steps
from gnntrain.planning.plan import Plan, make_plan
from gnntrain.run_store import prepare_store
from gnntrain.training.buffers import SharedBuffers
from gnntrain.training.trainer import Trainer
from tests.trainers import trainer_of


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of a small graph in a folder of its own, and few steps to time."""
    monkeypatch.setattr(steps, "_MOST", 4)
    monkeypatch.chdir(tmp_path)
    return [
        "dataset.num_nodes=400",
        "dataset.num_train=100",
        f"dataset.store_dir={tmp_path}/stores",
        "model.hidden_channels=16",
        "trainer.batch_size=40",
        "trainer.gpus=0",
        "distributed.threads=1",
    ]


def planned(*overrides: str) -> Plan:
    return make_plan(compose_config(overrides).config)


def partial_of(trainer: Trainer, graph: Graph, peak: OwnPeak) -> PartialEvaluator:
    return PartialEvaluator(trainer.evaluator, trainer.task, graph, trainer.context, peak)


def test_steps_epochs_and_evaluations_are_those_of_the_run(small: list[str]) -> None:
    plan = planned(*small, "trainer.epochs=7", "trainer.eval_every=3")
    assert (plan.num_steps, plan.num_epochs, plan.num_evaluations) == (3, 7, 3)
    times = plan.times
    assert times.training == pytest.approx(3 * times.step)
    assert times.run == pytest.approx(7 * times.training + 3 * times.evaluation)
    capped = planned(*small, "trainer.epochs=7", "trainer.max_steps=4")
    assert (capped.num_steps, capped.num_epochs, capped.num_evaluations) == (3, 2, 2)


def test_batches_are_those_that_training_draws(small: list[str]) -> None:
    overrides = [*small, "sampler.fan_outs=[3,2]", "sampler.threads=0"]
    batch = planned(*overrides).batch
    config = compose_config(overrides).config
    loader = trainer_of(config, prepare_store(config.dataset).store, Path()).loader
    drawn = []
    for epoch in range(1, 9):
        loader.set_epoch(epoch)
        drawn += list(loader)
    drawn = drawn[: batch.num_drawn]
    assert batch.num_drawn >= 3
    assert batch.num_nodes == pytest.approx(np.mean([one.n_id.numel() for one in drawn]))
    edges = [[block.num_edges for block in reversed(one.blocks)] for one in drawn]
    assert batch.num_edges == pytest.approx(np.mean(edges, axis=0))
    rows = [one.blocks[0].num_edges + one.blocks[0].num_dst for one in drawn]
    assert batch.bytes_read == pytest.approx(4 * 64 * np.mean(rows))


@pytest.mark.parametrize(
    "overrides",
    [
        ["model=gcn"],
        ["model=gat", "model.heads=2"],
        ["model=gatv2", "model.heads=2", "model.jk=max"],
        ["model=gin", "model.jk=cat", "model.residual=true"],
        ["model=mlp"],
        ["sampler=full"],
        ["evaluation=sampled"],
        ["evaluation.ranks=0", "model.num_layers=3", "sampler.fan_outs=[3,3,3]"],
        ["dataset.feature_dtype=bfloat16", "trainer.precision=bf16"],
        ["trainer.drop_last=true", "sampler.threads=2"],
        ["trainer.max_steps=1"],
        ["trainer.scheduler=cosine", "trainer.warmup_epochs=3"],
    ],
    ids=" ".join,
)
def test_every_kind_of_run_can_be_planned(overrides: list[str], small: list[str]) -> None:
    plan = planned(*overrides, *(key for key in small if key.split("=")[0] not in overrides))
    assert plan.fits
    assert plan.times.step > 0
    assert plan.times.evaluation > 0
    assert plan.host.peak_rss > plan.host.needed > 2**20


def test_where_a_gpu_would_read_the_graph_is_told(
    small: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert planned(*small).placement == ()
    where = ("edges in pinned host memory: 9 GiB", "features in the store: 99 GiB")
    monkeypatch.setattr(LoaderBuilder, "why_placed", property(lambda _: where))
    assert main(["plan", *small, "--json", str(tmp_path / "plan.json")]) == 0
    printed = capsys.readouterr().out
    assert all(line in printed for line in where)
    assert json.loads((tmp_path / "plan.json").read_text())["placement"] == list(where)


def test_nothing_is_left_behind(small: list[str], tmp_path: Path) -> None:
    planned(*small, "run.name=mine")
    assert [path.name for path in tmp_path.iterdir()] == ["stores"]


@pytest.mark.slow
def test_several_ranks_are_planned_together(small: list[str]) -> None:
    plan = planned(*small, "distributed.num_processes=2")
    assert (plan.world_size, plan.num_steps) == (2, 2)
    assert plan.batch.bytes_reduced == 4 * plan.num_parameters
    assert plan.host.training > 1.5 * plan.host.a_rank
    assert plan.host.shared == plan.layers_at_once > 0
    alone = planned(*small)
    assert alone.batch.bytes_reduced == alone.host.shared == 0
    assert alone.layers_at_once == plan.layers_at_once


def test_the_command_shows_it_and_writes_it_as_json(
    small: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *small, "--json", "plan.json"]) == 0
    out = capsys.readouterr().out
    assert all(len(line) <= 80 for line in out.splitlines() if "/stores/" not in line)
    for part in ("a batch of one rank", "host memory", "estimate by formula", "does it fit?"):
        assert part in out
    told: dict[str, Any] = json.loads(Path("plan.json").read_text())
    assert told["num_nodes"] == 400
    assert told["host"]["peak_rss"] > 0
    assert main(["plan", *small, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["num_nodes"] == 400


def test_mistakes_are_told_as_for_training(
    small: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *small, "modle=sage", "trainer.epochs=ten"]) == 2
    assert "2 mistakes in the configuration" in capsys.readouterr().err
    assert main(["plan", *small, "trainer.drop_last=true", "trainer.batch_size=1000"]) == 2
    assert "leaves no step" in capsys.readouterr().err


def test_a_large_graph_is_not_built_for_a_plan(tmp_path: Path) -> None:
    keys = ["dataset=synthetic_reddit", f"dataset.store_dir={tmp_path}/none/yet"]
    with pytest.raises(UserError, match="not built yet") as caught:
        open_small_or_built(compose_config(keys).config.dataset)
    assert "gnntrain prepare" in (caught.value.hint or "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_size_of_a_store_is_known_before_it_is_built(dtype: str, small: list[str]) -> None:
    keys = [*small, f"dataset.feature_dtype={dtype}", "dataset.num_nodes=3000"]
    dataset = compose_config(keys).config.dataset
    assert expected_bytes(dataset) == pytest.approx(prepare_store(dataset).store.num_bytes, rel=0.1)
    published = compose_config(["dataset=ogbn-products"]).config.dataset
    assert expected_bytes(published) == pytest.approx(1.53e9, rel=0.05)


def test_own_peaks_are_seen_after_they_have_gone() -> None:
    with OwnPeak() as peak:
        before = resident().own
        block = np.ones(1 << 27, np.uint8)
        nearly = before + 0.9 * block.nbytes
        assert peak.so_far() > nearly
        del block
        assert peak.so_far() > nearly
        peak.begin()
        assert peak.so_far() < nearly


def test_pages_of_files_are_told_from_others(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(1 << 20))
    assert mapped_from(tmp_path) == 0
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert float(mapped.sum()) == 1 << 20
    assert mapped_from(tmp_path) >= mapped.nbytes


class NotedScratch(SharedBuffers):
    """Notes the most bytes that were handed out at once."""

    most = 0

    def matrix(self, name: str, num_rows: int, num_columns: int) -> Tensor:
        found = super().matrix(name, num_rows, num_columns)
        self.most = max(self.most, sum(m.numel() * 4 for m in self._matrices.values()))
        return found


@pytest.mark.parametrize(
    "overrides",
    [
        ["model=sage"],
        ["model=sage", "model.num_layers=3", "sampler.fan_outs=[2,2,2]"],
        ["model=gat", "model.heads=4"],
        ["model=gcn", "model.jk=cat"],
        ["model=mlp"],
    ],
    ids=" ".join,
)
def test_the_layers_are_those_that_evaluation_holds(
    overrides: list[str], small: list[str], tmp_path: Path
) -> None:
    config = compose_config([*overrides, *small]).config
    store = prepare_store(config.dataset).store
    trainer = trainer_of(config, store, tmp_path)
    with OwnPeak() as peak:
        partial = partial_of(trainer, store, peak)
        partial.evaluate(trainer.model)
    assert partial.cost is not None
    moments = layer_matrices(config, store, partial.cost.widths, 1)
    scratch = NotedScratch(DistributedContext(), tmp_path, 2**40)
    trainer.evaluator.buffers = scratch  # type: ignore[attr-defined]  # it has some
    trainer.evaluator.evaluate(trainer.model)
    assert max(sum(m.num_bytes for m in moment) for moment in moments) == scratch.most


def test_part_of_an_evaluation_leaves_model_and_metrics_alone(
    small: list[str], tmp_path: Path
) -> None:
    config: Config = compose_config([*small, "model.norm=batch"]).config
    store = prepare_store(config.dataset).store
    trainer = trainer_of(config, store, tmp_path)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    with OwnPeak() as peak:
        assert partial_of(trainer, store, peak).evaluate(trainer.model)["val"] == {}
    assert trainer.model.training
    assert all(torch.equal(before[name], v) for name, v in trainer.model.state_dict().items())
