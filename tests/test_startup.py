from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gnntrain.startup import collection_paused, resume_collection

LEAVE = """
import atexit, os, sys, tempfile, threading, time
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
if "watched" in sys.argv:
    sys.setprofile(lambda *_: None)
leave(3)
"""


@pytest.mark.parametrize(
    ("case", "exit_code", "out"),
    [
        ("plain", 3, "buffered thread\nregistered\n"),
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
