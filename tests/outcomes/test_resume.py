"""Runs that are interrupted, killed or damaged, of one rank or several, and go on; and runs whose
graph has changed."""

from __future__ import annotations

import csv
import json
import logging
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from gnntrain import run as run_module
from gnntrain.app import compose_config, recompose_config
from gnntrain.cli import main
from gnntrain.config import ConfigError
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.distributed.signals import prepare_forced_exit
from gnntrain.errors import Diverged, Interrupted, RunError, UserError
from gnntrain.failures import keep_traceback
from gnntrain.job import Job
from gnntrain.reporting.rundir import RunDirectory, held, is_running
from gnntrain.run import evaluate, resume, train
from gnntrain.tasks import NodeClassification
from gnntrain.training.checkpoint import load_checkpoint, save_checkpoint
from scripts.soak.faults import rank_processes
from tests.data.files import write
from tests.disks import slow_disk
from tests.faulty_ranks import Faults
from tests.processes import started, wait_until

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
    return train(compose_config([*KEYS, stores, f"run.dir={run}", *keys]))


def go_on(run: Path, *changes: str) -> dict[str, Any]:
    config = recompose_config(RunDirectory.open(run).config(), changes)
    return resume(run, config, overrides=changes)


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


@pytest.fixture(scope="module")
def broken(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that an error ended in its third epoch."""
    run = tmp_path_factory.mktemp("broken") / "run"
    with pytest.MonkeyPatch.context() as patch:
        disturb(patch, {21}, ValueError("boom"))
        with pytest.raises(ValueError, match="boom"):
            begin(run, cache)
    return run


def copied(run: Path, folder: Path) -> Path:
    return Path(shutil.copytree(run, folder / "run"))


def disturb(
    monkeypatch: pytest.MonkeyPatch, steps: set[int], error: BaseException | None = None
) -> None:
    """In these steps of the run the loss fails or, without an error, is not a number."""
    loss, num_calls = NodeClassification.loss, 0

    def disturbed(task: NodeClassification, *tensors: torch.Tensor) -> torch.Tensor:
        nonlocal num_calls
        num_calls += 1
        if num_calls not in steps:
            return loss(task, *tensors)
        if error is not None:
            raise error
        return loss(task, *tensors) * float("nan")

    monkeypatch.setattr(NodeClassification, "loss", disturbed)


def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank alone that may start again runs here, where tests change what it does."""
    monkeypatch.setattr(
        run_module, "launch", lambda *given, **keys: launch(*given, **keys | {"in_process": True})
    )


def start(run: Path, cache: Path, *keys: str) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    words = ["-m", "gnntrain", *KEYS, f"dataset.store_dir={cache / 'stores'}", f"run.dir={run}"]
    return started(*words, *keys, env={"OMP_NUM_THREADS": "1"})


def wait_for_epochs(run: Path, job: subprocess.Popen[str], num_epochs: int) -> None:
    path = run / "metrics.jsonl"

    def are_done() -> bool:
        assert job.poll() is None, job.communicate()
        return path.is_file() and len(path.read_text().splitlines()) >= num_epochs

    wait_until(are_done)


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
    again = started("-m", "gnntrain", "resume", run)
    wait_for_epochs(run, again, before + 3)
    again.kill()
    again.communicate()
    assert (run / "summary.json").exists() is False
    go_on(run)
    assert_same_run(run, tmp_path / "whole")


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
    disturb(monkeypatch, {call}, OSError("boom"))
    with caplog.at_level(logging.WARNING, logger="gnntrain"):
        begin(tmp_path / "run", cache, "trainer.max_restarts=1")
    assert "boom" in caplog.text
    assert "Starting again" in caplog.text
    assert_same_run(tmp_path / "run", whole)


def test_a_damaged_checkpoint_is_told_and_the_one_before_is_used(
    broken: Path, whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = copied(broken, tmp_path)
    last = run / "checkpoints" / "last.pt"
    content = bytearray(last.read_bytes())
    content[content.index(b"history")] ^= 4
    last.write_bytes(content)
    assert "boom" in (RunDirectory(run).summary() or {})["error"]
    with caplog.at_level(logging.WARNING, logger="gnntrain"):
        assert "error" not in go_on(run)
    assert "last.pt cannot be used" in caplog.text
    assert "Resuming from last.prev.pt" in caplog.text
    assert_same_run(run, whole)


def test_harmless_keys_may_change_and_a_store_that_has_gone_is_built_again(
    cache: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, stores = tmp_path / "run", tmp_path / "stores"
    with monkeypatch.context() as patch:
        disturb(patch, {21}, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            begin(run, cache, "trainer.epochs=4", f"dataset.store_dir={stores}")
    shutil.rmtree(stores)
    elsewhere = f"dataset.store_dir={tmp_path / 'elsewhere'}"
    go_on(run, elsewhere, "trainer.epochs=6", "logger=[csv,tensorboard]", "sampler.prefetch=2")
    assert_same_run(run, whole)
    assert RunDirectory.open(run).config()["trainer"]["epochs"] == 6
    assert (run / "overrides.txt").read_text().splitlines()[-1] == "sampler.prefetch=2"
    assert (run / "tensorboard").is_dir()
    record = RunDirectory(run).store_record()
    assert record is not None
    assert Path(record.path).parent == tmp_path / "elsewhere"


def test_epochs_that_are_in_no_checkpoint_are_told(
    whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = copied(whole, tmp_path)
    (run / "best").symlink_to("checkpoints/best.pt")  # a link within the run is no harm
    best = evaluate(run)["epoch"]
    assert not caplog.records
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    with (run / "metrics.jsonl").open("a") as file:  # as before a kill
        file.write(json.dumps({**last, "epoch": 7, "val/accuracy": 1.0}) + "\n")
    assert evaluate(run)["epoch"] == best
    assert "Epoch 7 was better" in caplog.text
    go_on(run)
    assert f"holds 6 whole epochs (the best so far: {best}). Later ones, up to 7," in caplog.text


def test_what_cannot_go_on_is_refused(broken: Path, whole: Path, tmp_path: Path) -> None:
    with held(whole), pytest.raises(UserError, match="is still going on"):
        go_on(whole)
    run = copied(broken, tmp_path)
    with pytest.raises(ConfigError):
        go_on(run, f"run.dir={tmp_path / 'branch'}")
    with pytest.raises(ConfigError, match="16 seeds") as caught:
        go_on(run, "distributed.num_processes=2")
    assert "write trainer.batch_size=8" in str(caught.value)
    theirs = RunDirectory.open(run).config()
    theirs["trainer"] |= {"device": "cuda", "gpus": "auto", "precision": "fp16"}
    theirs["compute"]["kernels"] = "triton"
    (run / "config.yaml").write_text(json.dumps(theirs))  # of a machine with a GPU
    with pytest.raises(ConfigError) as caught:
        resume(run)
    assert "trainer.device" in {problem.key for problem in caught.value.problems}
    run = copied(whole, tmp_path / "completed")
    best = run / "checkpoints" / "best.pt"
    state = load_checkpoint(best)
    state["model"] = {name: weight[:1] for name, weight in state["model"].items()}
    save_checkpoint(best, state)
    with pytest.raises(UserError, match=r"\[1, 64\].*\[16, 64\]"):
        evaluate(run)
    for path in (run / "checkpoints").iterdir():
        path.unlink()
    with pytest.raises(UserError, match="no checkpoint"):
        go_on(run)


def test_the_same_command_goes_on_with_its_run_if_it_may(
    cache: Path, broken: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copied(whole, tmp_path / "killed")
    for path in (run / "summary.json", *(run / "checkpoints").iterdir()):
        path.unlink()  # as if it had been killed before its first checkpoint
    with pytest.raises(UserError, match="holds a run already") as refused:
        begin(run, cache)
    assert "run.if_exists=resume" in str(refused.value.hint)
    begin(run, cache, "run.if_exists=resume")
    assert_same_run(run, whole)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    half = copied(broken, tmp_path)
    begin(half, cache)
    assert_same_run(half, whole)


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


def test_a_new_run_is_locked_until_its_end(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, locked = tmp_path / "run", list[bool]()

    def launch_and_look(*given: Any, **keys: Any) -> None:
        locked.append(is_running(run))
        launch(*given, **keys)

    monkeypatch.setattr(run_module, "launch", launch_and_look)
    begin(run, cache, "trainer.epochs=1")
    assert [*locked, is_running(run)] == [True, False]


@pytest.mark.parametrize("name", ["metrics.jsonl", "logs", "checkpoints/last.prev.pt", ".lock"])
def test_a_link_in_a_strangers_run_is_not_written_through(
    name: str, whole: Path, tmp_path: Path
) -> None:
    run, victim = copied(whole, tmp_path), tmp_path / "victim"
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


def test_a_run_stays_on_its_graph_whatever_becomes_of_its_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = write(tmp_path)
    keys = [*(f"dataset.{key}={path}" for key, path in files.items()), "run.if_exists=resume"]
    keys += ["dataset.task=multiclass", f"dataset.store_dir={tmp_path}/stores"]
    keys += ["trainer.epochs=1", "trainer.gpus=0"]
    config = compose_config(["dataset=files", *keys, f"run.dir={tmp_path}/run"])
    summary = train(config)
    edges = Path(files["edges"])
    whole = edges.read_text()
    edges.write_text(whole.replace("10,20", "10,30"))
    assert "files have changed" not in caplog.text
    train(config)  # the same command
    assert "files have changed" in caplog.text
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


def test_steps_whose_gradient_is_not_finite_may_be_skipped_but_not_all_of_an_epoch(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, logger="gnntrain"):
        disturb(patch, {20, 22})
        summary = begin(tmp_path / "run", cache, "trainer.on_nonfinite=skip")
    assert summary["status"] == "completed"
    assert "2 of 8 steps of epoch 3" in caplog.text
    assert all(isinstance(loss, float) for loss in summary["train_loss"])
    disturb(monkeypatch, set(range(9, 17)))
    with pytest.raises(RunError, match="8 of 8 steps of epoch 2"):
        begin(tmp_path / "another", cache, "trainer.on_nonfinite=skip")


# Several ranks survive what happens to one of them, and answer signals as one


TWO_RANKS = ["distributed.num_processes=2", "trainer.batch_size=8"]


def left_behind() -> set[str]:
    """Rank processes of this one, zombies too, and files in shared memory."""
    family = psutil.Process().children(recursive=True)
    zombies = [child for child in family if child.status() == psutil.STATUS_ZOMBIE]
    left = [*zombies, *rank_processes(psutil.Process())]
    ranks = {f"{child.pid} {child.status()}" for child in left}
    shared = Path("/dev/shm")
    return ranks | {path.name for path in shared.glob(f".gnntrain*-{os.getpid()}-*")}


@pytest.mark.slow
def test_ranks_that_fail_anywhere_are_started_again_and_lose_nothing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    undisturbed = tmp_path / "whole"
    begin(undisturbed, cache, *TWO_RANKS, "trainer.epochs=3")
    faults = (
        ("start", "kill"),
        ("sampling", "error"),
        ("all-reduce", "kill"),
        ("evaluation", "memory"),
        ("evaluation", "kill"),
        ("checkpoint", "kill"),
    )

    def launch_faulty(_worker: str, job: Job, plan: LaunchPlan, log_dir: Path, **_: object) -> None:
        payload = Faults(job, faults, rank=0, counter=tmp_path / "starts")
        begun = time.monotonic()
        try:
            launch("tests.faulty_ranks:train_with_faults", payload, plan, log_dir)
        finally:
            taken.append(time.monotonic() - begun)
            assert not left_behind()

    taken: list[float] = []
    monkeypatch.setattr(run_module, "launch", launch_faulty)
    with caplog.at_level(logging.WARNING, logger="gnntrain"):
        begin(tmp_path / "run", cache, *TWO_RANKS, "trainer.epochs=3", "trainer.max_restarts=9")
    assert_same_run(tmp_path / "run", undisturbed)
    told = [message for message in caplog.messages if "Starting again" in message]
    assert len(told) == len(faults) == len(taken) - 1
    words = (
        "SIGKILL",
        "OSError: [Errno 5] Input/output error",
        "SIGKILL",
        "Memory ran out",
        *["SIGKILL"] * 2,
    )
    for message, word in zip(told, words, strict=True):
        assert word in message
    assert "Lower evaluation.memory_limit" in told[3]
    assert not [p.name for p in (tmp_path / "run" / "checkpoints").iterdir() if p.name[0] == "."]


def test_a_rank_alone_that_is_killed_is_started_again(
    cache: Path,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def launch_faulty(
        _worker: str, job: Job, plan: LaunchPlan, log_dir: Path, *, in_process: bool, **_: object
    ) -> None:
        payload = Faults(job, (("evaluation", "kill"),), rank=0, counter=tmp_path / "starts")
        launch(
            "tests.faulty_ranks:train_with_faults", payload, plan, log_dir, in_process=in_process
        )

    monkeypatch.setattr(run_module, "launch", launch_faulty)
    with caplog.at_level(logging.WARNING, logger="gnntrain"):
        begin(tmp_path / "run", cache, "trainer.max_restarts=1")
    assert "SIGKILL" in caplog.text
    assert_same_run(tmp_path / "run", whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "killed"),
    [
        (["distributed.num_processes=2"], None),
        (["distributed.num_processes=2"], 1),
        (["distributed.num_processes=3", "distributed.servers=1"], None),
        (["distributed.num_processes=3", "distributed.servers=1"], 2),
    ],
    ids=["two ranks", "two ranks, one is killed", "served", "served, a server is killed"],
)
def test_ranks_that_were_broken_off_tell_what_was_reached_and_go_on_bit_for_bit(
    cache: Path, tmp_path: Path, keys: list[str], killed: int | None
) -> None:
    keys, run = [*keys, "trainer.epochs=15", "trainer.batch_size=8"], tmp_path / "run"
    job = start(run, cache, *keys)
    wait_for_epochs(run, job, 3)
    ranks = sorted(rank_processes(psutil.Process(job.pid)), key=lambda rank: rank.pid)
    if killed is None:
        job.send_signal(signal.SIGTERM)
    else:
        ranks[killed].kill()
    _, errors = job.communicate(timeout=30)
    assert job.returncode == (143 if killed is None else 138), errors
    assert f"gnntrain resume {run}" in errors
    assert not any(rank.is_running() for rank in ranks)
    summary = RunDirectory(run).summary() or {}
    assert summary["status"] == ("interrupted" if killed is None else "failed")
    if killed is not None:
        assert f"Rank {killed} was ended by SIGKILL." in errors
        assert "was ended by SIGKILL" in summary["error"]
    assert 3 <= summary["epochs"] == len(rows(run)) < 15
    assert summary["train_loss"] == [row["train/loss"] for row in rows(run)]
    assert summary["val"]["accuracy"] == max(row["val/accuracy"] for row in rows(run))
    assert summary["num_parameters"] > 0
    go_on(run)
    begin(tmp_path / "whole", cache, *keys)
    assert_same_run(run, tmp_path / "whole")


def test_a_run_that_is_ended_by_force_tells_how_to_go_on(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = Interrupted(signal.SIGINT)  # after which the process would be gone
    monkeypatch.setattr(run_module, "launch", lambda *_, **__: prepare_forced_exit(error))
    run = copied(whole, tmp_path)
    main(["resume", str(run), "trainer.epochs=7"])
    assert f"gnntrain resume {run}" in capsys.readouterr().err
    assert (RunDirectory(run).summary() or {})["status"] == "interrupted"


def test_what_would_only_happen_again_is_not_tried_again(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    in_this_process(monkeypatch)
    run = tmp_path / "run"
    with caplog.at_level(logging.WARNING, logger="gnntrain"):
        with monkeypatch.context() as patch:
            disturb(patch, {20})
            with pytest.raises(Diverged, match=r"nan in epoch 3, step 4 of 8 .*\d+, "):
                begin(run, cache, "trainer.max_restarts=3")
        disturb(monkeypatch, {11}, ValueError("boom"))
        with pytest.raises(ValueError, match="boom"):
            begin(tmp_path / "another", cache, "trainer.max_restarts=3")
    assert "Starting again" not in caplog.text
    assert (RunDirectory(run).summary() or {})["status"] == "failed"
    state = load_checkpoint(run / "checkpoints" / "last.pt")
    assert state["step"] == 19
    assert all(weight.isfinite().all() for weight in state["model"].values())


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_stop_waits_for_the_checkpoint_of_a_slow_disk(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    slow_disk(tmp_path, monkeypatch, seconds=4)  # each checkpoint
    run = tmp_path / "run"
    keys = ["trainer.epochs=100000", "checkpoint.every_minutes=null", "distributed.grace=2"]
    job = start(run, cache, *keys, f"distributed.num_processes={ranks}")
    wait_for_epochs(run, job, 3)
    job.send_signal(signal.SIGTERM)
    _, errors = job.communicate(timeout=120)
    assert job.returncode == 143, errors
    state = load_checkpoint(run / "checkpoints" / "last.pt")
    log = (run / "logs" / "rank_0.log").read_text()
    assert state["step"] >= rows(run)[-1]["step"], log  # not the one that was there before
    assert not [path for path in (run / "checkpoints").iterdir() if path.name[0] == "."]
    assert (RunDirectory(run).summary() or {})["status"] == "interrupted"


def test_a_lack_of_memory_in_a_step_names_the_keys_to_lower(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturb(monkeypatch, {11}, torch.OutOfMemoryError("CUDA out of memory."))
    with pytest.raises(RunError, match=r"GPU memory .*epoch 2, .*step 11\b") as caught:
        begin(tmp_path / "run", cache)
    assert "trainer.batch_size (now 16), sampler.fan_outs" in str(caught.value)
