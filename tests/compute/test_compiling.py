"""Kernels that another process compiles."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import sys
import torch
from gnntrain import jit
from gnntrain.compute import cpu, kernels
from gnntrain.compute.compiling import compile_kernels_beside
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.ops import Sum

compile_kernels_beside(torch.float32)
processes = list(jit._compiling.values())
if sys.argv[1] == "killed":
    processes[0].kill()
rows = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
indptr, indices = torch.tensor([0, 2], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)
total = Sum(indptr, indices, is_mean=True)
print(cpu.aggregate(LazyFeatures(rows), total, "none", torch.float32).tolist())
stats = kernels.reduce_rows.stats
print(len(processes), sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
print([process.is_alive() for process in processes])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
@pytest.mark.parametrize(
    ("case", "processes_hits_misses", "alive"),
    [("whole", "1 1 0", "[False]"), ("killed", "1 0 1", "[False]"), ("no cache", "0 0 1", "[]")],
)
def test_kernels_are_compiled_once_by_whichever_process(
    case: str, processes_hits_misses: str, alive: str, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    if case == "no cache":
        cache.touch()  # and so no folder can be made
    ended = subprocess.run(
        [sys.executable, "-c", RUN, case],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["[[2.0, 3.5]]", processes_hits_misses, alive]
