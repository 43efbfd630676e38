"""Compiles the kernels that most models need, by some of the operators' examples."""

from __future__ import annotations

from dataclasses import replace

import torch

from gnntrain.compute import kernels
from gnntrain.compute.aggregate import Aggregate
from gnntrain.compute.examples import Inputs
from gnntrain.compute.linear import AggregateLinear, AggregateLinearBackward
from gnntrain.compute.operator import Edges
from gnntrain.jit import compile_beside


def compile_kernels_beside(feature_dtype: torch.dtype) -> None:
    """Compile them in another process unless they are cached; see `compile_beside`.

    In a process that uses a GPU (a notebook) they are compiled at their first call: the other
    process would be forked, which CUDA does not survive.
    """
    if torch.cuda.is_initialized() or torch.xpu.is_initialized():  # type: ignore[no-untyped-call]
        return

    compile_beside(kernels, lambda: compile_kernels(feature_dtype))


def compile_kernels(feature_dtype: torch.dtype) -> None:
    """Compile them for features of a type, or load them from Numba's cache, in this thread."""
    torch.set_num_threads(1)  # a forked process has no other threads
    edges = Edges(torch.tensor([0, 1], dtype=torch.int32), torch.zeros(1, dtype=torch.int32))
    given = Inputs("one edge", edges, 1)
    Aggregate.examples(replace(given, dtype=feature_dtype))["float32 sums"].cpu()
    AggregateLinear.examples(given)["root, ReLU"].cpu()
    AggregateLinearBackward.examples(given)["ReLU"].cpu()
    given.back()
