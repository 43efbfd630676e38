"""All cases of the self-check, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from gnntrain.compute import cuda, ops, reference
from gnntrain.selfcheck.arguments import FLOAT32_ALONE, FORMS, Inputs
from gnntrain.selfcheck.blocks import awkward_blocks
from gnntrain.selfcheck.case import Case, WrongResultError
from gnntrain.selfcheck.comparing import compare
from gnntrain.selfcheck.host_memory_cases import host_memory_cases
from gnntrain.selfcheck.sampler_cases import sampler_cases

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def kernels() -> list[str]:
    """The operators that have a kernel for GPUs."""
    references = ops.functions_of(reference)
    return [name for name, one in ops.functions_of(cuda).items() if one is not references[name]]


def all_cases(device_type: str) -> list[Case]:
    """Every case for a device: what most models need first."""
    cases = [*_operator_cases(), *sampler_cases()]
    if device_type != "cpu":
        cases += host_memory_cases()
    return cases


def _operator_cases() -> Iterator[Case]:
    for precision in PRECISIONS:
        for operator in kernels():
            if precision != "fp32" and operator in FLOAT32_ALONE:
                continue
            for options in FORMS[operator]:
                run = partial(_tried, operator, options, precision)
                yield Case(operator, options, precision, run)


def _tried(operator: str, options: str, precision: str, device: torch.device) -> float:
    """Compare a kernel with its reference on all blocks."""
    form, dtype = FORMS[operator][options], PRECISIONS[precision]
    functions = getattr(cuda, operator), getattr(reference, operator)
    error = 0.0
    for name, block in awkward_blocks():
        try:
            error = max(error, compare(*functions, form(Inputs(block, dtype)), device))
        except WrongResultError as wrong:
            raise WrongResultError(f"{wrong} ({name})") from wrong
    return error
