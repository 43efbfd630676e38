"""Operators that torch lacks: fused gathers, segment reductions and attention on blocks."""

from gnntrain.compute import cpu, cuda, reference, shapes
from gnntrain.compute.ops import functions_of, register, register_shapes

register(functions_of(reference), "CompositeExplicitAutograd")
register(functions_of(cpu), "CPU")
register(functions_of(cuda), "CUDA")
register_shapes(shapes)
