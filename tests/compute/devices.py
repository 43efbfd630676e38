"""Where the tests of Triton kernels run: on a GPU, and without one in Triton's interpreter.

The interpreter is chosen by `tests/conftest.py`.
"""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import HealthCheck, settings

INTERPRETS = os.environ.get("TRITON_INTERPRET") == "1"

NEEDS_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
    pytest.mark.skipif(INTERPRETS, reason="TRITON_INTERPRET=1: kernels run in the interpreter"),
]
NEEDS_INTERPRETER = pytest.mark.skipif(
    not INTERPRETS, reason="kernels are compiled: set TRITON_INTERPRET=1 for the interpreter"
)

on_each_device = pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=NEEDS_INTERPRETER), pytest.param("cuda", marks=NEEDS_GPU)]
)
"""The test runs in the interpreter, and again on a GPU under the mark `gpu`."""


def examples(number: int) -> settings:
    """So many examples; a quarter where each of them may mean kernels to compile."""
    return settings(
        max_examples=number if INTERPRETS else max(5, number // 4),
        deadline=None,
        # All examples of a test run on the registration that its fixture chose.
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
