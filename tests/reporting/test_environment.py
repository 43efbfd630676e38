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


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of commands, which are found before all others."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in ("nvidia-smi", "rocm-smi"):
        write_tool(tmp_path / name, "")
    return tmp_path


def write_tool(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    path.chmod(0o755)


def test_gpus_are_read_from_nvidia_smi(tools: Path) -> None:
    write_tool(tools / "nvidia-smi", "NVIDIA H200, 143771, 570.1\nOdd GPU, [N/A], 570.1")
    assert visible_gpus() == [
        {"name": "NVIDIA H200", "memory_bytes": 143771 * 2**20, "driver": "570.1"},
        {"name": "Odd GPU", "memory_bytes": None, "driver": "570.1"},
    ]


def test_gpus_of_amd_are_read_from_rocm_smi(tools: Path) -> None:
    card = {"Card series": "AMD Instinct MI300X", "VRAM Total Memory (B)": "206141652992"}
    found = {"card0": card, "card1": {}, "system": {"Driver version": "6.12"}}
    write_tool(tools / "rocm-smi", json.dumps(found))
    assert visible_gpus() == [
        {"name": "AMD Instinct MI300X", "memory_bytes": 206141652992, "driver": "6.12"},
        {"name": "AMD GPU", "memory_bytes": None, "driver": "6.12"},
    ]


def test_a_machine_without_the_tools_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    found = describe_environment(seed=0)
    assert found["gpus"] == []
