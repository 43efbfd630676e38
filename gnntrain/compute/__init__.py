"""Operators that torch lacks: fused gathers, segment reductions and attention on blocks."""

from gnntrain.compute.selection import CPU_KERNELS, KernelChoice, select

select(CPU_KERNELS, "cpu")
select(KernelChoice("triton"), "cuda")
