"""`trainer.compile`: the model through `torch.compile`."""

from __future__ import annotations

import os
import shlex
import shutil
import sys

import torch
from torch import nn

from gnntrain.errors import UserError
from gnntrain.models.embedding import embedding_tables

_HINT = "Set trainer.compile=false; the aggregation has kernels of its own either way."


def compiled(module: nn.Module, device: torch.device) -> nn.Module:
    """The module, compiled when it is first called, for batches of any size.

    The operators of `gnntrain.compute` are called unchanged; the code around them is compiled.

    Raises:
        UserError: torch cannot compile with this Python, or finds no C++ compiler for the CPU.
    """
    default = "clang++" if sys.platform == "darwin" else "g++"
    compiler = shlex.split(os.environ.get("CXX") or default)[0]
    if device.type == "cpu" and shutil.which(compiler) is None:
        raise UserError(
            f"trainer.compile=true needs a C++ compiler, and there is no {compiler} here",
            f"Install one, or name yours in the environment variable CXX. {_HINT}",
        )
    for _, table in embedding_tables(module):  # a leaf of autograd cannot be made in compiled code
        table.forward = torch.compiler.disable(table.forward)  # type: ignore[method-assign,no-untyped-call]
    try:
        made: nn.Module = torch.compile(module, dynamic=True)  # type: ignore[assignment]
    except RuntimeError as error:
        raise UserError(f"trainer.compile=true: {error}", _HINT) from error
    return made
