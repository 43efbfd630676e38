"""What the process that tries kernels says of an exception."""

from __future__ import annotations

import subprocess

import pytest
import torch

from gnntrain.loading.pinned import PinningError
from gnntrain.selfcheck.case import Case, WrongResultError
from gnntrain.selfcheck.child import tried


@pytest.mark.parametrize(
    ("error", "is_lasting"),
    [
        (WrongResultError("error 0.1"), True),
        (RuntimeError("an illegal memory access"), True),
        (torch.OutOfMemoryError("2 GiB"), False),
        (OSError(28, "no space left"), False),
        (subprocess.CalledProcessError(1, "gcc"), False),
        (PinningError("ulimit -l", "raise it"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_the_machines_fault_is_tried_again(error: Exception, is_lasting: bool) -> None:
    def fail(_: torch.device) -> float:
        raise error

    result = tried(Case("gather", "x", "fp32", fail), torch.device("cpu"))
    assert result.fault
    assert result.is_lasting == is_lasting
