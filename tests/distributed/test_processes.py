"""Processes of ranks and workers: they begin as the parent is now, whoever started them."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from gnntrain.distributed.processes import start_process
from gnntrain.distributed.signals import HANDLED
from tests.processes import python, started

KEY = "GNNTRAIN_TEST_PROCESSES"


def tell(file: str) -> None:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    found = {
        "environment": os.environ.get(KEY),
        "folder": str(Path.cwd()),
        "was blocked": blocked.issuperset(HANDLED),
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
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(KEY, value)
    process = start_process(tell, (str(here / "told.json"),), uses_gpu=uses_gpu)
    process.join(60)
    assert process.exitcode == 0
    found = json.loads((here / "told.json").read_text())
    assert found == {
        "environment": value,
        "folder": str(here),
        "was blocked": True,
        "worker": not uses_gpu,
    }
    assert capfd.readouterr() == ("standard output\n", "standard error\n")


SHADOWED = """
import sys
from gnntrain.distributed.processes import start_process
from tests.distributed.test_processes import tell

if __name__ == "__main__":
    process = start_process(tell, ("told.json",), uses_gpu=False)
    process.join(60)
    sys.exit(process.exitcode)
"""


def test_a_users_file_hides_no_module_of_python(tmp_path: Path) -> None:
    """The server looks where this process does: not in the current directory, unless told to."""
    script, folder = tmp_path / "script.py", tmp_path / "work"
    script.write_text(SHADOWED)
    folder.mkdir()
    (folder / "random.py").write_text("raise ZeroDivisionError")
    assert python(script, folder=folder).returncode == 0
    assert json.loads((folder / "told.json").read_text())["worker"]


NO_GPU = """
import sys
import torch

def touched(*_):
    sys.exit("a GPU was looked for")

torch.cuda.device_count = torch.cuda.init = torch.cuda._lazy_init = touched
torch.accelerator.is_available = torch.accelerator.current_accelerator = touched
import gnntrain.preloaded
"""


def test_the_server_looks_for_no_gpu_before_it_is_forked() -> None:
    """What is forked after CUDA's start cannot use a GPU; a sweep's trial may want one."""
    assert python("-c", NO_GPU).returncode == 0


ORPHAN = """
import os, signal, sys
from multiprocessing import forkserver
from gnntrain.distributed.processes import start_process
from tests.distributed.test_processes import outlive

if __name__ == "__main__":
    forkserver.ensure_running()
    server = forkserver._forkserver._forkserver_pid
    os.kill(server, signal.SIGSTOP)  # it hears of the request when this process is gone
    print(server, flush=True)
    start_process(outlive, (sys.argv[1],), uses_gpu=False)
"""


def outlive(file: str) -> None:
    Path(file).touch()


def test_the_server_starts_nothing_for_a_parent_that_was_killed(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    with started("-c", ORPHAN, begun, folder=tmp_path) as parent:
        assert parent.stdout is not None
        server = psutil.Process(int(parent.stdout.readline()))
        time.sleep(0.5)  # until it waits for the server's answer
        parent.kill()
    server.resume()
    server.wait(60)
    assert not begun.exists()


UNGUARDED = """
import psutil
from gnntrain.config import Config, SyntheticConfig
from gnntrain.errors import UserError
from gnntrain.run import train

config = Config(dataset=SyntheticConfig(num_nodes=200))
ways = [
    config.changed(trainer={"epochs": 1, "gpus": 0}, distributed={"num_processes": 2}),
    config.changed(trainer={"epochs": 1, "gpus": 0, "max_restarts": 1}),
]
for way in ways:
    try:
        train(way)
    except UserError as error:
        print(error)
print("left", psutil.Process().children())
"""


GUARDED = UNGUARDED.replace("in ways:", 'in ways[:1] * (__name__ == "__main__"):')


@pytest.mark.parametrize(
    ("text", "num_refusals"), [(UNGUARDED, 2), pytest.param(GUARDED, 0, marks=pytest.mark.slow)]
)
def test_a_script_needs_its_guard_and_is_left_without_processes(
    tmp_path: Path, text: str, num_refusals: int
) -> None:
    script = tmp_path / "script.py"
    script.write_text(text)
    ended = python(script, folder=tmp_path, env={"XDG_CACHE_HOME": str(tmp_path)})
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count(f"{script} starts processes") == num_refusals
    assert (tmp_path / "runs").exists() == (not num_refusals)
    assert ended.stdout.endswith("left []\n")
