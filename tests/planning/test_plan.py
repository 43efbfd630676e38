"""Plans of small runs: by the command, by `make_plan`, and a rank's dry run in this process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnntrain.app import compose_config
from gnntrain.cli import main
from gnntrain.config import Config
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan
from gnntrain.errors import RunError, UserError
from gnntrain.inventory import machine
from gnntrain.planning import dry_run, partial, plan, size
from gnntrain.planning.dry_run import BatchSize, RankReport
from gnntrain.planning.partial import EvaluationCost
from gnntrain.planning.plan import Plan, make_plan
from gnntrain.run_store import prepare_store
from gnntrain.training.buffers import SharedBuffers
from tests.trainers import loaders_of, trainer_of

MIB, GIB = 2**20, 2**30


@pytest.fixture(scope="module")
def store_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


@pytest.fixture
def small(tmp_path: Path, store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of a small graph in a folder of its own, and few steps to time."""
    monkeypatch.setattr(dry_run, "_MOST", 4)
    monkeypatch.chdir(tmp_path)
    return [
        "dataset.num_nodes=400",
        "dataset.num_train=100",
        f"dataset.store_dir={store_dir}",
        "model.hidden_channels=16",
        "trainer.batch_size=40",
        "trainer.gpus=0",
        "distributed.threads=1",
    ]


def opened(overrides: list[str]) -> tuple[Config, StoredGraph]:
    config = compose_config(overrides, for_here=False).config
    return config, prepare_store(config.dataset).store


def report_of(overrides: list[str], folder: Path) -> RankReport:
    """The dry run of a single rank, in this process."""
    config, graph = opened(overrides)
    dry_run.run_rank(DistributedContext(), dry_run._Job(config, graph.path, folder))
    (report,) = dry_run.REPORTS.validate_json((folder / dry_run._ANSWER).read_bytes())
    return report


def plan_of(overrides: list[str], *, ranks: int = 1, shared: int = 0, **changes: object) -> Plan:
    """The plan from a report that is made up."""
    config, graph = opened(overrides)
    plain: dict[str, object] = {
        "num_parameters": 1000,
        "batches": [BatchSize(40, 200, [100, 300], 500), BatchSize(20, 100, [50, 150], 250)],
        "steps": [0.1, 0.2, 0.3],
        "evaluation": EvaluationCost([(1.0, 0.9, 1.2), (2.0, 1.5, 3.0)], 0.5, 0, shared, 0),
        "training_bytes": 400 * MIB,
        "peak_bytes": 500 * MIB,
        "library_bytes": 100 * MIB,
        "gpu_bytes": 0,
        "checkpoint_bytes": MIB,
        "placement": [],
    }
    reports = [RankReport(**(plain | changes))] * ranks  # type: ignore[arg-type]  # as above
    asked = LaunchPlan.of(config)
    return Plan(config, graph, "opened", asked, asked, reports)


@pytest.fixture
def planned_run(small: list[str]) -> Plan:
    return plan_of(small)


def test_steps_epochs_and_evaluations_are_those_of_the_run(small: list[str]) -> None:
    planned = plan_of([*small, "trainer.epochs=7", "trainer.eval_every=3"])
    assert (planned.num_steps, planned.num_epochs, planned.num_evaluations) == (3, 7, 3)
    assert planned.times["step"] == pytest.approx(0.2)
    assert planned.times["training"] == pytest.approx(0.6)
    assert planned.times["evaluation"] == pytest.approx(3.5)
    assert planned.times["evaluation_range"] == pytest.approx([2.9, 4.7])
    assert planned.times["run"] == pytest.approx(7 * 0.6 + 3 * 3.5)
    capped = plan_of([*small, "trainer.epochs=7", "trainer.max_steps=4"])
    assert (capped.num_epochs, capped.num_evaluations, capped.num_steps_in_all) == (2, 2, 4)
    dropped = plan_of([*small, "trainer.drop_last=true"])
    assert dropped.num_steps == 2


@given(batch_size=st.integers(1, 110), world_size=st.integers(1, 5), drop_last=st.booleans())
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_steps_of_an_epoch_are_those_of_the_loader(
    batch_size: int, world_size: int, drop_last: bool, planned_run: Plan
) -> None:
    changes = {"batch_size": batch_size, "drop_last": drop_last}
    trainer = planned_run.config.trainer.model_copy(update=changes)
    config = planned_run.config.model_copy(update={"trainer": trainer})
    planned = replace(
        planned_run, config=config, asked=replace(planned_run.asked, world_size=world_size)
    )
    context = DistributedContext(world_size=world_size)
    assert planned.num_steps == len(loaders_of(config, planned.graph, context).training_loader())


@pytest.mark.parametrize("extra", [[], ["model=gcn", "sampler.fan_outs=[-1,4]"], ["model=mlp"]])
def test_batches_are_those_that_training_draws(
    extra: list[str], small: list[str], tmp_path: Path
) -> None:
    overrides = [*small, "sampler.fan_outs=[3,2]", *extra]
    report = report_of(overrides, tmp_path)
    config, graph = opened(overrides)
    loader = trainer_of(config, graph, Path()).loader
    loader.set_epoch(1)
    drawn = list(loader)
    assert [batch.num_nodes for batch in report.batches] == [b.n_id.numel() for b in drawn]
    edges = [[block.num_edges for block in reversed(batch.blocks)] for batch in drawn]
    assert [list(batch.num_edges) for batch in report.batches] == edges
    assert [batch.num_seeds for batch in report.batches] == [40, 40, 20]


def test_means_over_batches_are_scaled_to_bytes(small: list[str]) -> None:
    batch = plan_of([*small, "distributed.num_processes=2"], ranks=2).batch
    assert batch["num_nodes"] == 150
    assert batch["num_edges"] == [75, 225]
    assert batch["bytes_read"] == 4 * 64 * 375
    assert batch["bytes_reduced"] == 4 * 1000
    assert plan_of(small).batch["bytes_reduced"] == 0


@pytest.mark.parametrize(
    "overrides",
    [
        ["model=gcn"],
        ["model=gatv2", "model.heads=2", "model.jk=max"],
        ["model=gin", "model.jk=cat", "model.residual=true"],
        ["model=mlp"],
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
    assert len(report.steps) >= 4
    assert min(report.steps) > 0
    assert all(low <= high for _, low, high in report.evaluation.loops)
    assert sum(mean for mean, _, _ in report.evaluation.loops) > 0
    assert report.peak_bytes >= report.training_bytes > MIB
    assert report.checkpoint_bytes > 4 * report.num_parameters


def test_a_checkpoint_has_the_size_of_a_runs(small: list[str], tmp_path: Path) -> None:
    report = report_of(small, tmp_path)
    assert main([*small, "trainer.epochs=1", f"run.dir={tmp_path}/run"]) == 0
    size = (tmp_path / "run" / "checkpoints" / "last.pt").stat().st_size
    assert report.checkpoint_bytes == pytest.approx(size, rel=0.1)


@pytest.mark.parametrize(
    "overrides",
    [
        ["model=sage", "model.num_layers=3", "sampler.fan_outs=[2,2,2]"],
        ["model=gat", "model.heads=4"],
        ["model=gcn", "model.jk=cat"],
        ["model=mlp"],
    ],
    ids=" ".join,
)
def test_layers_are_allocated_as_in_a_whole_evaluation(
    overrides: list[str], small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, graph = opened([*small, *overrides, "evaluation.memory_limit=1e-9"])
    trainer = trainer_of(config, graph, tmp_path)
    held: list[int] = []
    original = SharedBuffers.matrix

    def noted(self: SharedBuffers, *shape: Any) -> torch.Tensor:
        matrix = original(self, *shape)
        held.append(sum(one.nbytes for one in self._matrices.values()))
        return matrix

    monkeypatch.setattr(SharedBuffers, "matrix", noted)
    trainer.evaluator.evaluate(trainer.model)
    whole, held[:] = list(held), []
    context = DistributedContext()
    cost = partial.evaluate_in_part(trainer.evaluator, trainer.model, context, tmp_path)
    assert held == whole
    assert cost.disk_bytes == max(whole)
    assert list(tmp_path.iterdir()) == []


def test_a_part_of_an_evaluation_leaves_the_model_alone(small: list[str], tmp_path: Path) -> None:
    config, graph = opened([*small, "model.norm=batch"])
    trainer = trainer_of(config, graph, tmp_path)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    partial.evaluate_in_part(trainer.evaluator, trainer.model, DistributedContext(), tmp_path)
    assert trainer.model.training
    assert all(torch.equal(before[name], v) for name, v in trainer.model.state_dict().items())


def test_a_loop_is_scaled_by_the_work_that_was_done() -> None:
    clock = partial._Clock(torch.device("cpu"))
    clock.end(clock.now(), [(1.0, 10.0), (3.0, 10.0)], 100.0)
    assert clock.loops[0] == pytest.approx((20.0, 12.0, 28.0))
    clock.end(clock.now(), [], 0.0)
    assert clock.loops[1] == (0.0, 0.0, 0.0)


def test_written_layers_are_resident(tmp_path: Path) -> None:
    buffers = partial._WrittenBuffers(DistributedContext(), tmp_path, GIB)
    status = Path("/proc/self/statm")
    before = int(status.read_text().split()[1])
    matrix = buffers.matrix("h0", 1 << 16, 256)
    grown = 4096 * (int(status.read_text().split()[1]) - before)
    assert grown > 0.9 * matrix.nbytes


def checks_of(planned: Plan) -> dict[str, str]:
    return {check.name: check.judgement for check in planned.checks}


def test_a_run_that_needs_too_much_names_the_key(
    small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(checks_of(plan_of(small)).values()) == {"ok"}
    monkeypatch.setattr(plan, "available_memory", lambda: 450 * MIB)
    lacking = plan_of(small, peak_bytes=460 * MIB)
    assert not lacking.fits
    assert "trainer.batch_size" in lacking.checks[0].hint
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


def test_what_ranks_share_counts_once_but_in_each_ranks_peak(small: list[str]) -> None:
    keys = [*small, "distributed.num_processes=2"]
    memory = plan_of(keys, ranks=2, shared=64 * MIB).memory
    assert memory["needed"] == (2 * 500 + 64) * MIB
    store = opened(keys)[1].num_bytes
    assert memory["peak_rss"] == 2 * ((500 + 64 + 100) * MIB + store)


def test_gpus_that_are_not_here_are_replaced_by_one_cpu_rank(
    small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def report(config: Config, *_: object) -> list[RankReport]:
        measured.append(config)
        return list(plan_of(small).ranks)

    measured: list[Config] = []
    monkeypatch.setattr(plan, "dry_run", report)
    keys = ["trainer.gpus=4", "trainer.precision=fp16", "sampler.backend=triton"]
    config = compose_config([*small, *keys], for_here=False).config
    planned = make_plan(config, prepare_store(config.dataset))
    assert (planned.asked.world_size, planned.measured_on) == (4, "1 CPU rank")
    assert (planned.num_steps, planned.fits) == (1, True)
    assert measured[0].trainer.gpus == 0
    assert measured[0].trainer.batch_size == 25
    assert checks_of(planned) == {"GPUs": "note"}


@pytest.mark.slow
def test_several_ranks_are_measured_together(small: list[str]) -> None:
    config, _ = opened([*small, "distributed.num_processes=2"])
    planned = make_plan(config, prepare_store(config.dataset))
    assert len(planned.ranks) == 2
    assert planned.measured_on == ""
    assert planned.memory["shared"] > 0
    assert planned.batch["num_seeds"] <= 40


def test_the_command_writes_json_and_leaves_nothing_behind(
    small: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["plan", *small, "--json", "plan.json"]) == 0
    assert "peak_rss_bytes" in capsys.readouterr().out
    told: dict[str, Any] = json.loads(Path("plan.json").read_text())
    assert told["num_nodes"] == 400
    assert told["memory"]["peak_rss"] > told["memory"]["needed"] > 0
    assert told["times"]["step_range"][0] <= told["times"]["step"]
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_memory_that_runs_out_is_told_with_a_hint(
    small: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("gnntrain.training.update.Update.__call__", fail)
    with pytest.raises(RunError) as caught:
        report_of(small, tmp_path)
    assert "trainer.batch_size" in (caught.value.hint or "")


def test_ctrl_c_leaves_nothing_behind(small: list[str], tmp_path: Path) -> None:
    slow = ["model.hidden_channels=4096", "trainer.batch_size=100"]
    command = [sys.executable, "-m", "gnntrain", "plan", *small, *slow]
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": root}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".gnntrain-plan-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert list(tmp_path.iterdir()) == []


def test_mistakes_are_told_as_for_training(
    small: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *small, "modle=sage", "trainer.epochs=ten"]) == 2
    assert "2 mistakes in the configuration" in capsys.readouterr().err
    assert main(["plan", *small, "trainer.drop_last=true", "trainer.batch_size=1000"]) == 2


def test_of_a_large_graph_that_is_not_prepared_its_published_size_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ["dataset=ogbn-papers100M", f"dataset.store_dir={tmp_path}/none/yet"]
    assert main(["plan", *keys]) == 2
    out, err = capsys.readouterr()
    assert "111,059,956" in out
    assert "gnntrain prepare" in err or "dataset.store_dir" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_size_of_a_store_is_known_before_it_is_built(dtype: str, small: list[str]) -> None:
    keys = [*small, f"dataset.feature_dtype={dtype}", "dataset.num_nodes=3000"]
    config, graph = opened(keys)
    assert size.expected_bytes(config.dataset) == pytest.approx(graph.num_bytes, rel=0.1)
    published = compose_config(["dataset=ogbn-products"]).config.dataset
    assert size.expected_bytes(published) == pytest.approx(1.53e9, rel=0.05)


def test_a_folder_that_cannot_be_written_is_the_users_mistake() -> None:
    with pytest.raises(UserError) as caught, dry_run._temporary_folder(Path("/proc/self")):
        pass
    assert "run.dir=DIR" in (caught.value.hint or "")


def test_the_screen(small: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from gnntrain.planning.screen import plan_sections
    from gnntrain.reporting.tables import print_sections

    print_sections(plan_sections(plan_of(small)))
    shown = [line for line in capsys.readouterr().out.splitlines() if "stores" not in line]
    free = [line for line in shown if " available" not in line]
    assert np.array_equal(free[:-2], GOLDEN.splitlines())
    assert machine.available_memory() > 0


GOLDEN = """\
run
  graph  synthetic: 400 nodes, 6,000 edges
         64 features, 8 classes
  model  sage, 1,000 parameters
  ranks  1 CPU rank, 1 thread each

a batch of one rank (mean of 2)
  nodes  30 seeds, 150 in all
  edges  75 + 225 (the hop of the seeds first)
  bytes  0.09 MiB of features read

time (3 steps and a part of evaluation)
  step        200 ms (120 ms to 280 ms)
  evaluation  3.50 s (2.90 s to 4.70 s)
  epoch       600 ms training (3 steps) + 3.50 s evaluation
  run         1:22 (20 epochs, 20 evaluations)

memory
  training    400 MiB
  evaluation  500 MiB
  page cache  0.13 MiB of the store; the system can drop it
  libraries   100 MiB a rank, mapped
  peak        600 MiB resident (peak_rss_bytes in summary.json)
  disk        3.00 MiB of checkpoints

does it fit?"""
