"""Runs that are interrupted, killed or damaged, and go on; and runs whose graph has changed."""

from __future__ import annotations

import csv
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from gnntrain import run as run_module
from gnntrain.app import compose_config, recompose_config
from gnntrain.config import ConfigError
from gnntrain.distributed.launch import launch
from gnntrain.errors import RunError, UserError
from gnntrain.failures import keep_traceback
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.run import evaluate, resume, saved_config, train
from gnntrain.tasks import NodeClassification
from gnntrain.training.checkpoint import load_checkpoint, save_checkpoint
from scripts.soak.faults import rank_processes
from tests.data.files import write

ROOT = Path(__file__).parents[1]
KEYS = [
    *("dataset.num_nodes=600", "model.hidden_channels=16", "trainer.batch_size=16"),
    *("trainer.epochs=6", "trainer.gpus=0", "logger=[csv]", "checkpoint.every_steps=1"),
]
# The hit rate of a broken-off epoch is that of its second part, which may have fetched no row.
TIMES = (
    *("seconds", "eval_seconds", "seeds_per_s", "edges_per_s", "memory", "gpu_memory", "time"),
    "cache_hit_rate",
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def begin(run: Path, cache: Path, *keys: str) -> dict[str, Any]:
    stores = f"dataset.store_dir={cache / 'stores'}"
    return train(compose_config([*KEYS, stores, f"run.dir={run}", *keys]).config)


def go_on(run: Path, *changes: str) -> dict[str, Any]:
    return resume(run, recompose_config(saved_config(run), changes), overrides=changes)


def rows(run: Path) -> list[dict[str, Any]]:
    """What `metrics.jsonl` tells, without what depends on the clock or the moment of a break."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


def assert_same_run(run: Path, whole: Path) -> None:
    """Weights and metrics bit for bit, and every epoch once."""
    assert rows(run) == rows(whole)
    with (run / "metrics.csv").open(newline="") as file:
        told = [int(row["epoch"]) for row in csv.DictReader(file)]
    assert told == [row["epoch"] for row in rows(whole)]
    for name in ("last", "best"):
        weights = load_checkpoint(whole / "checkpoints" / f"{name}.pt")["model"]
        found = load_checkpoint(run / "checkpoints" / f"{name}.pt")["model"]
        assert all(torch.equal(found[key], weights[key]) for key in weights)
    summaries = [RunDirectory(path).summary() or {} for path in (run, whole)]
    for key in ("status", "epochs", "best_epoch", "train_loss", "train", "val", "test"):
        assert summaries[0][key] == summaries[1][key]


@pytest.fixture(scope="module")
def whole(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    run = tmp_path_factory.mktemp("whole") / "run"
    begin(run, cache)
    return run


def fail_at(monkeypatch: pytest.MonkeyPatch, call: int, error: BaseException) -> None:
    """The loss fails at its n-th call, once."""
    loss, num_calls = NodeClassification.loss, 0

    def failing(task: NodeClassification, *tensors: torch.Tensor) -> torch.Tensor:
        nonlocal num_calls
        num_calls += 1
        if num_calls == call:
            raise error
        return loss(task, *tensors)

    monkeypatch.setattr(NodeClassification, "loss", failing)


def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank alone that may start again runs here, where tests change what it does."""
    monkeypatch.setattr(
        run_module, "launch", lambda *given, **keys: launch(*given, **keys | {"in_process": True})
    )


def start(run: Path, cache: Path, *keys: str) -> subprocess.Popen[str]:
    """The command in a process of its own, which answers Ctrl-C even where the tests do not."""
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from gnntrain.cli import main\n"
        "if __name__ == '__main__': sys.exit(main())\n"
    )
    script = run.with_suffix(".py")
    script.write_text(code)
    stores = f"dataset.store_dir={cache / 'stores'}"
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, str(script), *KEYS, stores, f"run.dir={run}", *keys],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_epochs(run: Path, job: subprocess.Popen[str], num_epochs: int) -> None:
    path = run / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and job.poll() is None:
        if path.is_file() and len(path.read_text().splitlines()) >= num_epochs:
            return
        time.sleep(0.02)
    raise AssertionError(job.communicate())


@pytest.mark.slow
def test_ctrl_c_and_a_kill_lose_nothing(cache: Path, tmp_path: Path) -> None:
    keys = ["trainer.epochs=40", "trainer.scheduler=cosine"]
    begin(tmp_path / "whole", cache, *keys)
    run = tmp_path / "run"
    job = start(run, cache, *keys)
    wait_for_epochs(run, job, 3)
    job.send_signal(signal.SIGINT)
    _, errors = job.communicate(timeout=60)
    assert job.returncode == 130, errors
    assert f"gnntrain resume {run}" in errors
    assert (RunDirectory(run).summary() or {})["status"] == "interrupted"
    before = len(rows(run))
    again = subprocess.Popen(
        [sys.executable, "-m", "gnntrain", "resume", str(run)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for_epochs(run, again, before + 3)
    again.kill()
    again.communicate()
    assert (run / "summary.json").exists() is False
    go_on(run)
    assert_same_run(run, tmp_path / "whole")


@pytest.mark.slow
def test_a_killed_rank_is_named_with_what_was_reached_and_the_way_on(
    cache: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    job = start(run, cache, "trainer.epochs=5000", "distributed.num_processes=2")
    wait_for_epochs(run, job, 3)
    ranks = rank_processes(psutil.Process(job.pid))
    assert len(ranks) == 2
    ranks[0].kill()
    killed = time.monotonic()
    _, errors = job.communicate(timeout=120)
    assert time.monotonic() - killed < 30
    assert job.returncode == 138
    number = "0" if "Rank 0" in errors else "1"
    assert f"Rank {number} was ended by SIGKILL." in errors
    assert f"gnntrain resume {run}" in errors
    summary = RunDirectory(run).summary() or {}
    assert summary["status"] == "failed"
    assert "was ended by SIGKILL" in summary["error"]
    assert (summary["epochs"], summary["world_size"]) == (len(rows(run)), 2)
    assert summary["train_loss"] == [row["train/loss"] for row in rows(run)]
    assert summary["val"]["accuracy"] == max(row["val/accuracy"] for row in rows(run))
    assert summary["num_parameters"] > 0
    assert not any(child.is_running() for child in ranks)


@pytest.mark.parametrize("call", [1, 21], ids=["before the first checkpoint", "in an epoch"])
def test_a_run_that_may_starts_again_by_itself(
    call: int,
    cache: Path,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    in_this_process(monkeypatch)
    fail_at(monkeypatch, call, OSError("boom"))
    with caplog.at_level(logging.WARNING, logger="gnntrain"):
        begin(tmp_path / "run", cache, "trainer.max_restarts=1")
    assert "boom" in caplog.text
    assert "Starting again" in caplog.text
    assert_same_run(tmp_path / "run", whole)


def interrupted(run: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, *keys: str) -> None:
    with monkeypatch.context() as patch:
        fail_at(patch, 21, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            begin(run, cache, *keys)


def test_a_damaged_checkpoint_is_told_and_the_one_before_is_used(
    cache: Path,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = tmp_path / "run"
    interrupted(run, cache, monkeypatch)
    last = run / "checkpoints" / "last.pt"
    content = bytearray(last.read_bytes())
    content[content.index(b"history")] ^= 4
    last.write_bytes(content)
    with caplog.at_level(logging.WARNING, logger="gnntrain"):
        go_on(run)
    assert "last.pt cannot be used" in caplog.text
    assert "Resuming from last.prev.pt" in caplog.text
    assert_same_run(run, whole)


def test_harmless_keys_may_change_and_the_run_remembers_them(
    cache: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    interrupted(run, cache, monkeypatch, "trainer.epochs=4")
    go_on(run, "trainer.epochs=6", "logger=[csv,tensorboard]", "sampler.prefetch=2")
    assert_same_run(run, whole)
    assert saved_config(run)["trainer"]["epochs"] == 6
    assert (run / "overrides.txt").read_text().splitlines()[-1] == "sampler.prefetch=2"
    assert (run / "tensorboard").is_dir()


def test_a_run_goes_on_after_an_error_in_its_own_directory_and_in_a_new_one(
    cache: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        fail_at(patch, 21, ValueError("boom"))
        with pytest.raises(ValueError, match="boom"):
            begin(run, cache)
    assert "boom" in (RunDirectory(run).summary() or {})["error"]
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name != ".lock"}
    go_on(run, f"run.dir={tmp_path / 'branch'}")
    assert_same_run(tmp_path / "branch", whole)
    assert {p: p.read_bytes() for p in before} == before
    assert "error" not in go_on(run)
    assert_same_run(run, whole)


def test_epochs_that_are_in_no_checkpoint_are_told(
    whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    best = evaluate(run)["epoch"]
    assert not caplog.records
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    with (run / "metrics.jsonl").open("a") as file:  # as before a kill
        file.write(json.dumps({**last, "epoch": 7, "val/accuracy": 1.0}) + "\n")
    assert evaluate(run)["epoch"] == best
    assert "Epoch 7 was better" in caplog.text
    go_on(run)
    assert f"holds 6 whole epochs (the best so far: {best}). Later ones, up to 7," in caplog.text


def test_other_global_batches_are_refused_with_the_size_that_fits(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    interrupted(run, cache, monkeypatch)
    with pytest.raises(ConfigError, match="16 seeds") as caught:
        go_on(run, "distributed.num_processes=2")
    assert "write trainer.batch_size=8" in str(caught.value)


def test_what_this_machine_lacks_is_told_before_a_run_goes_on(whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    theirs = saved_config(run)
    theirs["trainer"] |= {"device": "cuda", "gpus": "auto", "precision": "fp16"}
    theirs["compute"]["kernels"] = "triton"
    (run / "config.yaml").write_text(json.dumps(theirs))
    with pytest.raises(ConfigError) as error:
        resume(run)
    assert "trainer.device" in {problem.key for problem in error.value.problems}


def test_a_run_that_is_still_going_on_is_left_alone(whole: Path) -> None:
    with RunDirectory(whole).held(), pytest.raises(UserError, match="is still going on"):
        go_on(whole)


def killed_at_its_beginning(whole: Path, run: Path) -> Path:
    shutil.copytree(whole, run)
    for path in (run / "summary.json", *(run / "checkpoints").iterdir()):
        path.unlink()
    return run


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew(
    whole: Path, tmp_path: Path
) -> None:
    go_on(killed_at_its_beginning(whole, tmp_path / "run"))
    assert_same_run(tmp_path / "run", whole)


def test_the_same_command_goes_on_with_its_run_if_it_may(
    cache: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = killed_at_its_beginning(whole, tmp_path / "run")
    with pytest.raises(UserError, match="holds a run already") as refused:
        begin(run, cache)
    assert "run.if_exists=resume" in str(refused.value.hint)
    begin(run, cache, "run.if_exists=resume")
    assert_same_run(run, whole)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    interrupted(tmp_path / "half", cache, monkeypatch)
    begin(tmp_path / "half", cache)
    assert_same_run(tmp_path / "half", whole)


def test_the_same_command_leaves_its_completed_run_as_it_is(
    cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, keys = tmp_path / "run", ["trainer.epochs=1", "run.if_exists=resume"]
    begin(run, cache, *keys)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert begin(run, cache, *keys)["status"] == "completed"
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    assert "has completed" in caplog.text
    with pytest.raises(ConfigError, match=r"trainer\.lr=0\.5 .*begun"):
        begin(run, cache, *keys, "trainer.lr=0.5")
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    assert begin(run, cache, *keys, "trainer.epochs=2")["epochs"] == 2


@pytest.mark.parametrize("name", ["metrics.jsonl", "logs", "checkpoints/last.prev.pt", ".lock"])
def test_a_link_in_a_strangers_run_is_not_written_through(
    name: str, whole: Path, tmp_path: Path
) -> None:
    run, victim = tmp_path / "run", tmp_path / "victim"
    shutil.copytree(whole, run)
    if name == "logs":
        victim.mkdir()
        shutil.rmtree(run / name)
    else:
        victim.write_text("mine")
        (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(victim)
    with pytest.raises(UserError, match="is a link to"):
        go_on(run, "trainer.epochs=7")
    assert keep_traceback(OSError("boom"), run) is None
    assert [*victim.iterdir()] == [] if name == "logs" else victim.read_text() == "mine"


def test_links_within_a_run_are_no_harm(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "best").symlink_to("checkpoints/best.pt")
    assert go_on(tmp_path / "run", "trainer.epochs=7")["epochs"] == 7


def test_a_completed_run_without_its_checkpoints_cannot_go_on(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        path.unlink()
    with pytest.raises(UserError, match="no checkpoint"):
        go_on(tmp_path / "run")


def test_evaluate_refuses_the_weights_of_another_model(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    best = tmp_path / "run" / "checkpoints" / "best.pt"
    state = load_checkpoint(best)
    state["model"] = {name: weight[:1] for name, weight in state["model"].items()}
    save_checkpoint(best, state)
    with pytest.raises(UserError, match=r"\[1, 64\].*\[16, 64\]"):
        evaluate(tmp_path / "run")


def test_a_run_stays_on_its_graph_whatever_becomes_of_its_files(
    tmp_path: Path,
) -> None:
    files = write(tmp_path)
    keys = [*(f"dataset.{key}={path}" for key, path in files.items()), "run.if_exists=resume"]
    keys += ["dataset.task=multiclass", f"dataset.store_dir={tmp_path}/stores"]
    keys += ["trainer.epochs=1", "trainer.gpus=0"]
    config = compose_config(["dataset=files", *keys, f"run.dir={tmp_path}/run"]).config
    summary = train(config)
    edges = Path(files["edges"])
    whole = edges.read_text()
    edges.write_text(whole.replace("10,20", "10,30"))
    train(config)  # the same command
    changed = evaluate(tmp_path / "run")
    edges.unlink()
    gone = evaluate(tmp_path / "run")
    for result in (changed, gone):
        assert {name: dict(m) for name, m in result["metrics"].items()} == {
            name: summary[name] for name in ("train", "val", "test")
        }
    # Without the store the files must give the same graph again.
    shutil.rmtree(tmp_path / "stores")
    with pytest.raises(UserError, match="cannot be built again"):
        evaluate(tmp_path / "run")
    edges.write_text("source,target\n10,20\n")
    with pytest.raises(UserError, match="gives another graph today"):
        evaluate(tmp_path / "run")
    edges.write_text(whole)
    assert dict(evaluate(tmp_path / "run")["metrics"]["test"]) == summary["test"]


def test_a_store_that_has_gone_is_built_again_to_go_on(
    cache: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    interrupted(run, cache, monkeypatch, f"dataset.store_dir={tmp_path / 'stores'}")
    shutil.rmtree(tmp_path / "stores")
    go_on(run, f"dataset.store_dir={tmp_path / 'elsewhere'}")
    assert_same_run(run, whole)
    record = RunDirectory(run).store_record()
    assert record is not None
    assert Path(record.path).parent == tmp_path / "elsewhere"


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    spoil_steps(monkeypatch, {20})
    with pytest.raises(RunError, match=r"nan in epoch 3, step 4 of 8 .*\d+, "):
        begin(run, cache)
    state = load_checkpoint(run / "checkpoints" / "last.pt")
    assert state["step"] == 19
    assert all(weight.isfinite().all() for weight in state["model"].values())


def test_steps_whose_gradient_is_not_finite_may_be_skipped_but_not_all_of_an_epoch(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, logger="gnntrain"):
        spoil_steps(patch, {20, 22})
        summary = begin(tmp_path / "run", cache, "trainer.on_nonfinite=skip")
    assert summary["status"] == "completed"
    assert "2 of 8 steps of epoch 3" in caplog.text
    assert all(isinstance(loss, float) for loss in summary["train_loss"])
    spoil_steps(monkeypatch, set(range(9, 17)))
    with pytest.raises(RunError, match="8 of 8 steps of epoch 2"):
        begin(tmp_path / "another", cache, "trainer.on_nonfinite=skip")


def spoil_steps(monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> None:
    """The loss is not a number in these steps of the run."""
    loss, num_calls = NodeClassification.loss, 0

    def spoilt(task: NodeClassification, *tensors: torch.Tensor) -> torch.Tensor:
        nonlocal num_calls
        num_calls += 1
        return loss(task, *tensors) * (float("nan") if num_calls in steps else 1.0)

    monkeypatch.setattr(NodeClassification, "loss", spoilt)
