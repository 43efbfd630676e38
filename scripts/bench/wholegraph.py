"""WholeGraph, NVIDIA's store of graphs and rows for GPUs, sampling and gathering on one GPU.

    pip install --no-deps pylibwholegraph-cu13==26.10.0   # and its needs, see scripts/gpu_check.sh

Its CSR lists for every node the nodes to draw from: our in-neighbours by destination, as they are.
Every hop draws for all nodes known before it, and the first fan-out is the seeds', as with ours.
It asks torch for memory by calls into Python: the C++ extension that would spare it these is not
built by its wheel, and its sources there do not compile (`free_context_data` is not declared).
"""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

VERSION = "26.10.0"

MEMORY_TYPES = ("continuous", "chunked", "distributed")
"""WholeGraph's kinds of GPU memory, the fastest for one GPU first.

Kernels read `continuous` memory by a plain pointer. In `chunked` memory they look up for every
element whose part it is. `distributed` memory sorts what is asked for by rank and sends it through
NCCL and back into order, also where there is one rank.
"""

_ROOT = Path(__file__).parents[2]
_TRIAL_SECONDS = 40.0


class LeftOut(Exception):
    """A case cannot be measured here, and why."""


class Gathered(NamedTuple):
    """What one batch brought.

    Attributes:
        num_edges: Of all hops.
        nodes: `[num_nodes]`, those that the innermost hop reads.
        rows: `[num_nodes, num_features]`, theirs.
    """

    num_edges: int
    nodes: Tensor
    rows: Tensor


class WholeGraph:
    """A graph and its rows in WholeGraph's memory on GPU 0, which this process has for itself.

    Args:
        memory_type: One of `MEMORY_TYPES`.
        indptr: int64 `[num_nodes + 1]`.
        indices: int32 or int64 `[num_edges]`.
        rows: `[num_nodes, num_features]`.

    Raises:
        LeftOut: WholeGraph is not installed.
    """

    def __init__(self, memory_type: str, indptr: Tensor, indices: Tensor, rows: Tensor) -> None:
        self._library = library()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = str(listener.getsockname()[1])
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        start = self._library.init_torch_env_and_create_wm_comm
        self._comm, _ = start(0, 1, 0, 1, wm_log_level="error")
        self._memory_type = memory_type
        self._tensors: list[Any] = []
        self._graph = self._library.GraphStructure()
        self._graph.set_csr_graph(self._placed(indptr), self._placed(indices))
        self._rows = self._placed(rows)
        self._comm.barrier()

    def draw(self, seeds: Tensor, fan_outs: Sequence[int]) -> Gathered:
        """Draw the neighbourhood of `seeds` and gather the rows of all its nodes.

        Args:
            seeds: `[num_seeds]` on the GPU, of the type of `indices`.
            fan_outs: In-neighbours a node, the hop next to the seeds first.
        """
        # Both lists have the innermost hop first; of `nodes`, the seeds are the last.
        nodes, _, _, sources = self._graph.multilayer_sample_without_replacement(
            seeds, list(fan_outs)
        )
        return Gathered(sum(map(len, sources)), nodes[0], self._rows.gather(nodes[0]))

    def close(self) -> None:
        """Give its memory back."""
        for tensor in self._tensors:
            self._library.destroy_wholememory_tensor(tensor)
        self._library.finalize()

    def _placed(self, values: Tensor) -> Any:
        tensor = self._library.create_wholememory_tensor(
            self._comm, self._memory_type, "cuda", list(values.shape), values.dtype, None
        )
        self._tensors.append(tensor)
        local, _ = tensor.get_local_tensor()
        local.copy_(values)
        return tensor


def library() -> Any:
    """WholeGraph's torch module.

    Raises:
        LeftOut: It is not installed. (An installation that is broken raises what it raises.)
    """
    try:
        return importlib.import_module("pylibwholegraph.torch")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pylibwholegraph":
            raise
        raise LeftOut(
            f"pylibwholegraph is not installed; scripts/gpu_check.sh says how to have {VERSION}"
        ) from None


def version() -> str:
    """WholeGraph's."""
    return str(importlib.import_module("pylibwholegraph").__version__)


def usable_memory() -> tuple[str, dict[str, str]]:
    """The first of `MEMORY_TYPES` that works here, and what those before it said.

    Each is tried in a process of its own: where WholeGraph gets no memory it ends the process.

    Raises:
        LeftOut: WholeGraph is not installed.
        RuntimeError: None of them works.
    """
    library()
    refused: dict[str, str] = {}
    for memory_type in MEMORY_TYPES:
        said = tried(memory_type)
        if said is None:
            return memory_type, refused
        refused[memory_type] = said
    raise RuntimeError(f"WholeGraph has no memory on this GPU: {refused}")


def tried(memory_type: str) -> str | None:
    """What a process that tries a kind of memory says; None where it works."""
    command = [sys.executable, "-m", "scripts.bench.wholegraph", memory_type]
    try:
        done = subprocess.run(
            command,
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TRIAL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_TRIAL_SECONDS:.0f} s"
    if done.returncode == 0:
        return None
    return "; ".join([f"exit status {done.returncode}", *done.stdout.strip().splitlines()[-3:]])


def trial(memory_type: str) -> None:
    """Draw two hops on a ring of eight nodes, each the in-neighbour of the one before.

    Raises:
        RuntimeError: Something else was drawn than the only in-neighbours there are.
    """
    indices = torch.arange(1, 9, dtype=torch.int32) % 8
    rows = torch.arange(64, dtype=torch.float32).view(8, 8).bfloat16()
    peer = WholeGraph(memory_type, torch.arange(9), indices, rows)
    seeds = torch.tensor([6], dtype=torch.int32, device="cuda")
    num_edges, nodes, gathered = peer.draw(seeds, [1, 1])
    drawn = num_edges, nodes.tolist()
    if drawn != (3, [6, 7, 0]) or not gathered.cpu().equal(rows[[6, 7, 0]]):
        raise RuntimeError(f"drawn: {drawn}, rows: {gathered.tolist()}")
    peer.close()


if __name__ == "__main__":
    trial(sys.argv[1])
