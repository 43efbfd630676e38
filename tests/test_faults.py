"""A run of several ranks survives what happens to one of them, and answers signals as one."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from pathlib import Path

import psutil
import pytest
import torch

from gnntrain import run as run_module
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.errors import Diverged, RunError
from gnntrain.job import Job
from gnntrain.reporting.rundir import RunDirectory
from gnntrain.training.checkpoint import load_checkpoint
from scripts.soak.faults import rank_processes
from tests.disks import slow_disk
from tests.faulty_ranks import Faults
from tests.test_resume import (
    assert_same_run,
    begin,
    cache,
    fail_at,
    go_on,
    in_this_process,
    rows,
    spoil_steps,
    start,
    wait_for_epochs,
    whole,
)

__all__ = ["cache", "whole"]  # fixtures
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
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
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
        (["distributed.num_processes=3", "distributed.servers=1"], None),
        (["distributed.num_processes=3", "distributed.servers=1"], 2),
    ],
    ids=["two ranks", "served", "served, a server is killed"],
)
def test_ranks_that_were_broken_off_go_on_bit_for_bit(
    cache: Path, tmp_path: Path, keys: list[str], killed: int | None
) -> None:
    keys = [*keys, "trainer.epochs=15", "trainer.batch_size=8"]
    job = start(tmp_path / "run", cache, *keys)
    wait_for_epochs(tmp_path / "run", job, 3)
    if killed is None:
        job.send_signal(signal.SIGTERM)
    else:
        ranks = rank_processes(psutil.Process(job.pid))
        sorted(ranks, key=lambda rank: rank.pid)[killed].kill()
    _, errors = job.communicate(timeout=60)
    assert job.returncode == (143 if killed is None else 138), errors
    assert ("gnntrain resume" if killed is None else f"Rank {killed}") in errors
    status = (RunDirectory(tmp_path / "run").summary() or {})["status"]
    assert status == ("interrupted" if killed is None else "failed")
    assert 3 <= len(rows(tmp_path / "run")) < 15
    go_on(tmp_path / "run")
    begin(tmp_path / "whole", cache, *keys)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_what_would_only_happen_again_is_not_tried_again(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    in_this_process(monkeypatch)
    spoil_steps(monkeypatch, {20})
    with caplog.at_level(logging.WARNING, logger="gnntrain"), pytest.raises(Diverged):
        begin(tmp_path / "run", cache, "trainer.max_restarts=3")
    fail_at(monkeypatch, 11, ValueError("boom"))
    with (
        caplog.at_level(logging.WARNING, logger="gnntrain"),
        pytest.raises(ValueError, match="boom"),
    ):
        begin(tmp_path / "another", cache, "trainer.max_restarts=3")
    assert "Starting again" not in caplog.text
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "failed"


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
    fail_at(monkeypatch, 11, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."))
    with pytest.raises(RunError, match=r"GPU memory .*epoch 2, .*step 11\b") as caught:
        begin(tmp_path / "run", cache)
    assert "trainer.batch_size (now 16), sampler.fan_outs" in str(caught.value)
