"""Runs of several processes that a launcher has started, here on the loopback interface."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gnntrain import worker
from gnntrain.app import compose_config
from gnntrain.cli import main
from gnntrain.compute.selection import CPU_KERNELS
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.job import Job
from gnntrain.run import train
from tests.processes import free_port, python, started, wait_until
from tests.summaries import epochs_of, summary_of

TINY = [
    *("dataset.num_nodes=600", "trainer.epochs=2", "model.hidden_channels=16"),
    *("trainer.batch_size=64", "trainer.gpus=0", "model.dropout=0.3"),
]
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node=2"]
SECONDS = 200


def one_machine_each(process: int) -> dict[str, str]:
    """One process a machine, as in Kubernetes."""
    return {"RANK": str(process)}


def one_rank_each(process: int) -> dict[str, str]:
    """Two ranks of one machine."""
    return {"RANK": str(process), "LOCAL_RANK": str(process)}


def start(
    process: int,
    arguments: Sequence[str],
    folder: Path,
    port: int,
    variables: Callable[[int], dict[str, str]] = one_rank_each,
    cwd: Path | None = None,
) -> subprocess.Popen[str]:
    """One of two processes; each has a store of its own."""
    env = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    env |= {**variables(process), "XDG_CACHE_HOME": str(folder / f"cache{process}")}
    return started(*arguments, folder=cwd or folder, env=env)


def run_two(
    folder: Path,
    *arguments: str,
    variables: Callable[[int], dict[str, str]] = one_rank_each,
    cwds: Sequence[Path | None] = (None, None),
) -> list[tuple[int, str, str]]:
    """Exit code, standard output and error of the command in two processes."""
    port = free_port()
    command = ["-m", "gnntrain", *arguments]
    processes = [start(i, command, folder, port, variables, cwd) for i, cwd in enumerate(cwds)]
    printed = [process.communicate(timeout=SECONDS) for process in processes]
    return [(p.returncode, *texts) for p, texts in zip(processes, printed, strict=True)]


def metrics(run: Path) -> list[dict[str, Any]]:
    """What a run has computed, without times."""
    return [{k: v for k, v in line.items() if "/" in k} for line in epochs_of(run)]


def train_here(folder: Path, name: str, *arguments: str, num_processes: int) -> Path:
    ranks = f"distributed.num_processes={num_processes}"
    place = f"run.dir={folder / name}"
    train(compose_config([*TINY, *arguments, ranks, place]))
    return folder / name


@pytest.mark.slow
def test_torchrun_trains_as_ranks_of_our_own_do(here: Path) -> None:
    done = python(*TORCHRUN, "-m", "gnntrain", *TINY, "run.dir=theirs")
    assert done.returncode == 0, done.stdout + done.stderr
    theirs = here / "theirs"
    ours = train_here(here, "ours", num_processes=2)
    assert metrics(theirs) == metrics(ours)
    assert summary_of(theirs)["world_size"] == 2
    assert sorted(path.name for path in (theirs / "logs").iterdir()) == ["rank_0.log", "rank_1.log"]
    assert done.stdout.count("completed after 2 of 2 epochs") == 1


@pytest.mark.slow
def test_what_would_only_happen_again_torchrun_does_not_train_again(tmp_path: Path) -> None:
    words = ["-m", "gnntrain", *TINY, "trainer.lr=1e30", "trainer.epochs=50", "run.dir=run"]
    done = python(*TORCHRUN, "--max-restarts=2", *words, folder=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "gnntrain: The training loss is" in done.stderr
    log = (tmp_path / "run" / "logs" / "rank_0.log").read_text()
    assert log.count("initial weights") == 1, log


def test_a_mistake_is_told_once_and_all_end_with_2(tmp_path: Path) -> None:
    told, silent = run_two(tmp_path, *TINY, "trainer.epochs=none", "run.dir=run")
    assert (told[0], silent[0]) == (2, 2)
    assert "trainer.epochs=none" in told[2]
    assert silent[1:] == ("", "")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", [["evaluate", "latest"], ["-m", "trainer.epochs=1,2"]])
def test_what_one_process_does_is_refused(
    here: Path,
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name, value in {"WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("LOCAL_RANK", rank)
        assert main(command) == 2
        out, told = capfd.readouterr()
        assert out == ""
        assert ("needs one process" in told) if rank == "0" else not told
    assert not any(here.iterdir())


@pytest.mark.slow
def test_one_process_a_machine_starts_the_ranks_of_its_machine(here: Path) -> None:
    ranks = "distributed.num_processes=2"
    for code, _, errors in run_two(
        here, *TINY, ranks, "run.dir=theirs", variables=one_machine_each
    ):
        assert code == 0, errors
    theirs = here / "theirs"
    assert summary_of(theirs)["world_size"] == 4
    assert metrics(theirs) == metrics(train_here(here, "ours", num_processes=4))
    assert len(list((theirs / "logs").iterdir())) == 4
    # Each machine has built its own store.
    assert len(list(here.glob("cache[01]/gnntrain/stores/*/meta.json"))) == 2


@pytest.mark.slow
def test_a_run_goes_on_in_several_processes(here: Path) -> None:
    command = [*TINY, "run.dir=theirs"]
    for arguments in (
        command,
        ["resume", "theirs", "trainer.epochs=4"],
        command,  # it has completed: both end at once
    ):
        for code, _, errors in run_two(here, *arguments, variables=one_machine_each):
            assert code == 0, errors
    ours = train_here(here, "ours", "trainer.epochs=4", num_processes=2)
    assert metrics(here / "theirs") == metrics(ours)


@pytest.mark.slow
def test_a_signal_to_one_process_ends_all_after_the_same_step(tmp_path: Path) -> None:
    port = free_port()
    command = ["-m", "gnntrain", *TINY, "trainer.epochs=100000", "run.dir=run"]
    command += ["distributed.num_processes=2"]
    processes = [start(i, command, tmp_path, port, one_machine_each) for i in range(2)]
    wait_until((tmp_path / "run" / "checkpoints" / "last.pt").exists, SECONDS)
    processes[1].send_signal(signal.SIGTERM)
    errors = [process.communicate(timeout=SECONDS)[1] for process in processes]
    assert [process.returncode for process in processes] == [143, 143], errors
    assert summary_of(tmp_path / "run")["status"] == "interrupted"


SCRIPT = """
import json, os, sys
import numpy as np
from gnntrain.config import Config, TrainerConfig
from gnntrain.run import train

rng = np.random.default_rng(int(os.environ["RANK"]) * len(sys.argv[1:]))
data = {
    "x": rng.normal(size=(60, 4)).astype("float32"),
    "y": rng.integers(0, 2, 60),
    "edge_index": rng.integers(0, 60, (2, 200)),
}
config = Config(trainer=TrainerConfig(epochs=1, gpus=0))
if __name__ == "__main__":
    both = [train(config, data=data), train(config, data=data)]
    print(json.dumps([[one["run"], one["world_size"]] for one in both]))
"""


@pytest.mark.slow
def test_every_process_of_a_users_program_gets_the_summary(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SCRIPT)
    port = free_port()
    processes = [start(i, ["program.py"], tmp_path, port) for i in range(2)]
    printed = [process.communicate(timeout=SECONDS) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], printed
    first, second = (json.loads(out.splitlines()[-1]) for out, _ in printed)
    assert first == second
    assert [size for _, size in first] == [2, 2]
    assert first[0][0] != first[1][0]


@pytest.mark.slow
def test_another_graph_on_another_machine_is_refused(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SCRIPT)
    port, command = free_port(), ["program.py", "other"]
    processes = [start(i, command, tmp_path, port, one_machine_each) for i in range(2)]
    printed = [process.communicate(timeout=SECONDS) for process in processes]
    assert all("UserError: The data set" in errors for _, errors in printed), printed
    assert not (tmp_path / "runs").exists()


def train_without_files(context: DistributedContext, job: Job) -> None:
    """As a rank of a machine that has none of rank 0's files."""

    def missing(*_: object) -> None:
        raise FileNotFoundError

    if not context.is_main:
        for name in ("load_checkpoint", "take_weights"):
            setattr(worker, name, missing)
    worker.train_rank(context, job)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["checkpoint", "init_from"])
def test_rank_0_alone_reads_the_files_of_runs(tmp_path: Path, key: str) -> None:
    first = train_here(tmp_path, "first", num_processes=2)
    run, checkpoint = tmp_path / "second", first / "checkpoints" / "last.pt"
    change = "trainer.epochs=4" if key == "checkpoint" else f"trainer.init_from={first}"
    config = compose_config([*TINY, f"run.dir={run}", change])
    store = Path(json.loads((first / "store.json").read_text())["path"])
    expected = train_here(tmp_path, "whole", change, num_processes=2)
    for folder in ("logs", "checkpoints"):
        (run / folder).mkdir(parents=True)
    shutil.copy(first / "store.json", run)
    resumed = checkpoint if key == "checkpoint" else None
    job = Job(config, store, run, time.time(), CPU_KERNELS, resumed)
    plan = LaunchPlan(2, "cpu", threads=1, timeout=60, machines=(0, 1))
    launch(train_without_files, job, plan, run / "logs")
    assert metrics(run) == metrics(expected)[-len(metrics(run)) :]
    assert len(metrics(run)) == (4 if key == "checkpoint" else 2)
