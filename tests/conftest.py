"""Where Triton's kernels run is settled before anything else is imported.

Without a GPU they run in Triton's interpreter, which is chosen, for the whole process, when Triton
is imported; and PyG imports it.
"""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
