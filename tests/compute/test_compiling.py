"""Kernels that another process compiles."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from gnntrain.compute import compiling
from tests.processes import python

RUN = """
import os, sys
import torch
from gnntrain import jit
from gnntrain.compute import kernels
from gnntrain.compute.aggregate import Aggregate
from gnntrain.compute.compiling import compile_kernels_beside
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.operator import Edges, Sum

compile_kernels_beside(torch.float32)
processes = list(jit._compiling.values())
if sys.argv[1] == "killed":
    processes[0].kill()
rows = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
indptr, indices = torch.tensor([0, 2], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)
edges, total = Edges(indptr, indices), Sum(scale=torch.tensor([0.5]))
print(Aggregate(LazyFeatures(rows), edges, total, torch.float32).cpu().tolist())
stats = kernels.reduce_rows.stats
hits, misses = sum(stats.cache_hits.values()), sum(stats.cache_misses.values())
print(len(processes), hits, misses, flush=True)
"""


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it forks")


def processes_hits_misses(case: str, cache: Path) -> str:
    ended = python("-c", RUN, case, env={"NUMBA_CACHE_DIR": str(cache)})
    assert ended.returncode == 0, ended.stderr
    rows, counts = ended.stdout.splitlines()
    assert rows == "[[2.0, 3.5]]"
    return counts


@pytest.mark.slow
def test_kernels_are_compiled_once_beside_the_run(tmp_path: Path) -> None:
    assert processes_hits_misses("whole", tmp_path) == "1 1 0"
    assert processes_hits_misses("kept by now", tmp_path) == "0 1 0"


def test_a_process_that_uses_a_gpu_is_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(compiling, "compile_beside", None)
    compiling.compile_kernels_beside(torch.float32)


@pytest.mark.slow
def test_a_run_compiles_what_a_process_that_was_killed_has_not(tmp_path: Path) -> None:
    assert processes_hits_misses("killed", tmp_path) == "1 0 1"


@pytest.mark.slow
def test_a_cache_that_is_broken_is_written_anew(tmp_path: Path) -> None:
    processes_hits_misses("whole", tmp_path)
    for index in tmp_path.rglob("*.nbi"):
        index.write_bytes(b"")
    assert processes_hits_misses("broken", tmp_path) == "1 1 0"
    assert processes_hits_misses("kept by now", tmp_path) == "0 1 0"
