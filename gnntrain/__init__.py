"""Train graph neural networks on graphs of any size, on any number of GPUs, with one command."""

import os

__version__ = "0.1.0"

# A mini-batch's activations are new memory in every step. In pages of 2 MiB instead of 4 KiB they
# are had several hundred times more cheaply. Torch reads this once, at its first allocation.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
# Torch's threads that have nothing to do would spin for a while on the cores that our kernels and
# the loader's threads need next. OpenMP reads this once, when torch loads it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
