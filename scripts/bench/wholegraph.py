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
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

# Kernels read it by a plain pointer: the fastest of WholeGraph's kinds of memory for one GPU.
MEMORY_TYPE = "continuous"


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
        indptr: int64 `[num_nodes + 1]`.
        indices: int32 or int64 `[num_edges]`.
        rows: `[num_nodes, num_features]`.

    Raises:
        LeftOut: WholeGraph is not installed.
    """

    def __init__(self, indptr: Tensor, indices: Tensor, rows: Tensor) -> None:
        self._library = library()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = str(listener.getsockname()[1])
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        start = self._library.init_torch_env_and_create_wm_comm
        self._comm, _ = start(0, 1, 0, 1, wm_log_level="error")
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
            self._comm, MEMORY_TYPE, "cuda", list(values.shape), values.dtype, None
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
        what = "pylibwholegraph is not installed; scripts/gpu_check.sh says how to have it"
        raise LeftOut(what) from None
