from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import psutil
import pytest
import torch

from gnntrain.config import from_dict
from gnntrain.distributed import launch as launching
from gnntrain.distributed import liveness, process_group, run_control
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.distributed.launchers import Launched
from gnntrain.errors import Interrupted, RankLost, RunError, TransientError, UserError
from scripts.soak.faults import rank_processes


def plan(world_size: int) -> LaunchPlan:
    return LaunchPlan(world_size, "cpu", threads=3, timeout=60)


def fail_on_rank_1(context: DistributedContext, payload: str) -> None:
    if context.rank == 1:
        if payload == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if payload == "user":
            raise UserError("the value 7 is wrong", "take 8")
        if payload == "source":
            raise TimeoutError("the feature service timed out")
        raise ZeroDivisionError("it broke")
    context.barrier()


@pytest.mark.parametrize(
    ("payload", "kind", "words"),
    [
        ("raise", RunError, ["Rank 1", "ZeroDivisionError", "it broke"]),
        ("user", UserError, ["the value 7 is wrong"]),
        ("kill", RankLost, ["Rank 1", "SIGKILL"]),
        ("source", TransientError, ["Rank 1 failed: TimeoutError: the feature service timed out"]),
    ],
)
def test_a_failing_rank_ends_all_and_its_own_error_is_told(
    tmp_path: Path, payload: str, kind: type[Exception], words: list[str]
) -> None:
    with pytest.raises(kind) as caught:
        launch(fail_on_rank_1, payload, plan(3), tmp_path)
    assert all(word in str(caught.value) for word in words)
    if payload == "user":
        assert isinstance(caught.value, UserError)
        assert caught.value.hint == "take 8"
    if payload == "kill":
        assert "memory runs out: lower trainer.batch_size" in str(getattr(caught.value, "hint", ""))
    assert not rank_processes(psutil.Process())


def act_on_sigterm(context: DistributedContext, _: None) -> None:
    """As ranks whose step ends before they have handed the signal on."""
    context.barrier()  # both have connected
    raise Interrupted(signal.SIGTERM)


def test_ranks_that_have_acted_on_a_signal_interrupt_the_run(tmp_path: Path) -> None:
    with pytest.raises(Interrupted) as caught:
        launch(act_on_sigterm, None, plan(2), tmp_path)
    assert caught.value.number == signal.SIGTERM


def hang_in_nccl(context: DistributedContext, payload: tuple[float, Exception]) -> None:
    """NCCL ends a rank that waits, and does not connect ranks in any time."""
    seconds, failure = payload
    if context.rank == 0:
        assert isinstance(failure, RunError)
        with context.control.must_end_within(seconds, failure):
            time.sleep(60)
    time.sleep(2 + context.rank / 10)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("timeout", "words"),
    [
        (1.0, r"^Rank 0 has not answered for 1 s, since its start\."),
        (60.0, r"^Rank 1 was ended by SIGABRT"),  # too early: CUDA has failed there
    ],
)
def test_a_rank_that_nccl_aborts_has_waited_for_another_if_there_was_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timeout: float, words: str
) -> None:
    monkeypatch.setattr(liveness, "_NOTICE_SECONDS", 1.5)
    monkeypatch.setattr(liveness, "_END_SECONDS", 0.5)
    job = 60.0, RunError("")
    with pytest.raises(RunError, match=words):
        launch(hang_in_nccl, job, LaunchPlan(3, "cpu", 1, timeout), tmp_path)


def test_a_rank_that_is_overdue_is_ended_with_its_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "_NOTICE_SECONDS", 0.5)
    failure = RunError("NCCL has not connected the ranks.", "Set NCCL_DEBUG=INFO.")
    with pytest.raises(RunError, match="not connected") as caught:
        launch(hang_in_nccl, (0.5, failure), plan(2), tmp_path)
    assert caught.value.hint == failure.hint


def sync_all_the_time(_context: DistributedContext, _payload: None) -> None:
    assert torch.get_num_threads() == 3  # as the plan says
    mock.patch.object(run_control, "SYNC_SECONDS", 0.0).start()
    time.sleep(0.5)


def test_a_thread_that_calls_the_store_does_not_abort_a_rank_that_ends(tmp_path: Path) -> None:
    launch(sync_all_the_time, None, plan(2), tmp_path)


def test_ranks_that_cannot_reach_each_other_are_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> None:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    with pytest.raises(RunError, match=r"127\.0\.0\.1") as it:
        launch(fail_on_rank_1, "", plan(2), tmp_path)
    assert "ip link set lo up" in str(it.value.hint)


@pytest.mark.parametrize(("ranks", "servers"), [(1, 1), (2, 2), (2, 3)])
def test_servers_without_a_rank_that_trains_are_refused(ranks: int, servers: int) -> None:
    keys = {"num_processes": ranks, "servers": servers}
    config = from_dict({"distributed": keys, "trainer": {"gpus": 0}})
    with pytest.raises(UserError, match=f"distributed.servers={servers}"):
        LaunchPlan.of(config)


def test_servers_are_refused_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match=r"trainer\.gpus=0"):
        LaunchPlan.of(from_dict({"distributed": {"servers": 1}}))


@pytest.mark.parametrize(
    "visible",
    [
        [["07", "0f", "47"]] * 3,  # all ranks see all GPUs
        [["07"], ["0f"], ["47"]],  # each its own; all of them have CUDA_VISIBLE_DEVICES=0
        [["07", "0f"], ["47", "4e"]],
    ],
)
def test_each_launched_rank_has_a_gpu_whatever_it_is_shown(
    monkeypatch: pytest.MonkeyPatch, visible: list[list[str]]
) -> None:
    """`visible` has the PCI addresses of the GPUs that each rank of a machine sees."""
    taken = set()
    for rank, seen in enumerate(visible):
        monkeypatch.setattr(torch.cuda, "device_count", seen.__len__)
        taken.add(seen[launching._device("cuda", rank).index])
    assert len(taken) == len(visible)


@pytest.mark.parametrize(
    ("device", "local_rank", "num_gpus", "words"),
    [
        ("mps", 0, 1, "Apple"),
        ("cuda", 0, 0, "no GPU"),
        ("cuda", None, 3, "3 ranks"),  # a program, which would have to start itself
        ("cuda", 1, 1, "have the same GPU"),
    ],
)
def test_a_rank_without_a_gpu_of_its_own_is_refused(
    monkeypatch: pytest.MonkeyPatch, device: str, local_rank: int | None, num_gpus: int, words: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    monkeypatch.setattr(process_group, "gpu_address", lambda _: "07")
    process = Launched("Kubernetes", 1, 2, local_rank, "node0", 29500)
    met: Any = SimpleNamespace(
        launched=process,
        machines=(0, 0),
        cores=8,
        wait_at_most=lambda _: None,
        gather=lambda key, value: [device if key == "device" else value, value],
    )
    with pytest.raises(UserError, match=words):
        LaunchPlan.of(from_dict({"distributed": {"num_processes": 2}}), met)
