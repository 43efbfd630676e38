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
        fakes = {
            "torch_sparse": (fake_torch_sparse, fake_hetero_torch_sparse),
            "pyg": (fake_pyg_lib, fake_hetero_pyg_lib),
        }
        one_type, typed = fakes[name]
        operators = SimpleNamespace(neighbor_sample=one_type, hetero_neighbor_sample=typed)
        monkeypatch.setattr(torch.ops, name, operators, raising=False)


Typed = dict[str, Tensor]
"""By node type, or by edge type as `author__writes__paper`."""
Types = list[tuple[str, str, str]]
_NODE, _EDGE, _NAME = "node", ("node", "to", "node"), "node__to__node"


def fake_torch_sparse(
    colptr: Tensor, row: Tensor, seed: Tensor, fan_outs: list[int], replace: bool, directed: bool
) -> tuple[Tensor, ...]:
    """(node, row, col, edge) as torch-sparse returns them; draws by torch's generator, like it."""
    assert directed
    assert {colptr.dtype, row.dtype, seed.dtype} == {torch.int64}
    return _of_one_type(colptr, row, seed, fan_outs, replace)


def fake_pyg_lib(
    colptr: Tensor, row: Tensor, seed: Tensor, fan_outs: list[int], *options: Any
) -> tuple[Any, ...]:
    """(row, col, node, edge, nodes by hop, edges by hop) as pyg-lib returns them."""
    assert colptr.dtype == row.dtype == seed.dtype
    node, *edges = _of_one_type(colptr, row, seed, fan_outs, _replace_of(options))
    return *edges[:2], node, edges[2], [], []


def fake_hetero_torch_sparse(
    node_types: list[str],
    edge_types: Types,
    colptr: Typed,
    row: Typed,
    seed: Typed,
    fan_outs: dict[str, list[int]],
    num_hops: int,
    replace: bool,
    directed: bool,
) -> tuple[Typed, ...]:
    """(node, row, col, edge) by type as torch-sparse returns them."""
    assert directed
    assert all(len(of_type) == num_hops for of_type in fan_outs.values())
    numbers = {*colptr.values(), *row.values(), *seed.values()}
    assert {tensor.dtype for tensor in numbers} == {torch.int64}
    return _sample(node_types, edge_types, colptr, row, seed, fan_outs, replace)


def fake_hetero_pyg_lib(
    node_types: list[str],
    edge_types: Types,
    colptr: Typed,
    row: Typed,
    seed: Typed,
    fan_outs: dict[str, list[int]],
    *options: Any,
) -> tuple[Any, ...]:
    """(row, col, node, edge, nodes by hop, edges by hop) by type as pyg-lib returns them."""
    assert torch.get_num_threads() == 1, "pyg-lib's threads draw from one generator"
    assert len({tensor.dtype for tensor in (*colptr.values(), *row.values(), *seed.values())}) == 1
    replace = _replace_of(options)
    node, *edges = _sample(node_types, edge_types, colptr, row, seed, fan_outs, replace)
    return *edges[:2], node, edges[2], {}, {}


def _replace_of(options: tuple[Any, ...]) -> bool:
    csc, replace, directed, disjoint, strategy, return_edge_id = options[-6:]
    assert (csc, directed, disjoint, strategy, return_edge_id) == (True, True, False, "uniform", 1)
    return bool(replace)


def _of_one_type(
    colptr: Tensor, row: Tensor, seed: Tensor, fan_outs: list[int], replace: bool
) -> tuple[Tensor, ...]:
    edges, hops = ({_NAME: colptr}, {_NAME: row}), {_NAME: fan_outs}
    nodes, *columns = _sample([_NODE], [_EDGE], *edges, {_NODE: seed}, hops, replace)
    return nodes[_NODE], *(by_type[_NAME] for by_type in columns)


def _sample(
    node_types: list[str],
    edge_types: Types,
    colptr: Typed,
    row: Typed,
    seed: Typed,
    fan_outs: dict[str, list[int]],
    replace: bool,
) -> tuple[Typed, ...]:
    numbers: dict[str, dict[int, int]] = {name: {} for name in node_types}
    for name, given in seed.items():
        numbers[name] = {node: number for number, node in enumerate(given.tolist())}
    edges: dict[str, list[tuple[int, int, int]]] = {name: [] for name in map("__".join, edge_types)}
    drawn = dict.fromkeys(node_types, 0)
    for hop in range(max(map(len, fan_outs.values()))):
        new = {name: list(found)[drawn[name] :] for name, found in numbers.items()}
        for edge_type in edge_types:
            relation, (source_type, _, destination_type) = "__".join(edge_type), edge_type
            starts, sources = colptr[relation].tolist(), row[relation].tolist()
            known = numbers[source_type]
            for destination, node in enumerate(new[destination_type], drawn[destination_type]):
                fan_out = fan_outs[relation][hop]
                for edge in _draw(starts[node], starts[node + 1], fan_out, replace):
                    source = known.setdefault(sources[edge], len(known))
                    edges[relation].append((source, destination, edge))
        drawn = {name: count + len(new[name]) for name, count in drawn.items()}
    dtype = next(iter(colptr.values())).dtype
    columns = {
        name: torch.tensor(of_type, dtype=dtype).view(-1, 3).T.contiguous()
        for name, of_type in edges.items()
    }
    nodes = {name: torch.tensor(list(found), dtype=dtype) for name, found in numbers.items()}
    return nodes, *({name: of_type[i] for name, of_type in columns.items()} for i in range(3))


def _draw(first: int, last: int, fan_out: int, replace: bool) -> list[int]:
    degree = last - first
    if fan_out < 0 or (degree <= fan_out and not replace):
        return list(range(first, last))
    if replace:
        drawn = torch.randint(max(degree, 1), (fan_out if degree else 0,))
    else:
        drawn = torch.randperm(degree)[:fan_out]
    return [first + int(position) for position in drawn]
