"""Operators that torch lacks: fused gathers, segment reductions and attention on blocks."""

from gnntrain.compute import cpu, cuda, reference, shapes
from gnntrain.compute.ops import register, register_shapes

register(reference, "CompositeExplicitAutograd")
register(cpu, "CPU")
register(cuda, "CUDA")
register_shapes(shapes)
