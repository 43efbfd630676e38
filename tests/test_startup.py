from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gnntrain.startup import collection_paused, leave, resume_collection

LEAVE = """
import atexit, ctypes, os, sys, tempfile, threading, time
from gnntrain.startup import leave
atexit.register(print, "registered")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
class Freed:
    def __del__(self, write=os.write): write(1, b"freed")
freed = Freed()
folder = tempfile.TemporaryDirectory(dir=".")
sys.stdout.write("buffered ")
if "closed" in sys.argv:
    os.close(1)
if "no stream" in sys.argv:
    sys.stdout.flush()
    sys.stdout = sys.stderr = None
if "by C" in sys.argv:
    sys.stdout.flush()
    ctypes.CDLL(None).printf(b"printed ")
if "watched" in sys.argv:
    sys.setprofile(lambda *_: None)
leave(3)
"""


@pytest.mark.parametrize(
    ("case", "exit_code", "out"),
    [
        ("plain", 3, "buffered thread\nregistered\n"),
        ("no stream", 3, "buffered "),
        ("by C", 3, "buffered thread\nregistered\nprinted "),
        ("closed", 120, ""),  # as Python ends where its output cannot be written
        ("watched", 3, "buffered thread\nregistered\nfreed"),
    ],
)
def test_a_process_that_leaves_loses_nothing(
    case: str, exit_code: int, out: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", LEAVE, case]
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    ended = subprocess.run(command, cwd=tmp_path, env=buffered, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (exit_code, out)
    assert not list(tmp_path.iterdir())


def test_ranks_train_where_the_shell_has_closed_their_output(tmp_path: Path) -> None:
    keys = "distributed.num_processes=2 trainer.gpus=0 trainer.epochs=1 dataset.num_nodes=200"
    command = f'exec "{sys.executable}" -m gnntrain run.dir=run {keys} <&- >&- 2>&-'
    assert subprocess.run(["sh", "-c", command], cwd=tmp_path, check=False).returncode == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "completed"


def test_a_profile_of_the_command_line_is_kept(tmp_path: Path) -> None:
    profile = tmp_path / "profile"
    command = [sys.executable, "-m", "cProfile", "-o", str(profile), "-m", "gnntrain", "--version"]
    assert subprocess.run(command, check=False).returncode == 0
    assert profile.stat().st_size > 0


def test_a_tool_of_sys_monitoring_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    """As cProfile does from Python 3.12 on."""
    monkeypatch.setattr(sys, "getprofile", lambda: None)
    monkeypatch.setattr(sys, "gettrace", lambda: None)
    tools = {2: "cProfile"}
    monkeypatch.setattr(sys, "monitoring", SimpleNamespace(get_tool=tools.get), raising=False)
    with pytest.raises(SystemExit) as ended:
        leave(3)
    assert ended.value.code == 3


def test_garbage_is_collected_again_whatever_happens() -> None:
    def fail() -> None:
        with collection_paused():
            assert not gc.isenabled()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert gc.isenabled()
    with collection_paused():
        resume_collection()
        assert gc.isenabled()
    gc.unfreeze()


def test_collection_that_a_user_has_disabled_stays_so() -> None:
    gc.disable()
    try:
        with collection_paused():
            resume_collection()
        assert not gc.isenabled()
    finally:
        gc.enable()


IMPORTS = """
import os, warnings
import numpy, ogb, optuna, pandas, scipy.sparse, sklearn, torch, torch._inductor, torch_geometric
found = [dict(os.environ), [*warnings.filters]]
import gnntrain.inference, gnntrain.planning.plan, gnntrain.report.writing, gnntrain.results.export
import gnntrain.run, gnntrain.sweep, gnntrain.sampling.pyg, gnntrain.training.cuda_graph
assert found == [dict(os.environ), warnings.filters]
"""


@pytest.mark.slow
def test_an_import_sets_no_filter_and_no_variable() -> None:
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)
