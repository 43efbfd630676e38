"""Figures of a plan, from reports that are made up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.app import compose_config
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import UserError
from gnntrain.planning import plan
from gnntrain.planning.plan import Plan
from tests.examples import examples
from tests.planning.plans import GIB, MIB, batch_of, opened, plan_of
from tests.trainers import loaders_of


@pytest.fixture
def planned_run(small: list[str]) -> Plan:
    return plan_of(small)


def counts(planned: Plan) -> tuple[int, ...]:
    names = ("num_steps", "num_epochs", "num_evaluations", "num_steps_in_all")
    return tuple(planned.figures[name] for name in names)


def test_steps_epochs_and_evaluations_are_those_of_the_run(small: list[str]) -> None:
    planned = plan_of([*small, "trainer.epochs=7", "trainer.eval_every=3"])
    assert counts(planned) == (3, 7, 3, 21)
    assert planned.times["step"] == pytest.approx(0.2)
    assert planned.times["training"] == pytest.approx(0.6)
    assert planned.times["evaluation"] == pytest.approx(3.5)
    assert planned.times["run"] == pytest.approx(7 * 0.6 + 3 * 3.5)
    capped = plan_of([*small, "trainer.epochs=7", "trainer.max_steps=4"])
    assert counts(capped) == (3, 2, 2, 4)
    dropped = plan_of([*small, "trainer.drop_last=true"])
    assert dropped.figures["num_steps"] == 2


@examples(25)
@given(batch_size=st.integers(1, 110), world_size=st.integers(1, 5), drop_last=st.booleans())
def test_the_steps_of_an_epoch_are_those_of_the_loader(
    batch_size: int, world_size: int, drop_last: bool, planned_run: Plan
) -> None:
    changes = {"batch_size": batch_size, "drop_last": drop_last}
    trainer = planned_run.config.trainer.model_copy(update=changes)
    config = planned_run.config.model_copy(update={"trainer": trainer})
    launch = replace(planned_run.launch, world_size=world_size)
    planned = replace(planned_run, config=config, launch=launch)
    context = DistributedContext(world_size=world_size)
    num_steps = len(loaders_of(config, planned.graph, context).training_loader())
    if num_steps:  # a run of none is refused
        assert planned.figures["num_steps"] == num_steps


def test_means_over_batches_are_scaled_to_bytes(small: list[str]) -> None:
    batch = plan_of([*small, "distributed.num_processes=2"], ranks=2).figures["batch"]
    assert batch["num_nodes"] == 150
    assert batch["num_edges"] == [75, 225]
    assert batch["bytes_read"] == 96_000
    assert batch["bytes_reduced"] == 4 * 1000
    assert plan_of(small).figures["batch"]["bytes_reduced"] == 0


def test_of_embedding_tables_only_the_rows_of_the_batches_are_sent(small: list[str]) -> None:
    overrides = [*small, "distributed.num_processes=3"]
    batches = [batch_of(40, 200, [100], 0, 600), batch_of(20, 100, [50], 0, 400)]
    batch = plan_of(overrides, ranks=3, num_dense=300, batches=batches).figures["batch"]
    assert batch["bytes_reduced"] == pytest.approx(2 * 2 / 3 * 4 * 300 + 2 * 500)


def test_layers_that_ranks_share_count_once(small: list[str]) -> None:
    memory = plan_of([*small, "distributed.num_processes=2"], ranks=2, shared=64 * MIB).memory
    assert memory["needed"] == (2 * 500 + 64) * MIB
    assert memory["peak_rss"] == 2 * (500 + 100) * MIB


def checks_of(planned: Plan) -> dict[str, str]:
    return {check.name: check.judgement for check in planned.checks}


def test_a_run_that_needs_too_much_names_the_key(
    small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(checks_of(plan_of(small)).values()) == {"ok"}
    monkeypatch.setattr(plan, "available_memory", lambda: 450 * MIB)
    lacking = plan_of(small, peak_bytes=460 * MIB)
    assert not lacking.fits
    assert "trainer.batch_size=32 " in lacking.checks[0].hint  # below 0.85 * 40 * 450 / 460
    full = plan_of([*small, "sampler=full"], peak_bytes=460 * MIB)
    assert "sampler=neighbor" in full.checks[0].hint
    assert "evaluation.memory_limit" in plan_of(small, peak_bytes=GIB).checks[0].hint
    assert checks_of(plan_of(small, peak_bytes=400 * MIB))["memory"] == "note"


def test_a_disk_that_is_too_small_names_the_run_directory(
    small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "free_bytes", lambda _: 2 * MIB)
    lacking = plan_of([*small, "run.dir=not/yet/there"])
    assert checks_of(lacking)["disk"] == "problem"
    assert "run.dir=DIR" in lacking.checks[-1].hint
    assert not Path("not").exists()


def test_a_run_on_parts_is_not_planned_as_one_on_the_whole_graph(
    small: list[str], tmp_path: Path
) -> None:
    keys = ["distributed.graph=partitioned", f"distributed.parts={tmp_path}"]
    config = compose_config([*small, *keys], for_here=False)
    with pytest.raises(UserError, match="partitioned"):
        plan.plan(config)


@pytest.mark.slow
def test_several_ranks_are_measured_together(small: list[str]) -> None:
    config, _ = opened([*small, "distributed.num_processes=2"])
    planned = plan.plan(config)
    assert len(planned.ranks) == 2
    assert planned.memory["shared"] > 0
    assert planned.figures["batch"]["num_seeds"] <= 40


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_size_of_a_store_is_known_before_it_is_built(dtype: str, small: list[str]) -> None:
    keys = [*small, f"dataset.feature_dtype={dtype}", "dataset.num_nodes=3000"]
    config, graph = opened(keys)
    assert plan.expected_bytes(config.dataset) == pytest.approx(graph.num_bytes, rel=0.1)
    published = compose_config(["dataset=ogbn-products"]).dataset
    assert plan.expected_bytes(published) == pytest.approx(1.53e9, rel=0.05)
