"""A tensor that says it is on the simulated device, and the operators on it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from tests.simulated_device import module, pinning, streams
from tests.simulated_device.streams import Memory, current_stream
from tests.simulated_device.traffic import note_copy, note_wait

_CPU = torch.device("cpu")
_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)
_aten = torch.ops.aten

# torch's CUDA kernels of these ask the device for a size or a number.
_WAITING = {
    "aten::_local_scalar_dense",
    "aten::_unique",
    "aten::_unique2",
    "aten::bincount",
    "aten::equal",
    "aten::histc",
    "aten::is_nonzero",
    "aten::masked_select",
    "aten::multinomial",
    "aten::nonzero",
    "aten::unique_consecutive",
    "aten::unique_dim",
}
_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
# Beside pointwise operators these take a number in a tensor without dimensions on the CPU.
_TAKES_NUMBERS = {"aten::index_put", "aten::index_put_", "aten::fill_", "aten::fill"}


class SimulatedTensor(Tensor):
    """A tensor on the simulated device.

    Attributes:
        host: Its numbers, on the CPU.
        memory: The device memory that they stand for.
        number: That of its device.
    """

    host: Tensor
    memory: Memory
    number: int

    @staticmethod
    def __new__(cls, host: Tensor, index: int, memory: Memory) -> SimulatedTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            layout=host.layout,
            device=torch.device("sim", streams.in_torch(index)),
        )
        made.host, made.memory, made.number = host, memory, index
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch has no types here
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        return run(func, *args, **(kwargs or {}))

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("sim", self.number)

    def get_device(self) -> int:
        return self.number

    def to(self, *args: Any, copy: bool = False, **kwargs: Any) -> Any:
        device: Any
        device, dtype, non_blocking, layout = torch._C._nn._parse_to(*args, **kwargs)
        if device is not None and device.type == "sim" and streams.index_of(device) == self.number:
            device = None
        return super().to(device, dtype, non_blocking, copy=copy, memory_format=layout)

    def record_stream(self, stream: Any) -> None:
        """The stream uses the memory, which must not be freed before."""
        self.memory.recorded.add(stream.stream_id)

    def tolist(self) -> Any:
        """As torch: the host waits."""
        return self.cpu().tolist()

    def new_tensor(  # type: ignore[override]
        self, data: Any, *, dtype: Any = None, device: Any = None
    ) -> Any:
        """As torch: made on the host and copied."""
        return torch.tensor(data, dtype=dtype or self.dtype, device=device or self.device)

    def numpy(self, *, force: bool = False) -> Any:
        """As torch: refused."""
        if force:
            return self.detach().cpu().numpy()
        raise TypeError("can't convert sim device type tensor to numpy. Use Tensor.cpu() first.")

    def __reduce_ex__(self, protocol: Any) -> Any:
        host: Any = self.detach().cpu()  # as `map_location="cpu"` reads it
        return host.__reduce_ex__(protocol)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"{self.host!r} on {self.device}"


def run(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute an operator on tensors of the device, or one that makes such a tensor."""
    if func.namespace == "gnntrain":  # its references are made of operators that come here
        return func.redispatch(_KEY, *args, **kwargs)
    if func is _aten._to_copy.default:
        return _moved(*args, **kwargs)
    if func is _aten.copy_.default:
        return _copied(*args, **kwargs)
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    index = _device_of(func, args, given, kwargs)
    if why := _why_it_waits(func, args, kwargs):
        _wait(index, why)
    out = _computed(func, tree_map(_host_of, args), _on_host(kwargs))
    return _kept(func, given, out, index)


def _moved(source: Tensor, *, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    """`_to_copy`: to another type on the device, to the host, or to a further device."""
    kwargs.pop("pin_memory", None)
    kwargs.pop("layout", None)
    to = source.device if device is None else torch.device(device)
    if to.type == "cpu":
        assert isinstance(source, SimulatedTensor)
        out = torch.empty_like(source.host, **kwargs)
        if non_blocking:  # torch pins it
            out = pinning.pinned_like(out)
        return _copied(out, source, non_blocking)
    out = _aten.empty_like.default(_host_of(source), **kwargs)
    index = streams.index_of(to)
    if isinstance(source, SimulatedTensor) and source.number == index:
        made = new_tensor(out, index)
        made.host.copy_(source.host)
        return made
    return _copied(new_tensor(out, index), source, non_blocking)


def _copied(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """`copy_` between any two devices."""
    if source.numel() == 0:
        return target
    ends = [end for end in (target, source) if isinstance(end, SimulatedTensor)]
    if len(ends) == 2:
        if target.device != source.device:
            note_copy("to peer", source.nbytes, is_blocking=False)
    elif isinstance(target, SimulatedTensor):
        is_blocking = not (non_blocking and source.is_pinned())
        note_copy("to device", target.nbytes, is_blocking=is_blocking)
        if is_blocking:
            streams.finish(current_stream(target.device).record_event().seen)
    else:
        return _to_host(target, ends[0], non_blocking)
    _host_of(target).copy_(_host_of(source))
    return target


def _to_host(target: Tensor, source: SimulatedTensor, non_blocking: bool) -> Tensor:
    is_blocking = not (non_blocking and target.is_pinned())
    note_copy("to host", source.nbytes, is_blocking=is_blocking)
    stream = current_stream(source.device)
    if is_blocking:
        streams.finish(stream.record_event().seen)
        return target.copy_(source.host)
    numbers = source.host.clone()
    # Whoever reads before the copy has ended reads garbage.
    target.view(torch.uint8).fill_(0xA5) if target.dim() else target.fill_(-91)

    def arrive() -> None:
        target.copy_(numbers)

    streams.when_finished(stream, arrive)
    return target


def _device_of(func: Any, args: Any, given: list[Tensor], kwargs: Any) -> int:
    """The number of the device that all tensors are on.

    Raises:
        RuntimeError: They are on several; but torch takes numbers on the CPU, and indices.
    """
    devices = {tensor.number for tensor in given if isinstance(tensor, SimulatedTensor)}
    host = [tensor for tensor in given if not isinstance(tensor, SimulatedTensor)]
    name = func._schema.name
    if not devices:
        return streams.index_of(kwargs.get("device"))
    is_mixed = len(devices) > 1 or any(
        tensor.dim() > 0 or not (torch.Tag.pointwise in func.tags or name in _TAKES_NUMBERS)
        for tensor in host
    )
    if is_mixed and name in _INDEXING and isinstance(args[0], SimulatedTensor):
        is_mixed = len(devices) > 1 or any(not _is_index(args[1], t) for t in host if t.dim() > 0)
    if is_mixed:
        on = sorted({str(tensor.device) for tensor in given})
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but {name} got {' and '.join(on)}."
        )
    return next(iter(devices))


def _is_index(indices: Any, tensor: Tensor) -> bool:
    return any(index is tensor for index in indices)


def _why_it_waits(func: Any, args: Any, kwargs: Any) -> str | None:
    name = func._schema.name
    if name in _WAITING:
        return str(name)
    if name == "aten::repeat_interleave" and kwargs.get("output_size") is None:
        return f"{name} without output_size"
    if name == "aten::segment_reduce" and not kwargs.get("unsafe"):
        return f"{name} checks its input"
    if name in _INDEXING:
        indices = [index for index in args[1] if index is not None]
        if any(not isinstance(index, SimulatedTensor) for index in indices):
            note_copy("to device", sum(index.nbytes for index in indices), is_blocking=False)
            return f"{name} by indices on the host"
        fills = len(args) > 2 and args[2].numel() == 1 and args[2].device.type == "cpu"
        if not fills and any(index.dtype in (torch.bool, torch.uint8) for index in indices):
            return f"{name} by a mask"
    return None


def _wait(index: int, reason: str) -> None:
    note_wait(reason)
    streams.finish(current_stream(index).record_event().seen)


def _computed(func: Any, args: Any, kwargs: Any) -> Any:
    """By one thread, also in torch's for gradients, so that sums have one order."""
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)
    if torch.Tag.nondeterministic_seeded not in func.tags or kwargs.get("generator") is not None:
        return func(*args, **kwargs)
    with module.device_generator():
        return func(*args, **kwargs)


def _kept(func: Any, given: list[Tensor], out: Any, index: int) -> Any:
    """The results as tensors of the device: the arguments themselves, views of them, or new."""
    own = [tensor for tensor in given if isinstance(tensor, SimulatedTensor)]
    by_host = {id(tensor.host): tensor for tensor in own}
    by_storage = {tensor.host.untyped_storage()._cdata: tensor.memory for tensor in own}

    def keep(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) in by_host:
            same = by_host[id(value)]
            if same.shape != value.shape:
                raise NotImplementedError(f"{func} changes the shape of a tensor in place")
            return same
        memory = by_storage.get(value.untyped_storage()._cdata)
        return new_tensor(value, index, memory)

    if torch.Tag.inplace_view in func.tags:
        raise NotImplementedError(f"{func} changes a tensor's view in place")
    return tree_map(keep, out)


def new_tensor(host: Tensor, index: int, memory: Memory | None = None) -> SimulatedTensor:
    """A tensor of the device over numbers on the CPU.

    Args:
        memory: Of which it is a view; None: new memory.
    """
    if host.layout is not torch.strided:
        raise NotImplementedError(f"{host.layout} on the simulated device")
    if memory is None:
        memory = Memory(host.nbytes, module.allocate(index, host.nbytes))
    return SimulatedTensor(host, index, memory)


def _host_of(value: Any) -> Any:
    return value.host if isinstance(value, SimulatedTensor) else value


def _on_host(kwargs: dict[str, Any]) -> dict[str, Any]:
    found = {key: tree_map(_host_of, value) for key, value in kwargs.items()}
    if found.get("device") is not None:
        found["device"] = _CPU
    found.pop("pin_memory", None)
    return found
