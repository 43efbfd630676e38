"""The operators of the models, registered with torch's dispatcher: `torch.ops.gnntrain`.

Each has a reference in plain torch operators for any device (`reference`), but for dropout, which
torch has itself; most have kernels for a CPU (`cpu`, Numba) and for a GPU (`cuda`, Triton). The
dispatcher chooses by the tensors' device. They have no gradients: `models.aggregate` and others
wrap them with `autograd.Function`.

Blocks may be padded on a GPU: `indices` longer than `indptr[-1]`. No result depends on entries of
the padding, which are 0 in results (those of `transpose`: any valid numbers).

`Library` rather than `custom_op`, which imports torch._dynamo (2 s) and costs three times as much a
call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures

SCHEMAS = {
    # Rows `start … stop − 1`.
    "gather": "(LazyFeatures features, int start, int stop, ScalarType dtype) -> Tensor",
    # The out-edges of every source: indptr, indices (destinations), edge ids (in-edges).
    "transpose": "(Tensor indptr, Tensor indices, int num_src) -> (Tensor, Tensor, Tensor)",
    # `Sum`. root "beside": row(dst_offset + v) stands beside out[v], which is twice as wide;
    # "added": the second half of that row is added to out[v] from `first_loop` on, and the first
    # halves are summed; else "none".
    "aggregate": "(LazyFeatures features, Sum total, str root, ScalarType dtype) -> Tensor",
    # The gradient of `edge_weight` behind `aggregate`; attention's scores.
    "edge_products": "(Tensor rows, Tensor grad, Sum total) -> Tensor",
    # The largest number of each column, 0 without in-edges, and how many in-edges brought it
    # (int32; nothing if not asked for).
    "aggregate_max": (
        "(LazyFeatures features, Edges edges, ScalarType dtype, bool count) -> (Tensor, Tensor)"
    ),
    # Over the out-edges: sources that share a maximum share its gradient evenly.
    "aggregate_max_backward": (
        "(Tensor grad, Tensor rows, Tensor out, Tensor ties, Tensor indptr, Tensor indices)"
        " -> Tensor"
    ),
    # (weight ‖ root weight) · (aggregate ‖ own row) + bias, with a dropout probability followed by
    # ReLU and dropout; and, if `keep`, the inputs of the product.
    "aggregate_linear": (
        "(LazyFeatures features, Sum total, Tensor weight, Tensor bias, bool has_root, "
        "float? dropout, bool keep) -> (Tensor, Tensor)"
    ),
    # Gradients of the inputs (nothing if not asked for), of weight and bias (in `dtype`).
    "aggregate_linear_backward": (
        "(Tensor grad, Tensor weight, Tensor inputs, Tensor? out, float? dropout, "
        "ScalarType dtype, bool needs_inputs) -> (Tensor, Tensor, Tensor)"
    ),
    # Softmax by head over each destination's in-edges; with `loop_score` over its own extra loop,
    # too, and its self loops get 0. With `target` the score of an edge is
    # leaky_relu(score[u] + target[v], slope), else `score` is by edge. The second result: weights
    # of the extra loops; without these log Σ exp(score), −∞ for a destination without in-edges.
    "edge_softmax": (
        "(Tensor score, Tensor? target, Tensor? loop_score, float slope, int dst_offset, "
        "Edges edges) -> (Tensor, Tensor)"
    ),
    # Gradients by edge, of score[u] + target[v] where there is a target, and by loop.
    "edge_softmax_backward": (
        "(Tensor grad, Tensor loop_grad, Tensor alpha, Tensor loop_alpha, Tensor? score, "
        "Tensor? target, float slope, Edges edges) -> (Tensor, Tensor)"
    ),
    # att · leaky_relu(left[u] + right[v], slope) for every edge and head.
    "pair_scores": "(Tensor left, Tensor right, Tensor att, float slope, Edges edges) -> Tensor",
    "pair_scores_backward": (
        "(Tensor grad, Tensor left, Tensor right, Tensor att, float slope, Edges edges, "
        "Tensor out_indptr, Tensor out_indices, Tensor out_edge_ids) -> (Tensor, Tensor, Tensor)"
    ),
    # Set numbers to 0 with probability p, scale the others up; and the key (int64 `[]`) that says
    # which. By Numba alone: see `models.dropout`.
    "dropout": "(Tensor x, float p) -> (Tensor, Tensor)",
    "dropout_backward": "(Tensor grad, Tensor key, float p) -> Tensor",
    # One step of Adam for the rows `nodes` (int64, each once) of a matrix and its moments:
    # g = grad + l2 · w; m ← m + (1 − beta1) (g − m); v ← beta2 · v + (1 − beta2) g²;
    # w ← decay · w − step_size · m / (√v / root + eps).
    "adam_rows": (
        "(Tensor(a!) weight, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq, Tensor nodes, Tensor grad, "
        "float beta1, float beta2, float decay, float l2, float step_size, float root, float eps)"
        " -> ()"
    ),
}

FLOAT_TYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
# Which types of its first tensor an operator takes, whatever registration computes it. A softmax is
# computed in float32 or finer: `models.attention` converts.
TYPES = dict.fromkeys(SCHEMAS, FLOAT_TYPES) | {
    "transpose": frozenset({torch.int32, torch.int64}),
    "edge_softmax": frozenset({torch.float32, torch.float64}),
    "edge_softmax_backward": frozenset({torch.float32, torch.float64}),
    "adam_rows": frozenset({torch.float32, torch.float64}),
}


class Edges(NamedTuple):
    """The in-edges of each destination.

    Attributes:
        indptr, indices: See `Sum`.
        max_in_edges: The most edges of a destination, if known.
    """

    indptr: Tensor
    indices: Tensor
    max_in_edges: int | None = None

    @property
    def num_dst(self) -> int:
        return len(self.indptr) - 1


class Sum(NamedTuple):
    """A weighted sum of rows over the in-edges of each destination: arguments of `aggregate`.

    out[v] = scale[v] · Σ_e edge_weight[e] · source_scale[u] · row(u) + loop[v] · row(dst_offset +
    v), with u the source of the in-edge e; what is None counts as 1, but `loop` as 0.

    Attributes:
        indptr: int32 or int64 `[num_dst + 1]`.
        indices: The source of each edge, same dtype, `[num_edges]`; None: edge e has row e.
        edge_ids: The numbers of the edges in `edge_weight`; None: as they lie.
        edge_weight: float `[num_edges]`, or `[num_edges, H]` for H heads: head h weighs the columns
            `[h·F/H, (h + 1)·F/H)`.
        source_scale: float `[num_src]`.
        source_indptr: Divide the row of source u by `source_indptr[u + 1] - source_indptr[u]`.
        scale: float `[num_dst]`.
        loop: float; `loop[i]` belongs to destination `first_loop + i`, others have none.
        first_loop: See `loop`.
        dst_offset: Source number of destination 0; negative where it is none.
        max_in_edges: The most edges of a destination, if known.
        is_mean: Divide the sum by the number of in-edges.
        skip_own: Leave out edges from a node to itself.
    """

    indptr: Tensor
    indices: Tensor | None
    edge_ids: Tensor | None = None
    edge_weight: Tensor | None = None
    source_scale: Tensor | None = None
    source_indptr: Tensor | None = None
    scale: Tensor | None = None
    loop: Tensor | None = None
    first_loop: int = 0
    dst_offset: int = 0
    max_in_edges: int | None = None
    is_mean: bool = False
    skip_own: bool = False

    @property
    def num_dst(self) -> int:
        return len(self.indptr) - 1

    @property
    def heads(self) -> int:
        weight = self.edge_weight
        return weight.shape[1] if weight is not None and weight.dim() == 2 else 1


# Arguments that torch's dispatcher takes field by field.
_GROUPS: dict[str, tuple[Callable[..., Any], str]] = {
    "LazyFeatures features": (
        LazyFeatures,
        "Tensor rows, Tensor? nodes, Tensor? slots, Tensor? parts, int part_rows, Tensor[] held",
    ),
    "Edges edges": (Edges, "Tensor indptr, Tensor indices, int? max_in_edges"),
    "Sum total": (
        Sum,
        "Tensor indptr, Tensor? indices, Tensor? edge_ids, Tensor? edge_weight, "
        "Tensor? source_scale, Tensor? source_indptr, Tensor? scale, Tensor? loop, "
        "int first_loop, int dst_offset, int? max_in_edges, bool is_mean, bool skip_own",
    ),
}

Functions = Mapping[str, Callable[..., Any]]
"""Operators' functions, by name."""

LIBRARY: Any = torch.library.Library("gnntrain", "DEF")  # type: ignore[no-untyped-call]
_DRAWS = {"aggregate_linear", "dropout"}  # random numbers: compiled code must not repeat them
for _name, _schema in SCHEMAS.items():
    for _group, (_, _fields) in _GROUPS.items():
        _schema = _schema.replace(_group, _fields)
    _tags = (torch.Tag.nondeterministic_seeded,) if _name in _DRAWS else ()
    LIBRARY.define(_name + _schema, tags=_tags)


_registered: dict[str, tuple[Any, Functions]] = {}  # by dispatch key, with torch's Library


def functions_of(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """The module's functions that are operators, by name."""
    return {name: getattr(module, name) for name in SCHEMAS if hasattr(module, name)}


def register(functions: Functions, key: str) -> Functions:
    """Register functions as the operators of their names, for a dispatch key.

    They take the place of all that are registered for the key; torch before 2.8 has no other way.

    Returns:
        What was registered.
    """
    replaced, before = _registered.pop(key, (None, {}))
    if replaced is not None:
        replaced._destroy()
    library: Any = torch.library.Library("gnntrain", "IMPL")  # type: ignore[no-untyped-call]
    for name, function in functions.items():
        library.impl(name, called_flat(name, function), key)
    _registered[key] = library, functions
    return before


def is_registered(name: str, key: str) -> bool:
    """Whether an operator has a function of its own for a dispatch key."""
    return name in _registered[key][1]


def register_shapes(module: ModuleType) -> None:
    """Register the module's functions as fake kernels, for `torch.compile`."""
    for name in SCHEMAS:
        function = called_flat(name, getattr(module, name))
        torch.library.register_fake(f"gnntrain::{name}", function, lib=LIBRARY)


def called_flat(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """An operator's function in the dispatcher's form: each field of a group is an argument.

    The returned function raises `TypeError` if the first tensor's type is not in `TYPES`.
    """
    parts, stop = [], 0
    for parameter in SCHEMAS[name].partition(") -> ")[0].removeprefix("(").split(", "):
        group, fields = _GROUPS.get(parameter, (None, parameter))
        start, stop = stop, stop + len(fields.split(", "))
        parts.append((group, start, stop))
    types = TYPES[name]

    def call(*given: Any) -> Any:
        if given[0].dtype not in types:
            raise TypeError(f"gnntrain::{name} does not take {given[0].dtype}")
        return function(
            *[
                given[start] if group is None else group(*given[start:stop])
                for group, start, stop in parts
            ]
        )

    return call


def _operator(name: str) -> Any:
    return getattr(torch.ops.gnntrain, name).default


gather = _operator("gather")
transpose = _operator("transpose")
aggregate = _operator("aggregate")
edge_products = _operator("edge_products")
aggregate_max = _operator("aggregate_max")
aggregate_max_backward = _operator("aggregate_max_backward")
aggregate_linear = _operator("aggregate_linear")
aggregate_linear_backward = _operator("aggregate_linear_backward")
edge_softmax = _operator("edge_softmax")
edge_softmax_backward = _operator("edge_softmax_backward")
pair_scores = _operator("pair_scores")
pair_scores_backward = _operator("pair_scores_backward")
dropout = _operator("dropout")
dropout_backward = _operator("dropout_backward")
adam_rows = _operator("adam_rows")
