"""A rank's dry run, in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnntrain.cli import main
from gnntrain.errors import RunError, UserError
from gnntrain.loading.loader import SampledLoader
from gnntrain.planning import dry_run
from tests.planning.plans import MIB, opened, report_of
from tests.trainers import trainer_of


@pytest.mark.parametrize("extra", [[], ["model=gcn", "sampler.fan_outs=[-1,4]"], ["model=mlp"]])
def test_batches_are_those_that_training_draws(
    extra: list[str], small: list[str], tmp_path: Path
) -> None:
    overrides = [*small, "sampler.fan_outs=[3,2]", *extra]
    report = report_of(overrides, tmp_path)
    config, graph = opened(overrides)
    loader = trainer_of(config, graph, Path()).loader
    assert isinstance(loader, SampledLoader)
    loader.set_epoch(1)
    drawn = list(loader)
    assert [batch["num_nodes"] for batch in report["batches"]] == [b.n_id.numel() for b in drawn]
    edges = [[hop.num_edges for hop in reversed(batch.hops)] for batch in drawn]
    assert [batch["num_edges"] for batch in report["batches"]] == edges
    assert [batch["num_seeds"] for batch in report["batches"]] == [40, 40, 20]


@pytest.mark.parametrize(
    "overrides",
    [
        ["model=gatv2", "model.heads=2", "model.jk=max"],
        ["sampler=full"],
        ["evaluation=sampled"],
        ["evaluation.ranks=0", "model.num_layers=3", "sampler.fan_outs=[3,3,3]"],
        ["dataset.feature_dtype=bfloat16", "trainer.precision=bf16"],
        ["trainer.drop_last=true", "sampler.threads=2"],
        ["trainer.max_steps=1", "trainer.epochs=1"],
        ["trainer.scheduler=cosine", "trainer.warmup_epochs=3", "trainer.patience=1"],
    ],
    ids=" ".join,
)
def test_every_kind_of_run_can_be_measured(
    overrides: list[str], small: list[str], tmp_path: Path
) -> None:
    report = report_of([*small, *overrides], tmp_path)
    assert len(report["steps"]) >= 4
    assert min(report["steps"]) > 0
    assert report["evaluation"] > 0
    assert report["peak_bytes"] >= report["training_bytes"] > MIB
    assert report["checkpoint_bytes"] > 4 * report["num_parameters"]


def test_layers_are_counted_where_they_lie(small: list[str], tmp_path: Path) -> None:
    keys = ["model.num_layers=3", "sampler.fan_outs=[2,2,2]", "evaluation.memory_limit=1e-9"]
    report = report_of([*small, *keys], tmp_path)
    one_layer, aggregates = 400 * 16 * 4, 400 * 64 * 4  # those of the features are kept
    assert report["disk_bytes"] - aggregates in (one_layer, 2 * one_layer)
    assert report["shared_bytes"] == 0  # there is one rank
    assert {path.suffix for path in tmp_path.iterdir()} == {".pt", ".json"}  # no layer is left


def test_a_checkpoint_has_the_size_of_a_runs(small: list[str], tmp_path: Path) -> None:
    report = report_of(small, tmp_path)
    assert main([*small, "trainer.epochs=1", f"run.dir={tmp_path}/run"]) == 0
    size = (tmp_path / "run" / "checkpoints" / "last.pt").stat().st_size
    assert report["checkpoint_bytes"] == pytest.approx(size, rel=0.1)


def test_memory_that_runs_out_is_told_with_a_hint(
    small: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("gnntrain.training.update.Update.__call__", fail)
    with pytest.raises(RunError) as caught:
        report_of(small, tmp_path)
    assert "trainer.batch_size" in (caught.value.hint or "")


def test_a_folder_that_cannot_be_written_is_the_users_mistake(small: list[str]) -> None:
    config, graph = opened(small)
    with pytest.raises(UserError) as caught:
        dry_run.dry_run(config, graph, Path("/proc/self"))
    assert "run.dir=DIR" in (caught.value.hint or "")
