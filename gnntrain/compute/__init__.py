"""Operators that torch lacks: fused gathers, segment reductions and attention on blocks."""

from gnntrain.compute.ops import register

register("CompositeExplicitAutograd", "reference")
register("CPU", "cpu")
register("CUDA", "cuda")
