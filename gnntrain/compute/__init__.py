"""Operators that torch lacks: fused gathers, segment reductions and attention on blocks."""

from importlib.util import find_spec

from gnntrain.compute.selection import CPU_KERNELS, KernelChoice, select

select(CPU_KERNELS, "cpu")
select(KernelChoice("triton" if find_spec("triton") else "torch"), "cuda")
