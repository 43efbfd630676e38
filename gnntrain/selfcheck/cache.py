"""Results of the self-check, kept for each GPU, driver, torch, Triton and version of gnntrain.

Also for each C compiler: Triton needs one, and may find it on one machine of several that share a
home folder, or after the first start.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO

import platformdirs

from gnntrain.atomic_io import atomic_write
from gnntrain.reporting.environment import compiler, package_version
from gnntrain.selfcheck.case import Result
from gnntrain.selfcheck.gpus import GPU

_PAUSE_SECONDS = 0.1
_SOURCES = ("compute", "sampling", "selfcheck")


def cache_file(gpu: GPU) -> Path:
    """Where the results of a GPU's kernels are kept."""
    versions = package_version("torch"), package_version("triton"), compiler()
    key = [gpu.name, gpu.driver, *versions, _sources()]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    try:
        folder = platformdirs.user_cache_path("gnntrain")
    except RuntimeError:  # the user has no home: nothing is kept
        folder = Path(os.devnull)
    return folder / "selfcheck" / f"{digest}.json"


def _sources() -> str:
    """The digest of the files that make the kernels, their references and the cases."""
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    for path in sorted(path for name in _SOURCES for path in (package / name).glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


@contextlib.contextmanager
def held(path: Path, seconds: float) -> Iterator[None]:
    """Let one process at a time check a GPU: others wait for its results, `seconds` at most.

    Where the folder cannot be written or locked, nobody waits.
    """
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(path.with_suffix(".lock").open("w"))
            while not _locked(lock) and time.monotonic() < deadline:
                time.sleep(_PAUSE_SECONDS)
        yield


def _locked(file: IO[str]) -> bool:
    """Lock a file, unless another process holds it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def load(path: Path) -> dict[str, Result]:
    """The results by the names of their cases; none of a file that cannot be read."""
    try:
        plain = json.loads(path.read_bytes())
        return {result["case"]: Result(**result) for result in plain}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def save(path: Path, results: Iterable[Result]) -> None:
    """Keep the results, if the folder can be written."""
    plain = [asdict(result) for result in results]
    with contextlib.suppress(OSError), atomic_write(path) as file:
        file.write(json.dumps(plain, indent=1).encode())
