"""The operators as torch's dispatcher calls them: `ops.gather` is that of the class `Gather`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import gnntrain.compute.attention
import gnntrain.compute.linear  # noqa: F401  # these define them, as do the modules they import
from gnntrain.compute.operator import OPERATORS, Edges, Sum

__all__ = ["OPERATORS", "Edges", "Sum"]

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


globals().update({name: getattr(torch.ops.gnntrain, name).default for name in OPERATORS})
