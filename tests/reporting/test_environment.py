from __future__ import annotations

import json
import socket
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnntrain import __version__
from gnntrain.reporting import environment
from gnntrain.reporting.environment import describe_environment


def test_versions_hardware_seed_and_command_are_there() -> None:
    found = describe_environment(seed=3, command=["gnntrain", "run.name=a b"])
    assert found["seed"] == 3
    assert found["command"] == "gnntrain 'run.name=a b'"
    assert found["packages"]["torch"] == metadata.version("torch")
    assert found["packages"]["numpy"] == np.__version__
    assert found["packages"]["gnntrain"] == __version__
    assert found["cpu"]
    assert 1 <= found["cores_available"] <= found["cores"]
    assert found["memory_bytes"] > 2**20
    assert socket.gethostname() not in found.values()
    json.dumps(found, allow_nan=False)


def test_gpus_are_read_from_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "NVIDIA H200, 143771, 570.1\nOdd GPU, [N/A], 570.1"
    monkeypatch.setattr(environment, "_output", lambda *_: text)
    gpus = environment.visible_gpus()
    assert gpus[0] == {
        "name": "NVIDIA H200",
        "memory_bytes": 143771 * 2**20,
        "driver": "570.1",
    }
    assert gpus[1]["memory_bytes"] is None


def test_a_machine_without_the_tools_has_no_gpu_and_no_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    found = describe_environment(seed=0)
    assert found["gpus"] == []
    assert found["git_commit"] is None


def test_a_tool_that_hangs_or_fails_counts_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: Any, **__: Any) -> None:
        raise subprocess.TimeoutExpired("git", 10)

    assert environment._output("false") is None
    monkeypatch.setattr(subprocess, "run", hang)
    assert environment._output("true") is None


def git(*arguments: str, at: Path) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    command = ("git", *identity, "-C", str(at), *arguments)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_is_that_of_the_package_and_says_if_files_changed(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    git("init", at=tmp_path)
    assert environment._git_commit(package) is None
    git("add", ".", at=tmp_path)
    git("commit", "-m", "first", at=tmp_path)
    commit = git("rev-parse", "HEAD", at=tmp_path)
    assert environment._git_commit(package) == commit
    (package / "__init__.py").write_text("changed")
    assert environment._git_commit(package) == f"{commit}-dirty"
