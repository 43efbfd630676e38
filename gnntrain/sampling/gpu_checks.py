"""Checks of a graph's tensors for sampling on a GPU."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from gnntrain.errors import UserError
from gnntrain.sampling import triton_kernels as kernels
from gnntrain.sampling.cpu import MAX_DEGREE


def check_place(device: torch.device, *tensors: Tensor) -> None:
    """Whether `device` can sample, and read these tensors.

    Raises:
        UserError: It cannot.
    """
    if device.type == "cpu" and isinstance(kernels.claim, triton.JITFunction):
        raise UserError(
            "the Triton sampler needs a GPU, and the graph lies in host memory",
            "Move indptr and indices to the GPU, or pin them and name a device.",
        )
    for tensor in tensors:
        if tensor.device != device and not (tensor.device.type == "cpu" and tensor.is_pinned()):
            raise UserError(
                f"the graph lies on {tensor.device}, where {device} cannot read it",
                f"Move it to {device}, or pin it: tensor.pin_memory().",
            )


def checked_max_degree(indptr: Tensor, indices: Tensor) -> int:
    """The most in-edges of a node.

    Raises:
        UserError: Wrong dtype or shape, or `indptr` does not span `indices`.
    """
    is_csc = indptr.dim() == 1 == indices.dim() and indptr.dtype == torch.int64
    if not is_csc or indices.dtype not in (torch.int32, torch.int64):
        raise UserError(
            f"the graph's indptr is {indptr.dtype} of shape {list(indptr.shape)}, "
            f"its indices are {indices.dtype} of shape {list(indices.shape)}",
            "Give indptr as int64 [num_nodes + 1] and indices as int32 or int64 [num_edges].",
        )
    if not (indptr.is_contiguous() and indices.is_contiguous()):
        raise UserError("the graph's tensors have gaps", "Give tensor.contiguous().")
    ends = indptr[[0, -1]].tolist() if len(indptr) else []
    if ends != [0, len(indices)]:
        runs = f"from {ends[0]} to {ends[1]}" if ends else "over nothing"
        raise UserError(
            f"the graph's indptr runs {runs}, but there are {len(indices)} edges",
            "It must start at 0 and end at the number of edges.",
        )
    max_degree = int(indptr.diff().max()) if len(indptr) > 1 else 0
    if max_degree > MAX_DEGREE:
        raise UserError("a node has 2^32 in-edges or more", "Split the node or drop edges.")
    return max_degree
