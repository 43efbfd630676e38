"""All cases of the self-check, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from gnntrain.compute.examples import awkward_inputs
from gnntrain.compute.ops import OPERATORS
from gnntrain.selfcheck.case import Case, WrongResultError
from gnntrain.selfcheck.comparing import compare
from gnntrain.selfcheck.host_memory_cases import host_memory_cases
from gnntrain.selfcheck.sampler_cases import sampler_cases

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def kernels() -> list[str]:
    """The operators that have a kernel for GPUs."""
    return [name for name, operator in OPERATORS.items() if operator.has("cuda")]


def all_cases(device_type: str) -> list[Case]:
    """Every case for a device: what most models need first."""
    cases = [*_operator_cases(), *sampler_cases()]
    if device_type != "cpu":
        cases += host_memory_cases()
    return cases


def _operator_cases() -> Iterator[Case]:
    first = next(awkward_inputs())
    for precision, dtype in PRECISIONS.items():
        for name in kernels():
            if dtype not in OPERATORS[name].types:
                continue
            for options in OPERATORS[name].examples(first):
                run = partial(_tried, name, options, dtype)
                yield Case(name, options, precision, run)


def _tried(name: str, options: str, dtype: torch.dtype, device: torch.device) -> float:
    """Compare a kernel with its reference on all blocks."""
    operator, error = OPERATORS[name], 0.0
    for given in awkward_inputs(dtype):
        arguments = tuple(vars(operator.examples(given)[options]).values())
        try:
            error = max(
                error,
                compare(
                    lambda *given: operator(*given).cuda(),
                    lambda *given: operator(*given).reference(),
                    arguments,
                    device,
                ),
            )
        except WrongResultError as wrong:
            raise WrongResultError(f"{wrong} ({given.name})") from wrong
    return error
