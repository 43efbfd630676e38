"""Compiles the kernels that most models need, by calling them on small inputs."""

from __future__ import annotations

import torch

from gnntrain.compute import kernels
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.linear import AggregateLinear, AggregateLinearBackward
from gnntrain.compute.operator import Edges, Sum
from gnntrain.compute.rows import Transpose
from gnntrain.jit import compile_beside


def compile_kernels_beside(feature_dtype: torch.dtype) -> None:
    """Compile them in another process unless they are cached; see `compile_beside`.

    In a process that uses a GPU (a notebook) they are compiled at their first call: the other
    process would be forked, which CUDA does not survive.
    """
    if torch.cuda.is_initialized() or torch.xpu.is_initialized():  # type: ignore[no-untyped-call]
        return

    def compute() -> None:
        for dtype in {feature_dtype: None, torch.float32: None}:
            compile_kernels(dtype)

    compile_beside(kernels, compute)


def compile_kernels(dtype: torch.dtype) -> None:
    """Compile them for features of a type, or load them from Numba's cache, in this thread."""
    torch.set_num_threads(1)  # a forked process has no other threads
    indptr, indices = torch.tensor([0, 1], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    features = LazyFeatures(torch.ones(1, 1, dtype=dtype))
    weight, bias = torch.ones(1, 2), torch.ones(1)
    edges = Edges(indptr, indices)
    total = Sum(scale=edges.shares(torch.float32))
    out, inputs = AggregateLinear(features, edges, total, weight, bias, True, 0.5, True).cpu()
    given = out, weight, inputs, out, 0.5, torch.float32, True
    AggregateLinearBackward(*given).cpu()
    Transpose(indptr, indices, 1).cpu()
