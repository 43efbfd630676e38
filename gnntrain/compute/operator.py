"""An operator of the models, declared once: `torch.ops.gnntrain.NAME` is the class `Name`.

`Library` rather than `custom_op`, which imports torch._dynamo (2 s) and costs three times as much a
call. Operators have no gradients: `models.aggregate` and others wrap them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Self, dataclass_transform
from typing import get_type_hints as hints

import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.selection import selected

if TYPE_CHECKING:
    from gnntrain.compute.examples import Inputs

FLOAT_TYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
OPERATORS: dict[str, type[Operator]] = {}
"""By name, in the order of their definition."""

Changed = Annotated[Tensor, "changed in place"]


class Edges(NamedTuple):
    """The in-edges of each destination, as a `Block` and its `transposed` give them.

    Attributes:
        indptr: int32 or int64 `[num_dst + 1]`.
        indices: The source of each edge, same dtype, `[num_edges]`.
        edge_ids: The number of each edge in tensors by edge; None: as they lie.
        dst_offset: Source number of destination 0.
        max_in_edges: The most edges of a destination, if known.
    """

    indptr: Tensor
    indices: Tensor
    edge_ids: Tensor | None = None
    dst_offset: int = 0
    max_in_edges: int | None = None

    @property
    def num_dst(self) -> int:
        return len(self.indptr) - 1

    def shares(self, dtype: torch.dtype) -> Tensor:
        """1 / the number of each destination's edges, `[num_dst]`: the scale of a mean."""
        return 1 / self.indptr.diff().clamp(min=1).to(dtype)


class Sum(NamedTuple):
    """A weighted sum of rows over the in-edges of each destination: arguments of `aggregate`.

    out[v] = scale[v] · Σ_e edge_weight[e] · source_scale[u] · row(u), with u the source of the
    in-edge e; a factor of None is 1.

    Attributes:
        edge_weight: float `[num_edges]`, or `[num_edges, H]` for H heads: head h weighs the columns
            `[h·F/H, (h + 1)·F/H)`.
        source_scale: float `[num_src]`.
        scale: float `[num_dst]`.
    """

    edge_weight: Tensor | None = None
    source_scale: Tensor | None = None
    scale: Tensor | None = None

    def transposed(self) -> Sum:
        """The sum of the gradients of the sources, over their out-edges."""
        return self._replace(source_scale=self.scale, scale=self.source_scale)

    @property
    def heads(self) -> int:
        weight = self.edge_weight
        return weight.shape[1] if weight is not None and weight.dim() == 2 else 1


_SCHEMA_TYPES: dict[Any, str] = {
    **{Tensor: "Tensor", Tensor | None: "Tensor?", tuple[Tensor, ...]: "Tensor[]"},
    Changed: "Tensor({}!)",
    **{int: "int", int | None: "int?", float: "float", float | None: "float?"},
    **{bool: "bool", str: "str", torch.dtype: "ScalarType", type(None): "()"},
}
_LIBRARY: Any = torch.library.Library("gnntrain", "DEF")  # type: ignore[no-untyped-call]


@dataclass_transform()
class Operator:
    """Base of the operators: the fields of a class are its arguments, in the schema's order.

    torch's dispatcher takes `LazyFeatures`, `Edges` and a `Sum` field by field. It chooses one of
    the methods by the tensors' device, see `selection`; the reference computes where there is no
    kernel. Blocks may be padded: `indices` longer than `indptr[-1]`. No result depends on
    entries of the padding, which are 0 in results (those of `transpose`: any valid numbers).

    Attributes:
        types: Of the first tensor, in which its examples are tried.
        is_random: Compiled code must not repeat random numbers.
    """

    name: ClassVar[str]
    types: ClassVar[Collection[torch.dtype]] = FLOAT_TYPES
    is_random: ClassVar[bool] = False
    _groups: ClassVar[list[tuple[Any, int, int]]]

    def __init_subclass__(cls) -> None:
        dataclass(eq=False, repr=False)(cls)
        cls.name = name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        fields: list[str] = []
        cls._groups = []
        own = hints(cls, include_extras=True)
        for field in cls.__annotations__:
            kind, start = own[field], len(fields)
            group = kind if kind in (LazyFeatures, Edges, Sum) else None
            parts = {f"{field}_{f}": t for f, t in hints(group).items()} if group else {field: kind}
            fields += [f"{_SCHEMA_TYPES[t].format(f)} {f}" for f, t in parts.items()]
            cls._groups.append((group, start, len(fields)))
        result = hints(cls.fake)["return"]
        many = getattr(result, "__args__", None)
        results = f"({', '.join(['Tensor'] * len(many))})" if many else _SCHEMA_TYPES[result]
        schema = f"{name}({', '.join(fields)}) -> {results}"
        tags = (torch.Tag.nondeterministic_seeded,) if cls.is_random else ()
        _LIBRARY.define(schema, tags=tags)
        fake = called_flat(cls, cls.fake)
        torch.library.register_fake(f"gnntrain::{name}", fake, lib=_LIBRARY)
        _LIBRARY.impl(name, called_flat(cls, cls.reference), "CompositeExplicitAutograd")
        _LIBRARY.impl(name, called_flat(cls, selected_on("cpu")), "CPU")
        _LIBRARY.impl(name, called_flat(cls, selected_on("cuda")), "CUDA")
        OPERATORS[name] = cls

    def run(self) -> Any:
        """The results, by torch's dispatcher."""
        arguments: list[Any] = []
        for value in vars(self).values():
            if isinstance(value, LazyFeatures):
                arguments += value.arguments()
            elif isinstance(value, tuple):  # `Edges` or a `Sum`
                arguments += value
            else:
                arguments.append(value)
        return getattr(torch.ops.gnntrain, self.name).default(*arguments)

    def fake(self) -> Any:
        """Empty results: their shapes and types, for `torch.compile`."""
        raise NotImplementedError

    def reference(self) -> Any:
        """The results by plain torch operators, for any device; kernels are tested against it."""
        raise NotImplementedError

    def cpu(self) -> Any:
        """The results by Numba's kernels."""
        return self.reference()

    def cuda(self) -> Any:
        """The results by Triton's kernels, without a wait for the GPU."""
        return self.reference()

    @staticmethod
    def examples(given: Inputs) -> dict[str, Operator]:  # noqa: ARG004
        """Calls as models make them, by name; tests and the self-check try the kernels on them."""
        return {}

    def map(self, function: Callable[[Any], Any]) -> Self:
        """The same call, after the function for each tensor and type among its arguments."""

        def mapped(value: Any) -> Any:
            if isinstance(value, LazyFeatures):
                return value.map(function)
            if isinstance(value, Edges | Sum):
                return type(value)._make(map(mapped, value))
            return function(value) if isinstance(value, Tensor | torch.dtype) else value

        return type(self)(*map(mapped, vars(self).values()))


def selected_on(device_type: str) -> Callable[[Operator], Any]:
    """Computes by the methods that are selected on devices of a type."""
    return lambda call: getattr(call, selected(device_type).method(call.name))()


def called_flat(operator: type[Operator], method: Callable[[Any], Any]) -> Callable[..., Any]:
    """A method in the dispatcher's form."""
    groups = operator._groups

    def call(*given: Any) -> Any:
        fields = [given[a] if group is None else group(*given[a:b]) for group, a, b in groups]
        return method(operator(*fields))

    return call
