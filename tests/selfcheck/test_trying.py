"""Kernels that do not end, that end their process, and parents that end first."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from gnntrain.selfcheck.cases import Outcome, all_cases, try_cases
from tests.compute.devices import NEEDS_INTERPRETER
from tests.selfcheck.breaking import python_path

pytest.importorskip("triton", reason="triton is not installed")
pytestmark = [NEEDS_INTERPRETER, pytest.mark.slow]

PATIENCE = 120.0
GATHER = "gather: selected rows, fp32"
FURTHER, SUM = "gather: float32 rows, fp32", "aggregate: sum, fp32"
SAMPLER = "sampler: fan-outs 4, 3"


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Sets `BROKEN`, which processes from here on obey."""
    monkeypatch.setenv("PYTHONPATH", python_path(tmp_path))
    return monkeypatch


def try_some(
    *names: str, number: int = 1, seconds: float = math.inf, before: Sequence[str] = ()
) -> tuple[dict[str, Outcome], str | None]:
    """The outcomes, and why a process did not start."""
    cases = {case.name: case for case in all_cases()}
    known = dict.fromkeys(before, Outcome("hangs", is_lasting=False))
    deadline = time.monotonic() + seconds
    failure = try_cases([cases[name] for name in names], "cpu", deadline, number, known)
    return known, failure


def test_what_hangs_twice_hangs_and_the_others_are_tried(broken: pytest.MonkeyPatch) -> None:
    broken.setenv("BROKEN", "gather=hang")
    broken.setenv("CASE_SECONDS", "10")
    began = time.monotonic()
    outcomes, _ = try_some(GATHER, FURTHER, SUM)
    assert list(outcomes) == [GATHER, SUM]  # a further case would tell nothing new
    assert "hang" in str(outcomes[GATHER].fault)
    assert not outcomes[GATHER].is_lasting  # the machine may have had too much to do
    assert try_some(GATHER, before=[GATHER])[0][GATHER].is_lasting
    assert outcomes[SUM].fault is None
    assert time.monotonic() - began < PATIENCE


def test_what_is_not_done_in_time_has_no_outcome(broken: pytest.MonkeyPatch) -> None:
    broken.setenv("BROKEN", "gather=hang")
    began = time.monotonic()
    assert try_some(GATHER, SUM, seconds=1.0) == ({}, None)
    assert time.monotonic() - began < PATIENCE


@pytest.mark.usefixtures("broken")
def test_a_gpu_that_takes_one_process_alone_is_checked_by_it(tmp_path: Path) -> None:
    """As with nvidia-smi's exclusive mode."""
    (tmp_path / "sitecustomize.py").write_text(
        "import fcntl, os\n"
        f"taken = open({str(tmp_path / 'taken')!r}, 'w')\n"
        "try: fcntl.flock(taken, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except OSError: os.write(2, b'GPU is taken'); os._exit(3)\n"
    )
    names = GATHER, SUM, SAMPLER
    outcomes, failure = try_some(*names, number=3)
    assert len(outcomes) == 1
    assert "exit code 3: GPU is taken" in str(failure)
    left, failure = try_some(*(name for name in names if name not in outcomes))
    assert len(left) == 2
    assert failure is None


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_where_the_parent_ends(
    broken: pytest.MonkeyPatch, ending: signal.Signals
) -> None:
    broken.setenv("BROKEN", "gather=hang")
    broken.setenv("CASE_SECONDS", "8")
    code = "from tests.selfcheck.test_trying import *; try_some(GATHER)"
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    deadline = time.monotonic() + PATIENCE
    while not children.read_text().strip() and time.monotonic() < deadline:
        time.sleep(0.1)
    child = Path("/proc", children.read_text().strip(), "stat")
    parent.send_signal(ending)
    parent.wait()
    while time.monotonic() < deadline and child.exists() and ") Z " not in child.read_text():
        time.sleep(0.1)
    assert time.monotonic() < deadline
