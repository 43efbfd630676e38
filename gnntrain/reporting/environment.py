"""The environment of a run: versions, hardware, command."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from gnntrain import __version__
from gnntrain.limits import available_cores

_PACKAGES = (
    *("torch", "torch-geometric", "numba", "numpy", "scipy", "pandas", "ogb", "hydra-core"),
    *("triton", "pyg-lib"),
)


def describe_environment(*, seed: int) -> dict[str, Any]:
    """The contents of ``env.json``, without the host's name. No CUDA context is created."""
    import torch  # `doctor` uses this module where torch is broken

    return {
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": shlex.join(sys.argv),
        "seed": seed,
        "python": platform.python_version(),
        "packages": {"gnntrain": __version__, **{p: package_version(p) for p in _PACKAGES}},
        "cuda": torch.version.cuda,
        **({"rocm": torch.version.hip} if torch.version.hip else {}),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "cores_available": available_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": visible_gpus(),
    }


def package_version(package: str) -> str | None:
    """The installed version of a package; ``None`` where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def compiler() -> str | None:
    """The C compiler, as Triton looks for it."""
    return os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")


def cpu_model() -> str:
    """The processor's name."""
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        if found := re.search(r"^model name\s*: (.*)$", text, re.M):
            return found[1].strip()
    return platform.processor() or platform.machine()


def _output(*command: str) -> str:
    """What a tool prints; nothing where it fails, or is not installed."""
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        return subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True, timeout=10)
    return ""


def visible_gpus() -> list[dict[str, Any]]:
    """Name, memory and driver of every GPU that ``nvidia-smi`` or ``rocm-smi`` lists, else of those
    of Apple or Intel that torch sees."""
    found: list[tuple[str, int | None, str | None]] = []
    query = "--query-gpu=name,memory.total,driver_version"
    text = _output("nvidia-smi", query, "--format=csv,noheader,nounits")
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) == 3:
            found.append((row[0], int(row[1]) * 2**20 if row[1].isdigit() else None, row[2]))
    with contextlib.suppress(ValueError):  # no JSON
        flags = ("--showproductname", "--showmeminfo", "vram", "--showdriverversion", "--json")
        cards: dict[str, dict[str, str]] = json.loads(_output("rocm-smi", *flags))
        driver = cards.pop("system", {}).get("Driver version")
        for card in cards.values():
            facts = {key.lower(): value for key, value in card.items()}
            name = facts.get("card series") or facts.get("device name") or "AMD GPU"
            size = facts.get("vram total memory (b)", "")
            found.append((name, int(size) if size.isdigit() else None, driver))
    if not found:
        with contextlib.suppress(ImportError):  # torch is not installed, or is broken
            import torch

            from gnntrain import devices

            for kind, number in devices.gpus_here().items():
                if kind != "cuda":
                    here = [torch.device(kind, index) for index in range(number)]
                    found += [(*devices.describe(device), None) for device in here]
    return [{"name": name, "memory_bytes": size, "driver": driver} for name, size, driver in found]
