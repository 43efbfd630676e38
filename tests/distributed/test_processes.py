"""Processes of ranks and workers: they begin as the parent is now, whoever started them."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from gnntrain.distributed.processes import start_process, unblock_signals
from gnntrain.distributed.signals import HANDLED

KEY = "GNNTRAIN_TEST_PROCESSES"


def tell(file: str) -> None:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    unblock_signals()
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    found = {
        "environment": os.environ.get(KEY),
        "folder": str(Path.cwd()),
        "was blocked": blocked.issuperset(HANDLED),
        "is blocked": bool(unblocked.intersection(HANDLED)),
        "worker": "gnntrain.worker" in sys.modules,
    }
    Path(file).write_text(json.dumps(found))
    print("standard output")
    print("standard error", file=sys.stderr)


@pytest.mark.parametrize("uses_gpu", [False, True])
@pytest.mark.parametrize("value", ["first", "second"])
def test_a_process_has_the_parents_present_surroundings(
    value: str,
    uses_gpu: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(KEY, value)
    monkeypatch.chdir(tmp_path)
    process = start_process(tell, (str(tmp_path / "told.json"),), uses_gpu=uses_gpu)
    process.join(60)
    assert process.exitcode == 0
    found = json.loads((tmp_path / "told.json").read_text())
    assert found == {
        "environment": value,
        "folder": str(tmp_path),
        "was blocked": True,
        "is blocked": False,
        "worker": not uses_gpu,
    }
    assert capfd.readouterr() == ("standard output\n", "standard error\n")


def test_a_process_that_is_killed_has_the_signal_as_its_exit_code() -> None:
    process = start_process(signal.pause, (), uses_gpu=False)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
