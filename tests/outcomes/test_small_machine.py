"""A run on a machine that has little of anything."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT


def starve() -> None:
    """One core, and few open files."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


@pytest.mark.slow
def test_two_ranks_train_on_one_core_with_few_handles_no_home_and_a_bare_locale(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    nowhere = str(tmp_path / "file" / "no-folder-can-be-made-here")
    job = subprocess.run(
        [
            *(sys.executable, "-m", "gnntrain", "trainer.epochs=1", "dataset.num_nodes=200"),
            *("model.hidden_channels=8", "trainer.gpus=0", "distributed.num_processes=2"),
            *(f"dataset.store_dir={tmp_path / 'stores'}", f"run.dir={tmp_path / 'run'}"),
            "logger=[csv,tensorboard]",
        ],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "HOME": nowhere,
            "XDG_CACHE_HOME": nowhere,
            "LC_ALL": "POSIX",
            "PYTHONUTF8": "0",
            "PYTHONCOERCECLOCALE": "0",
        },
        preexec_fn=starve,
        capture_output=True,
        check=False,
    )
    assert job.returncode == 0, job.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["world_size"]) == ("completed", 2)


# A user that the system does not know, as in a container with a number for a user.
_STRANGER = """
import pwd, sys
def unknown(*_): raise KeyError
pwd.getpwuid = unknown
from gnntrain.cli import main
sys.exit(main())
"""


@pytest.mark.slow
def test_without_a_home_a_folder_for_stores_is_asked_for_and_suffices(tmp_path: Path) -> None:
    def train(*keys: str) -> subprocess.CompletedProcess[str]:
        tiny = ["trainer.epochs=1", "dataset.num_nodes=200", "model.hidden_channels=8"]
        return subprocess.run(
            [sys.executable, "-c", _STRANGER, *tiny, "trainer.gpus=0", "run.dir=run", *keys],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    refused = train()
    assert (refused.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "dataset.store_dir" in refused.stderr
    assert train("dataset.store_dir=stores").returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"run", "stores"}
