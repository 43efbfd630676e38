from __future__ import annotations

import json
import os
import socket
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from gnntrain import __version__
from gnntrain.reporting.environment import describe_environment, visible_gpus


def test_versions_hardware_seed_and_command_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["gnntrain", "run.name=a b"])
    found = describe_environment(seed=3)
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


def test_gpus_are_read_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    tool = tmp_path / "nvidia-smi"
    text = "NVIDIA H200, 143771, 570.1\nOdd GPU, [N/A], 570.1"
    tool.write_text(f"#!/bin/sh\necho '{text}'\n")
    tool.chmod(0o755)
    assert visible_gpus() == [
        {"name": "NVIDIA H200", "memory_bytes": 143771 * 2**20, "driver": "570.1"},
        {"name": "Odd GPU", "memory_bytes": None, "driver": "570.1"},
    ]


def test_a_machine_without_the_tools_has_no_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    found = describe_environment(seed=0)
    assert found["gpus"] == []
