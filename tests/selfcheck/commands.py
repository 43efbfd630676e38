"""gnntrain's commands in processes of their own, with Triton's interpreter and a cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.selfcheck import breaking

REPOSITORY = Path(__file__).parents[2]


def gnntrain(
    folder: Path, *arguments: str, broken: str = "", auto: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a command in `folder`, whose caches are in it too.

    Args:
        folder: The current directory.
        arguments: Of the command.
        broken: See `breaking`.
        auto: Whether `compute.kernels=auto` means Triton's kernels on the CPU.
    """
    changes = folder / "changes"
    changes.mkdir(exist_ok=True)
    shutil.copyfile(breaking.__file__, changes / "sitecustomize.py")
    variables = {
        "PYTHONPATH": os.pathsep.join([str(changes), str(REPOSITORY)]),
        "TRITON_INTERPRET": "1",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "BROKEN": broken,
        "AUTO_ON_CPU": str(int(auto)),
    }
    return subprocess.run(
        [sys.executable, "-m", "gnntrain", *arguments],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
