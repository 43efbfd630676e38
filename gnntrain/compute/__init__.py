"""Operators that torch lacks: fused gathers, segment reductions and attention on blocks."""

from gnntrain.compute import attention, linear  # noqa: F401  # define them, by what they import
