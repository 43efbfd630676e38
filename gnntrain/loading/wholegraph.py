"""Feature rows on the GPUs of all machines, gathered by NVIDIA's WholeGraph.

    pip install pylibwholegraph-cu13

Its `distributed` memory is divided equally among the GPUs of a communicator. A gather sends node
ids to the GPUs that hold the rows, and rows back, by NCCL: over NVLink within a machine, over the
network between machines.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.distributed.context import DistributedContext


class WholeGraphFeatures:
    """The rows of all nodes, an equal part on each rank's GPU. Collective.

    `select` is a collective, too: all ranks call it equally often, and in one thread each.

    Args:
        rows: `[num_nodes, num_features]`, the store's, of which a rank reads its part.
        context: This rank; torch's process group must be that of all ranks.
    """

    waits = True

    def __init__(self, rows: Tensor, context: DistributedContext) -> None:
        library = importlib.import_module("pylibwholegraph.torch")
        self._device = context.device
        ranks = context.machine_ranks
        place = context.rank, context.world_size, context.rank - ranks[0], len(ranks)
        library.init(*place, wm_log_level="error")
        with self._on_device():
            # It takes torch's process group to tell all ranks the address of a communicator of
            # its own, in which its gathers run: they do not mix with DDP's collectives.
            comm = library.get_global_communicator("nccl")
            self._rows: Any = library.create_wholememory_tensor(
                comm, "distributed", "cuda", list(rows.shape), rows.dtype, None
            )
            part, first = self._rows.get_local_tensor()
            part.copy_(rows[first : first + len(part)])
            if self._device.type == "cuda":
                torch.cuda.synchronize()
            comm.barrier()

    def select(self, nodes: Tensor | None = None, size: Tensor | None = None) -> LazyFeatures:
        """See `FeatureSource.select`; `nodes` are not padded."""
        assert nodes is not None, "no GPU holds the rows of all nodes"
        assert size is None, "a gather waits for the GPU: its batches are not padded"
        with self._on_device():  # in a loader's thread another GPU may be current
            return LazyFeatures(self._rows.gather(nodes.to(self._device)))

    def take_reads(self) -> tuple[int, int]:
        """There is no cache."""
        return 0, 0

    def _on_device(self) -> AbstractContextManager[Any]:
        on_gpu = self._device.type == "cuda"
        return torch.cuda.device(self._device) if on_gpu else nullcontext()
