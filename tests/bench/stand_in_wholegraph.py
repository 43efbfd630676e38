"""A slow `pylibwholegraph.torch` on the CPU: the names, parameters and results of 26.10's."""

from __future__ import annotations

import os
import random
from types import ModuleType

import torch
from torch import Tensor

ALIVE: list[WholeMemoryTensor] = []
"""Tensors that were created and not destroyed."""


class Communicator:
    """Of one rank."""

    is_running = True

    def barrier(self) -> None:
        assert self.is_running


class WholeMemoryTensor:
    def __init__(self, values: Tensor) -> None:
        self.values: Tensor | None = values

    @property
    def dtype(self) -> torch.dtype:
        return self._values.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._values.shape)

    @property
    def _values(self) -> Tensor:
        assert self.values is not None, "it was destroyed"
        return self.values

    def dim(self) -> int:
        return self._values.dim()

    def gather(self, indice: Tensor, *, force_dtype: torch.dtype | None = None) -> Tensor:
        assert indice.dim() == 1
        return self._values[indice.long()].to(force_dtype or self.dtype)

    def get_local_tensor(self, host_view: bool = False) -> tuple[Tensor, int]:
        assert not host_view, "Device WholeMemory cannot get view from host."
        return self._values, 0


class GraphStructure:
    def __init__(self) -> None:
        self._random = random.Random(0)

    def set_csr_graph(self, csr_row_ptr: WholeMemoryTensor, csr_col_ind: WholeMemoryTensor) -> None:
        assert csr_row_ptr.dim() == 1
        assert csr_row_ptr.dtype == torch.int64
        assert csr_row_ptr.shape[0] > 1
        assert csr_col_ind.dim() == 1
        assert csr_col_ind.dtype in (torch.int32, torch.int64)
        self._csr = csr_row_ptr, csr_col_ind

    def multilayer_sample_without_replacement(
        self, node_ids: Tensor, max_neighbors: list[int], weight_name: str | None = None
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]:
        """target_gids, edge_indice, csr_row_ptr, csr_col_ind; the seeds' hop is the last."""
        assert weight_name is None
        assert node_ids.dtype == self._csr[1].dtype
        known = [node_ids]
        rows: list[Tensor] = []
        cols: list[Tensor] = []
        edges: list[Tensor] = []
        for most in max_neighbors:
            nodes, pointers, centers, indices = self._hop(known[0].tolist(), most)
            known.insert(0, torch.tensor(nodes, dtype=node_ids.dtype))
            rows.insert(0, torch.tensor(pointers, dtype=torch.int32))
            cols.insert(0, torch.tensor(indices, dtype=torch.int32))
            edges.insert(0, torch.stack([cols[0], torch.tensor(centers, dtype=torch.int32)]))
        return known, edges, rows, cols

    def _hop(
        self, nodes: list[int], most: int
    ) -> tuple[list[int], list[int], list[int], list[int]]:
        row_ptr, col_ind = (one.get_local_tensor()[0] for one in self._csr)
        number = {node: at for at, node in enumerate(nodes)}
        pointers: list[int] = [0]
        centers: list[int] = []
        indices: list[int] = []
        for center, node in enumerate(nodes):
            around = col_ind[row_ptr[node] : row_ptr[node + 1]].tolist()
            taken = self._random.sample(around, min(most, len(around)))
            indices += [number.setdefault(one, len(number)) for one in taken]
            centers += [center] * len(taken)
            pointers.append(len(indices))
        return list(number), pointers, centers, indices


def create_wholememory_tensor(
    comm: Communicator,
    memory_type: str,
    memory_location: str,
    sizes: list[int],
    dtype: torch.dtype,
    strides: list[int] | None,
    tensor_entry_partition: list[int] | None = None,
) -> WholeMemoryTensor:
    assert comm.is_running
    assert memory_type in ("continuous", "chunked", "distributed", "hierarchy")
    assert memory_location in ("cpu", "cuda")
    assert len(sizes) in (1, 2)
    assert strides is None
    assert tensor_entry_partition is None
    ALIVE.append(WholeMemoryTensor(torch.zeros(sizes, dtype=dtype)))
    return ALIVE[-1]


def destroy_wholememory_tensor(wm_tensor: WholeMemoryTensor) -> None:
    ALIVE.remove(wm_tensor)
    wm_tensor.values = None


def init_torch_env_and_create_wm_comm(
    world_rank: int,
    world_size: int,
    local_rank: int,
    local_size: int,
    distributed_backend_type: str = "nccl",
    wm_log_level: str = "info",
) -> tuple[Communicator, Communicator]:
    assert (world_rank, world_size, local_rank, local_size) == (0, 1, 0, 1)
    assert distributed_backend_type == "nccl"
    assert wm_log_level in ("error", "warn", "info", "debug", "trace")
    assert os.environ["MASTER_ADDR"]
    assert os.environ["MASTER_PORT"]
    os.environ["RANK"], os.environ["WORLD_SIZE"] = "0", "1"
    torch.set_num_threads(1)
    Communicator.is_running = True
    return Communicator(), Communicator()


def finalize() -> None:
    assert not ALIVE, "tensors outlive their communicator"
    Communicator.is_running = False


def modules() -> dict[str, ModuleType]:
    """What `sys.modules` would hold."""
    top, inner = ModuleType("pylibwholegraph"), ModuleType("pylibwholegraph.torch")
    vars(top).update(__version__="26.10.00", __path__=[], torch=inner)
    vars(inner).update({name: one for name, one in globals().items() if name in PUBLIC})
    return {top.__name__: top, inner.__name__: inner}


PUBLIC = (
    "GraphStructure",
    "WholeMemoryTensor",
    "create_wholememory_tensor",
    "destroy_wholememory_tensor",
    "finalize",
    "init_torch_env_and_create_wm_comm",
)
