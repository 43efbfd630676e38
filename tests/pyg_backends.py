"""PyG's sampling operators: those that are installed, and stand-ins where they are not.

Neither pyg-lib nor torch-sparse comes with plain pip.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch_geometric.typing
from torch import Tensor

INSTALLED = pytest.param("installed", marks=pytest.mark.pyg_lib)
BACKENDS = ("torch_sparse", "pyg", INSTALLED)


def use_backend(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let PyG sample by the stand-in of one library, or by what is "installed", or by "none"."""
    if name == "installed":
        return
    monkeypatch.setattr(torch_geometric.typing, "WITH_PYG_LIB", name == "pyg")
    monkeypatch.setattr(torch_geometric.typing, "WITH_TORCH_SPARSE", name == "torch_sparse")
    if name != "none":
        fake = {"torch_sparse": fake_torch_sparse, "pyg": fake_pyg_lib}[name]
        operators = SimpleNamespace(neighbor_sample=fake)
        monkeypatch.setattr(torch.ops, name, operators, raising=False)


def fake_torch_sparse(
    colptr: Tensor,
    row: Tensor,
    seed: Tensor,
    fan_outs: list[int],
    replace: bool,
    directed: bool,
) -> tuple[Tensor, ...]:
    """(node, row, col, edge) as torch-sparse returns them; draws by torch's generator, like it."""
    assert directed
    assert {colptr.dtype, row.dtype, seed.dtype} == {torch.int64}
    return _sample(colptr, row, seed, fan_outs, replace)


def fake_pyg_lib(
    colptr: Tensor, row: Tensor, seed: Tensor, fan_outs: list[int], *options: Any
) -> tuple[Any, ...]:
    """(row, col, node, edge, nodes by hop, edges by hop) as pyg-lib returns them."""
    csc, replace, directed, disjoint, strategy, return_edge_id = options[-6:]
    assert (csc, directed, disjoint, strategy, return_edge_id) == (True, True, False, "uniform", 1)
    assert colptr.dtype == row.dtype == seed.dtype
    node, source, destination, edge = _sample(colptr, row, seed, fan_outs, replace)
    return source, destination, node, edge, [], []


def _sample(
    colptr: Tensor, row: Tensor, seed: Tensor, fan_outs: list[int], replace: bool
) -> tuple[Tensor, ...]:
    starts, sources = colptr.tolist(), row.tolist()
    numbers = {node: number for number, node in enumerate(seed.tolist())}
    edges: list[tuple[int, int, int]] = []
    num_drawn = 0
    for fan_out in fan_outs:
        new = list(numbers)[num_drawn:]
        for destination, node in enumerate(new, start=num_drawn):
            for edge in _draw(starts[node], starts[node + 1], fan_out, replace):
                source = numbers.setdefault(sources[edge], len(numbers))
                edges.append((source, destination, edge))
        num_drawn += len(new)
    columns = torch.tensor(edges, dtype=colptr.dtype).view(-1, 3).T.contiguous()
    return torch.tensor(list(numbers), dtype=colptr.dtype), *columns


def _draw(first: int, last: int, fan_out: int, replace: bool) -> list[int]:
    degree = last - first
    if fan_out < 0 or (degree <= fan_out and not replace):
        return list(range(first, last))
    if replace:
        drawn = torch.randint(max(degree, 1), (fan_out if degree else 0,))
    else:
        drawn = torch.randperm(degree)[:fan_out]
    return [first + int(position) for position in drawn]
