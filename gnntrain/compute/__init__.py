"""Arithmetic that torch lacks: fused gathers and segment sums, as operators of torch."""

from gnntrain.compute import cpu, cuda, reference
from gnntrain.compute.ops import register

register(reference, "CompositeExplicitAutograd")
register(cpu, "CPU")
register(cuda, "CUDA")
