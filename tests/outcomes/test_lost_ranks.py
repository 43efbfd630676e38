"""Ranks on two machines, which are network namespaces, of which torchrun starts one each: one is
killed, or its network goes away."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from gnntrain.errors import RESTART_CODE
from scripts.cluster.machines import Machines
from tests.outcomes.test_machines import two_machines
from tests.processes import ROOT, wait_until

pytestmark = pytest.mark.slow

_TIMEOUT = 15.0
_ALLOWED = _TIMEOUT + 30
_PORTS = itertools.count(29_500)
_OPTIONS = ["trainer.gpus=0", "dataset.num_nodes=600", "trainer.batch_size=64"]
_OPTIONS += ["trainer.eval_every=5", "checkpoint.every_steps=5", f"distributed.timeout={_TIMEOUT}"]


@pytest.fixture
def machines() -> Iterator[Machines]:
    with two_machines() as made:
        yield made


class Job:
    """torchrun on both machines."""

    def __init__(self, machines: Machines, folder: Path, *options: str, restarts: int = 0) -> None:
        folder.mkdir(exist_ok=True)
        self.machines, self.folder = machines, folder
        port = next(_PORTS)
        torchrun = ["-m", "torch.distributed.run", "--nnodes=2", f"--max-restarts={restarts}"]
        # torchrun's own rendezvous numbers the machines as they come.
        given = [f"--master-addr=machine0 --master-port={port} --node-rank={m}" for m in range(2)]
        found = f"--rdzv-backend=c10d --rdzv-endpoint=machine0:{port}"
        words = ["-m", "gnntrain", *_OPTIONS, *options]
        env = {"PYTHONPATH": str(ROOT), "JOB_OF_TEST": str(folder), "OMP_NUM_THREADS": "1"}
        self.logs = [folder / f"machine{m}.log" for m in range(2)]
        self.agents = [
            machines.start(
                m,
                [sys.executable, *torchrun, *(found if restarts else given[m]).split(), *words],
                folder=folder,
                env=env,
                log=log,
            )
            for m, log in enumerate(self.logs)
        ]

    def ranks(self) -> dict[int, psutil.Process]:
        found: dict[int, psutil.Process] = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                variables = process.environ()
                is_ours = variables.get("JOB_OF_TEST") == str(self.folder)
                is_rank = "RANK" in variables and "gnntrain" in process.cmdline()
                if is_ours and is_rank and process.status() != psutil.STATUS_ZOMBIE:
                    found.setdefault(int(variables["RANK"]), process)
        return found

    def num_epochs(self) -> int:
        tables = self.folder.glob("runs/*/metrics.jsonl")
        return max((path.read_text().count("\n") for path in tables), default=0)

    def wait_for(self, epochs: int) -> dict[int, psutil.Process]:
        """The ranks, once so many epochs are done."""

        def is_reached() -> bool:
            assert all(agent.poll() is None for agent in self.agents)
            return self.num_epochs() >= epochs and len(self.ranks()) == 2

        wait_until(is_reached, 100)
        return self.ranks()

    def printed(self, seconds: float) -> list[str]:
        """What each machine printed, after all have ended within so many seconds."""
        ends_by = time.monotonic() + seconds
        for agent in self.agents:
            agent.wait(max(0.0, ends_by - time.monotonic()))
        return [log.read_text() for log in self.logs]


def saved(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("runs/latest/checkpoints/last.pt")
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_is_named_with_its_machine(
    machines: Machines, tmp_path: Path, victim: int
) -> None:
    job = Job(machines, tmp_path / "job", "trainer.epochs=100000")
    job.wait_for(epochs=3)[victim].kill()
    printed = job.printed(_ALLOWED)[1 - victim]
    named = f"Rank {victim} on machine {victim} (machine{victim}, 10.0.0.{victim + 1})"
    assert f"gnntrain: {named} has ended" in printed
    assert f"exitcode  : {RESTART_CODE}" in printed


def test_both_sides_of_a_network_that_went_away_end_and_name_each_other(
    machines: Machines, tmp_path: Path
) -> None:
    job = Job(machines, tmp_path / "job", "trainer.epochs=100000")
    job.wait_for(epochs=3)
    machines.start(1, ["ip", "link", "set", "eth0", "down"]).wait()
    wait_until(lambda: not job.ranks(), _ALLOWED)
    printed = [log.read_text() for log in job.logs]  # torchrun itself waits for the other side
    assert "Rank 1 on machine 1 (machine1, 10.0.0.2) has not answered" in printed[0]
    assert "Rank 0 on machine 0 (machine0, 10.0.0.1) has not answered" in printed[1]
    summary = json.loads((job.folder / "runs" / "latest" / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert "Rank 1 on machine 1" in summary["error"]


def test_ranks_that_torchrun_starts_again_end_as_if_nothing_had_happened(
    machines: Machines, tmp_path: Path
) -> None:
    calm = Job(machines, tmp_path / "calm", "trainer.epochs=20")
    calm.printed(150)
    job = Job(machines, tmp_path / "job", "trainer.epochs=20", restarts=3)
    for epochs, victim in ((3, 1), (9, 0)):
        job.wait_for(epochs)[victim].kill()
    printed = job.printed(200)
    assert [agent.returncode for agent in job.agents] == [0, 0], printed
    expected, found = saved(calm.folder), saved(job.folder)
    assert found["step"] == expected["step"]
    for name, weights in expected["model"].items():
        assert torch.equal(found["model"][name], weights)
    losses = [[row["train_loss"] for row in state["history"]] for state in (expected, found)]
    assert losses[0] == losses[1]
