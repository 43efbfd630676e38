from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from gnntrain.distributed.launchers import requeues_itself, slurm_job
from gnntrain.distributed.run_control import Phase, RunControl
from gnntrain.distributed.signals import forward_to, install_handlers, requeue, seconds_given
from gnntrain.errors import Interrupted, RunError

JOB = {"SLURM_JOB_ID": "17", "SLURM_JOB_NAME": "train"}


@pytest.mark.parametrize(
    ("environ", "job", "requeues"),
    [
        ({}, None, False),
        (JOB, "17", True),
        ({**JOB, "SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "3"}, "9_3", True),
        ({**JOB, "SLURM_JOB_NAME": "bash"}, "17", False),
        ({**JOB, "SLURM_JOB_NAME": "interactive"}, "17", False),
        ({**JOB, "SUBMITIT_EXECUTOR": "slurm"}, "17", False),
    ],
)
def test_which_jobs_gnntrain_requeues(
    environ: dict[str, str], job: str | None, requeues: bool
) -> None:
    assert slurm_job(environ) == job
    assert requeues_itself(environ) is requeues


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A SLURM job whose `scontrol` notes its arguments in the file returned."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SUBMITIT_"))]:
        monkeypatch.delenv(name)
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    noted, program = tmp_path / "noted", tmp_path / "scontrol"
    program.write_text(
        f'#!/bin/sh\necho "$@" >>{noted}\n[ -z "$REFUSE" ] || {{ echo no >&2; exit 1; }}\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return noted


def test_the_main_process_asks_slurm_and_the_others_wait_for_their_end(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("gnntrain.distributed.signals.time.sleep", waited.append)
    requeue(is_main=False)
    assert waited
    assert not slurm.exists()
    requeue(is_main=True)
    assert slurm.read_text() == "requeue 17\n"


def test_how_long_slurm_lets_a_process_end(tmp_path: Path) -> None:
    configuration = tmp_path / "slurm.conf"
    configuration.write_text("SlurmctldTimeout=120\n KillWait = 45 # seconds\n")
    begun, day = time.time(), 86_400
    job = {**JOB, "SLURM_CONF": str(configuration)}
    assert seconds_given(signal.SIGTERM, 30, {}) == 30
    assert seconds_given(signal.SIGTERM, 30, job) == 45
    assert seconds_given(signal.SIGTERM, 30, {**JOB, "SLURM_CONF": "nowhere"}) == 30
    ahead = {"SLURM_JOB_END_TIME": str(int(begun + 90))}  # --signal=USR1@90
    assert 80 < seconds_given(signal.SIGUSR2, 30, job | ahead) <= 90
    assert seconds_given(signal.SIGUSR2, 30, job) == 30
    by_hand = {"SLURM_JOB_END_TIME": str(int(begun + day))}
    assert seconds_given(signal.SIGUSR2, 30, job | by_hand) < day


@pytest.mark.usefixtures("slurm")
def test_a_job_that_slurm_does_not_requeue_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFUSE", "1")
    with pytest.raises(RunError, match="17: no"):
        requeue(is_main=True)


def run_until(number: int) -> RunControl:
    """A run that is training when it gets a signal."""
    control = RunControl()
    control.enter(Phase.TRAINING, 3)
    with forward_to(control):
        os.kill(os.getpid(), number)
        if control.stop_requested:
            raise Interrupted(control.stop_requested)
    return control


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_in_a_slurm_job_both_signals_end_the_run_and_requeue_it(slurm: Path, number: int) -> None:
    with pytest.raises(Interrupted) as caught, install_handlers(lambda: requeue(is_main=True)):
        run_until(number)
    assert caught.value.number == signal.SIGUSR2
    assert slurm.read_text() == "requeue 17\n"


def test_sigusr1_before_the_run_begins_requeues_when_it_would_begin(slurm: Path) -> None:
    def begin() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert not slurm.exists()
        with forward_to(RunControl()):
            raise AssertionError

    with pytest.raises(Interrupted), install_handlers(lambda: requeue(is_main=True)):
        begin()
    assert slurm.exists()


def test_elsewhere_sigusr1_only_saves_and_other_ends_do_not_requeue(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Interrupted), install_handlers(lambda: requeue(is_main=True)):
        run_until(signal.SIGTERM)
    monkeypatch.delenv("SLURM_JOB_ID")
    with install_handlers(lambda: requeue(is_main=True)):
        assert not run_until(signal.SIGUSR1).stop_requested
    assert not slurm.exists()


def test_submitits_handlers_requeue_after_the_checkpoint_and_ignore_sigterm(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    called: list[int] = []

    def checkpoint_and_try_requeue(number: int, _frame: object) -> None:
        called.append(number)
        raise SystemExit(-1)

    def bypass(number: int, _frame: object) -> None:
        called.append(number)

    before = {
        signal.SIGUSR2: signal.signal(signal.SIGUSR2, checkpoint_and_try_requeue),
        signal.SIGTERM: signal.signal(signal.SIGTERM, bypass),
    }
    try:
        with install_handlers():
            assert not run_until(signal.SIGTERM).stop_requested
        assert called == [signal.SIGTERM]
        with pytest.raises(SystemExit):
            run_until(signal.SIGUSR2)
        assert called == [signal.SIGTERM, signal.SIGUSR2]
        assert signal.getsignal(signal.SIGUSR2) is checkpoint_and_try_requeue
        assert not slurm.exists()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
