"""What is settled for all tests before anything else is imported.

Without a GPU, Triton's kernels run in its interpreter, which is chosen, for the whole process, when
Triton is imported; and PyG imports it.

A shell has what it runs in the background ignore Ctrl-C, and so would the processes that tests
start in order to interrupt them.
"""

from __future__ import annotations

import os
import signal

import torch

signal.signal(signal.SIGINT, signal.default_int_handler)

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
