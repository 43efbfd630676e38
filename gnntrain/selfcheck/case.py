"""A case of the self-check: one kernel with one set of arguments; and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


class WrongResultError(Exception):
    """A kernel's result is not that of its reference."""


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel to try.

    Attributes:
        kernel: The operator's name, or one of `selection`'s further names.
        options: What it is tried with.
        precision: fp32, bf16 or fp16; None: the case has no floating-point numbers.
        run: Try it on a device; the result is the largest error against float64, relative to the
            largest number (at least 1), and 0 where there are no floating-point numbers.
    """

    kernel: str
    options: str
    precision: str | None
    run: Callable[[torch.device], float]

    @property
    def name(self) -> str:
        """Distinct among all cases."""
        precision = "" if self.precision is None else f", {self.precision}"
        return f"{self.kernel}: {self.options}{precision}"


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a case; plain data, which the cache keeps.

    Attributes:
        case: Its name.
        kernel, precision: See `Case`.
        fault: What is wrong; None: nothing.
        error: Of a case without a fault, see `Case.run`.
        is_lasting: Whether another try would end alike: not so, for example, without memory, or
            after a hang, which may have been a machine with much else to do.
    """

    case: str
    kernel: str
    precision: str | None
    fault: str | None = None
    error: float = 0.0
    is_lasting: bool = True

    @classmethod
    def of(
        cls,
        case: Case,
        fault: str | None = None,
        error: float = 0.0,
        *,
        is_lasting: bool = True,
    ) -> Result:
        return cls(case.name, case.kernel, case.precision, fault, error, is_lasting)

    @property
    def options(self) -> str:
        """The case's name without the kernel's."""
        return self.case.partition(": ")[2]
