"""Train graph neural networks on graphs of any size, on any number of GPUs, with one command."""

import os

__version__ = "0.1.0"

# A mini-batch's activations are newly allocated in every step; pages of 2 MiB instead of 4 KiB need
# 512 times fewer page faults. torch reads this once, at its first allocation.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
# Idle OpenMP threads would spin on cores that the Numba kernels and the loader's threads need.
# OpenMP reads this once, when torch loads it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
