"""Signals to a run of one process; and to the parent, a rank or all processes of a larger one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch

from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.distributed.run_control import Phase
from gnntrain.distributed.signals import HANDLED, install_handlers
from gnntrain.errors import Interrupted, RunError
from scripts.soak.faults import rank_processes
from tests.processes import python, started, wait_until

ALONE = LaunchPlan(1, "cpu", threads=1, timeout=60)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """What is there before is there after; without it, a signal would end the tests."""

    def ignore(number: int, _frame: object) -> None: ...

    before = {number: signal.signal(number, ignore) for number in HANDLED}
    yield
    assert all(signal.getsignal(number) is ignore for number in HANDLED)
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_before_training_a_signal_ends_a_run_where_it_is(number: int) -> None:
    reached = []

    def start(_context: DistributedContext, _payload: None) -> None:
        send(signal.SIGUSR1)  # there is nothing to save
        send(number)
        reached.append("training")

    with pytest.raises(Interrupted) as caught:
        launch(start, None, ALONE)
    assert caught.value.number == number
    assert not reached


def test_in_training_a_signal_is_noted_and_a_second_ctrl_c_ends_it_at_once() -> None:
    seen = []

    def train(context: DistributedContext, _payload: None) -> None:
        context.control.enter(Phase.TRAINING, 1)
        send(signal.SIGINT)
        send(signal.SIGINT)  # `timeout` tells the group, and its child once more
        send(signal.SIGTERM)
        seen.append(context.control.stop_requested)
        time.sleep(0.25)
        send(signal.SIGINT)
        seen.append(-1)

    with pytest.raises(Interrupted) as caught:
        launch(train, None, ALONE)
    assert caught.value.number == signal.SIGINT
    assert seen == [signal.SIGINT]


def test_an_error_while_a_run_is_being_stopped_is_told_but_it_was_interrupted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def train(context: DistributedContext, _payload: None) -> None:
        context.control.enter(Phase.TRAINING, 1)
        send(signal.SIGTERM)
        raise ValueError("boom")

    with pytest.raises(Interrupted):
        launch(train, None, ALONE)
    assert "While the run was being stopped: boom" in caplog.text


def swallow(number: int) -> None:
    """As extension modules do that are interrupted while they import others."""
    with suppress(BaseException):
        send(number)


def fail_after_swallowing(error: Exception) -> None:
    with install_handlers():
        swallow(signal.SIGTERM)
        raise error


def launch_after_swallowing() -> None:
    with install_handlers():
        swallow(signal.SIGTERM)
        launch(lambda *_: pytest.fail("a run was begun"), None, ALONE)


def test_a_signal_that_a_library_swallows_ends_the_process_all_the_same() -> None:
    with pytest.raises(Interrupted) as caught:
        fail_after_swallowing(AttributeError("module 'numpy' has no attribute 'multiply'"))
    assert caught.value.number == signal.SIGTERM
    with pytest.raises(RunError, match="disk"):
        fail_after_swallowing(RunError("The disk is full."))
    with pytest.raises(Interrupted):
        launch_after_swallowing()

    def start(context: DistributedContext, _payload: None) -> None:
        swallow(signal.SIGTERM)
        assert (
            context.control.stop_requested == signal.SIGTERM
        )  # training ends after its first step
        raise AttributeError

    with pytest.raises(Interrupted):
        launch(start, None, ALONE)


def test_what_a_process_was_started_to_ignore_it_goes_on_to_ignore() -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with install_handlers():
        send(signal.SIGHUP)
    assert signal.signal(signal.SIGHUP, previous) == signal.SIG_IGN


def test_a_process_that_does_not_end_is_ended_by_force(tmp_path: Path) -> None:
    code = (
        "from gnntrain.distributed import signals\n"
        "import os, signal, time\n"
        "from pathlib import Path\n"
        "signals.GRACE_SECONDS, signals.CLOSE_SECONDS = 0.5, 0.5\n"
        f"said = Path({str(tmp_path)!r}, 'said')\n"
        "note = lambda n: said.write_text(str(n))\n"
        "stuck = lambda _: time.sleep(60)  # as a sentence for a full pipe that nobody reads\n"
        "with signals.on_forced_exit(stuck), signals.on_forced_exit(note):\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    except KeyboardInterrupt:\n"
        "        time.sleep(60)\n"
    )
    assert python("-c", code).returncode == 128 + signal.SIGTERM
    assert (tmp_path / "said").read_text() == str(int(signal.SIGTERM))


def exchange_until_stopped(context: DistributedContext, directory: str) -> None:
    """Steps of a few milliseconds, and notes of what is done after them."""
    notes = Path(directory)

    def note(step: int, number: int) -> None:
        with (notes / f"{context.rank}-{signal.Signals(number).name}").open("a") as file:
            file.write(f"{step}\n")

    for step in range(1, 10**6):
        context.control.enter(Phase.TRAINING, step)
        if context.is_main:
            context.control.commit(step)
        context.sum(torch.tensor(step))
        if number := context.control.agreed(step):
            context.barrier()  # to save is a collective
            note(step, number)
            if number != signal.SIGUSR1:
                raise Interrupted(number)
        elif step == 20:
            (notes / f"{context.rank}.ready").touch()


def never_end(context: DistributedContext, directory: str) -> None:
    """A rank that does not look at what is asked for."""
    context.control.enter(Phase.TRAINING, 1)
    (Path(directory) / f"{context.rank}.ready").touch()
    time.sleep(600)


def wait_before_training(context: DistributedContext, directory: str) -> None:
    (Path(directory) / f"{context.rank}.ready").touch()
    try:
        time.sleep(60)
    finally:
        time.sleep(0.5)  # long enough for a second signal to disturb
        (Path(directory) / f"{context.rank}-saved").touch()


def stay_away(context: DistributedContext, directory: str) -> None:
    """Rank 1 is stopped, rank 2 loops; rank 0 waits for them."""
    context.control.enter(Phase.TRAINING, 11 + context.rank)
    context.barrier()
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    while context.rank == 2:
        pass
    (Path(directory) / "0.ready").touch()
    context.barrier()


def do_not_answer(context: DistributedContext, directory: str) -> None:
    """Rank 0 is stopped after an exchange, and rank 1 asks it what was decided."""
    context.control.enter(Phase.TRAINING, 5)
    context.barrier()
    if context.rank == 0:
        (Path(directory) / "0.ready").touch()
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(1)
    context.control.agreed(5)
    context.barrier()


class Job:
    """A launched job of several ranks, in a process group of its own."""

    def __init__(
        self, worker: str, directory: Path, world_size: int = 2, timeout: float = 60
    ) -> None:
        script = directory / "job.py"
        script.write_text(
            "import signal, sys\n"
            "from pathlib import Path\n"
            "from gnntrain.distributed.launch import LaunchPlan, launch\n"
            "from gnntrain.errors import signal_of\n"
            f"plan = LaunchPlan({world_size}, 'cpu', 1, {timeout})\n"
            "folder = sys.argv[1]\n"
            f"worker = 'tests.distributed.test_signals:{worker}'\n"
            "if __name__ == '__main__':\n"
            "    try:\n"
            "        launch(worker, folder, plan, Path(folder))\n"
            "    except KeyboardInterrupt as error:\n"
            "        sys.exit(128 + signal_of(error))\n"
        )
        self.directory = directory
        env = {"OMP_NUM_THREADS": "1"}
        self.process = started(script, directory, env=env, start_new_session=True)
        self.ranks: list[psutil.Process] = []

    def wait_until_ready(self, num_ready: int = 2) -> None:
        def is_ready() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            return len(list(self.directory.glob("*.ready"))) >= num_ready

        wait_until(is_ready)
        self.ranks = rank_processes(psutil.Process(self.process.pid))

    def end(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=60)
        _, alive = psutil.wait_procs(self.ranks, timeout=30)
        assert not alive
        return self.process.returncode, errors

    def noted(self, note: str) -> list[Path]:
        """The ranks' notes of having done it."""
        return sorted(self.directory.glob(f"*-{note}"))

    def steps(self, note: str) -> list[list[int]]:
        """After which steps each rank did it; once the job has ended."""
        return [[int(step) for step in path.read_text().split()] for path in self.noted(note)]


@pytest.mark.parametrize(
    ("told", "number"),
    [("group", signal.SIGHUP), pytest.param("rank", signal.SIGTERM, marks=pytest.mark.slow)],
)
def test_all_ranks_save_and_stop_after_the_same_step_whoever_is_told(
    told: str, number: signal.Signals, tmp_path: Path
) -> None:
    job = Job("exchange_until_stopped", tmp_path)
    job.wait_until_ready()
    os.killpg(job.process.pid, signal.SIGUSR1)
    wait_until(lambda: len(job.noted("SIGUSR1")) == 2)
    if told == "group":
        os.killpg(job.process.pid, number)
    else:
        job.ranks[1].send_signal(number)
    code, errors = job.end()
    assert code == 128 + number
    # Each process was told on its own: what comes after a save asks for another.
    saved = job.steps("SIGUSR1")
    assert len(saved) == 2
    assert 1 <= len(saved[0]) <= 3
    assert saved[0] == saved[1]
    stopped = job.steps(number.name)
    assert [len(steps) for steps in stopped] == [1, 1]
    assert stopped[0] == stopped[1]
    assert "Traceback" not in errors


@pytest.mark.slow
def test_a_second_ctrl_c_ends_ranks_that_do_not_stop(tmp_path: Path) -> None:
    job = Job("never_end", tmp_path)
    job.wait_until_ready()
    os.killpg(job.process.pid, signal.SIGINT)
    time.sleep(1)
    assert job.process.poll() is None
    begin = time.monotonic()
    os.killpg(job.process.pid, signal.SIGINT)
    code, errors = job.end()
    assert code == 130
    assert time.monotonic() - begin < 9  # not after the ten seconds that a step may take
    assert "Traceback" not in errors


@pytest.mark.slow
def test_ctrl_c_before_training_lets_every_rank_end_in_order(tmp_path: Path) -> None:
    job = Job("wait_before_training", tmp_path)
    job.wait_until_ready()
    job.process.send_signal(signal.SIGINT)
    code, errors = job.end()
    assert code == 130
    assert len(job.noted("saved")) == 2
    assert "Traceback" not in errors


def test_ranks_whose_parent_was_killed_save_and_end(tmp_path: Path) -> None:
    job = Job("exchange_until_stopped", tmp_path)
    job.wait_until_ready()
    job.process.kill()
    job.end()
    stopped = job.steps("SIGINT") or job.steps("SIGTERM")
    assert [len(steps) for steps in stopped] == [1, 1]
    assert stopped[0] == stopped[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("worker", "world_size", "named"),
    [
        ("stay_away", 3, "Ranks 1 and 2 have not answered for 10 s, since step 12 and step 13."),
        ("do_not_answer", 2, "Rank 0 has not answered for 10 s, since step 5."),
    ],
)
def test_the_ranks_that_others_wait_for_in_vain_are_named(
    worker: str, world_size: int, named: str, tmp_path: Path
) -> None:
    job = Job(worker, tmp_path, world_size, timeout=10)
    job.wait_until_ready(1)
    code, errors = job.end()
    assert code == 1
    (message,) = [line for line in errors.splitlines() if "not answered" in line]
    assert named in message
