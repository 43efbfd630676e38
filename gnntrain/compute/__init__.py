"""Arithmetic on the CPU that torch lacks: fused gathers, segment sums, and who computes them."""
