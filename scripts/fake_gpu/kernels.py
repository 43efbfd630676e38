"""torch's operators on the fake GPU: computed by their CPU kernels, in the streams' threads.

As on a GPU, an operator returns at once; its result's shape comes from the operator's meta kernel.
Tensors of two devices are refused, but for CPU tensors without a dimension.
"""

from __future__ import annotations

import hashlib
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from scripts.fake_gpu.runtime import enqueue, host_wait, on_host, wait_for_stream

# Of these torch's own work as they are: they touch no element.
_OF_METADATA = {
    "_nested_view_from_buffer",
    "_reshape_alias",
    "as_strided",
    "empty",
    "empty_strided",
    "is_set_to",
    "record_stream",
    "resize_",
    "set_",
    "unfold",
    "view",
    "view_as_complex",
    "view_as_real",
}
# torch's own take indices on the CPU, too; but each call then copies them and waits.
_KEY = "CUDA"

_libraries: list[Any] = []


def install() -> None:
    """Replace every kernel of torch's own operators for CUDA."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    _libraries.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for name in torch._C._dispatch_get_registrations_for_dispatch_key(_KEY):
            kernel = _kernel_for(name)
            if kernel is not None:
                library.impl(name.removeprefix("aten::"), kernel, _KEY, allow_override=True)
        library.impl("copy_", _copy, _KEY)


def _kernel_for(name: str) -> Callable[..., Any] | None:
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    if namespace != "aten" or base in _OF_METADATA:
        return None
    operator = getattr(getattr(torch.ops.aten, base), overload or "default")
    if base == "_local_scalar_dense":
        return _item
    if base == "native_dropout":
        return _dropout
    if not _on_cpu(name):
        return None
    return _computed(operator)


def _on_cpu(name: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU") or (
        torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeExplicitAutograd")
    )


def _computed(operator: Any) -> Callable[..., Any]:
    schema = operator._schema
    written = [value.alias_info is not None for value in schema.returns]
    in_place = all(written)  # also where nothing is returned
    is_out = any(argument.is_out for argument in schema.arguments)
    shape_is_data = bool(
        {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(operator.tags)
    )
    draws = torch.Tag.nondeterministic_seeded in operator.tags

    def kernel(*args: Any, **kwargs: Any) -> Any:
        device = _device_of(operator, args, kwargs)
        host_args, host_kwargs = _to_host(args), _to_host(kwargs)
        seeds = _seeds(kwargs.get("generator"), device) if draws else None

        def compute() -> Any:
            if seeds is not None:
                host_kwargs["generator"] = torch.Generator().manual_seed(next(seeds))
            return operator(*host_args, **host_kwargs)

        if shape_is_data and not _is_known(schema.name, args, kwargs):
            return _after_waiting(operator, compute, device)
        if in_place and not is_out:
            enqueue(compute, device)
            return _written_arguments(schema, args, kwargs)
        shapes = _shapes(operator, args, kwargs)
        if shapes is None:
            return _after_waiting(operator, compute, device)
        if is_out:
            outs = _written_arguments(schema, args, kwargs)
            for out, shape in zip(_tensors(outs), _tensors(shapes), strict=True):
                if out.shape != shape.shape:
                    out.resize_(shape.shape)
            host_kwargs.update(_to_host(kwargs))
            enqueue(compute, device)
            return outs
        made = tree_map_only(Tensor, lambda like: _empty(like, device), shapes)
        targets = [on_host(out) for out in _tensors(made)]
        if schema.name.startswith("aten::_embedding_bag"):
            targets = targets[:1]  # the others, for its gradient, differ from device to device
        enqueue(lambda: _write(targets, compute()), device)
        return made

    return kernel


def _is_known(name: str, args: Any, kwargs: Any) -> bool:
    """Whether the result's shape does not depend on data, although it may with other arguments."""
    if name == "aten::index":
        return not any(index.dtype in (torch.bool, torch.uint8) for index in _tensors(args[1]))
    return name == "aten::repeat_interleave" and kwargs.get("output_size") is not None


def _write(targets: list[Tensor], results: Any) -> None:
    for target, value in zip(targets, _tensors(results), strict=False):
        target.copy_(value)


def _after_waiting(operator: Any, compute: Callable[[], Any], device: torch.device) -> Any:
    """Compute now, since the shape of the result depends on the data."""
    host_wait(str(operator))
    wait_for_stream(device)
    return tree_map_only(Tensor, lambda value: _sent(value, device), compute())


def _sent(value: Tensor, device: torch.device) -> Tensor:
    out = _empty(value, device)
    on_host(out).copy_(value)
    return out


def _shapes(operator: Any, args: Any, kwargs: Any) -> Any:
    """The results on the device "meta"; None: the operator has no meta kernel."""
    try:
        return operator(*_to_meta(args), **_to_meta(kwargs))
    except NotImplementedError:
        return None


def _empty(like: Tensor, device: torch.device) -> Tensor:
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device)


def _device_of(operator: Any, args: Any, kwargs: Any) -> torch.device:
    """The device of the tensors.

    Raises:
        RuntimeError: They lie on several.
    """
    found: set[torch.device] = set()
    given = kwargs.get("device")
    for tensor in _tensors((args, tuple(kwargs.values()))):
        if tensor.is_cuda or tensor.dim() > 0:
            found.add(tensor.device)
    if len(found) > 1:
        names = ", ".join(sorted(map(str, found)))
        raise RuntimeError(f"{operator}: expected all tensors on one device, found {names}")
    device = found.pop() if found else torch.device(given or "cuda")
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())


def _tensors(value: Any) -> list[Tensor]:
    """The tensors in nested sequences."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def _written_arguments(schema: Any, args: Any, kwargs: Any) -> Any:
    """The arguments that the operator writes, as it returns them."""
    given = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | kwargs
    names = [
        argument.name
        for argument in schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    if not schema.returns:
        return None
    outs = tuple(given[name] for name in names)
    return outs[0] if len(schema.returns) == 1 else outs


def _to_host(value: Any) -> Any:
    if isinstance(value, Tensor):
        return on_host(value) if value.is_cuda else value
    if isinstance(value, dict):
        return {
            name: torch.device("cpu") if name == "device" and item is not None else _to_host(item)
            for name, item in value.items()
            if name != "pin_memory"
        }
    if isinstance(value, list | tuple):
        return type(value)(map(_to_host, value))
    return value


def _to_meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        if not value.is_cuda:
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, dict):
        return {
            name: torch.device("meta") if name == "device" else _to_meta(item)
            for name, item in value.items()
            if name not in ("pin_memory", "generator")
        }
    if isinstance(value, list | tuple):
        return type(value)(map(_to_meta, value))
    return value


def _seeds(given: torch.Generator | None, device: torch.device) -> Iterator[int]:
    """Seeds for generators of the CPU: one a call, and one a replay where a graph is captured.

    They are made of the state of the GPU's generator, which moves on, as with torch's kernels.
    """
    source = given or torch.cuda.default_generators[device.index]
    if torch.cuda.is_current_stream_capturing():  # its offset is known when the graph is replayed
        return (_hash("replay", number) for number in itertools.count())
    offset = source.get_offset()
    source.set_offset(offset + 4)
    return iter([_hash(source.initial_seed(), offset)])


def _hash(*values: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(values).encode()).digest()[:7], "little")


def _item(tensor: Tensor) -> Any:
    host_wait("item")
    wait_for_stream(tensor.device)
    return on_host(tensor).item()


def _dropout(tensor: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False:
        return tensor.clone(), torch.ones_like(tensor, dtype=torch.bool)
    kept = torch.rand(tensor.shape, device=tensor.device) >= p
    return tensor * kept / (1 - p), kept


def _copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """`target.copy_(source)`, where at least one is on a GPU."""
    if target.numel() == 0:
        return target
    if target.is_cuda and source.is_cuda and target.device != source.device:
        return _copy_between(target, source)
    device = target.device if target.is_cuda else source.device
    other = source if target.is_cuda else target
    to, given = (on_host(tensor) if tensor.is_cuda else tensor for tensor in (target, source))
    is_plain = target.dtype == source.dtype and target.is_contiguous() and source.is_contiguous()
    if other.is_cuda or (non_blocking and is_plain and other.is_pinned()):
        # The memory of the CPU stays until the copy is done, as torch sees to.
        enqueue(lambda: to.copy_(given), device)
        return target
    if target.is_cuda and source.dim() == 0:  # passed by value
        given = source.clone()
        enqueue(lambda: to.copy_(given), device)
        return target
    host_wait(f"copy {source.device.type} to {target.device.type}")
    wait_for_stream(device)
    to.copy_(given)
    return target


def _copy_between(target: Tensor, source: Tensor) -> Tensor:
    """As torch does: on the source's stream, and each device's stream waits for the other's."""
    streams = [torch.cuda.current_stream(tensor.device) for tensor in (target, source)]
    streams[1].wait_stream(streams[0])
    to, given = on_host(target), on_host(source)
    enqueue(lambda: to.copy_(given), source.device)
    streams[0].wait_stream(streams[1])
    return target
