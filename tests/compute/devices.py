"""Where the tests of Triton kernels run: on a GPU, and without one in Triton's interpreter.

The interpreter is chosen by `tests/conftest.py`.
"""

from __future__ import annotations

import os

import pytest

INTERPRETS = os.environ.get("TRITON_INTERPRET") == "1"

NEEDS_GPU = pytest.mark.gpu
NEEDS_INTERPRETER = pytest.mark.skipif(
    not INTERPRETS, reason="kernels are compiled: set TRITON_INTERPRET=1 for the interpreter"
)

on_each_device = pytest.mark.parametrize(
    "device",
    [pytest.param("cpu", marks=NEEDS_INTERPRETER), pytest.param("cuda:0", marks=NEEDS_GPU)],
)
"""The test runs in the interpreter, and again on a GPU under the mark `gpu`."""
