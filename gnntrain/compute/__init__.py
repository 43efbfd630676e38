"""Operators that torch lacks: fused gathers, segment reductions and attention on blocks."""

from gnntrain.compute import ops  # noqa: F401  # defines them
