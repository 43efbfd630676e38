"""A GPU that is none: torch's spare device type, whose tensors keep their numbers in host memory.

    import tests.simulated_device    # torch.device("sim") exists from here on
    gnntrain … trainer.device=auto   # is the machine's accelerator

Operators compute on the CPU, so results are real. An operator on tensors of two devices is an
error, as on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._pytree import tree_map

_DEVICE = torch.device("cpu")


class SimulatedTensor(Tensor):
    """A tensor that says it is on the simulated device.

    Attributes:
        host: Its numbers, on the CPU.
    """

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> SimulatedTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            layout=host.layout,
            device=torch.device("sim", 0),
        )
        made.host = host
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(func, *args, **(kwargs or {}))


def _run(func: Any, *args: Any, **kwargs: Any) -> Any:
    to = kwargs.get("device")
    given = tree_map(_host_of, dict(kwargs))
    if to is not None:
        given["device"] = _DEVICE
    if func is torch.ops.aten._to_copy.default:
        given.pop("pin_memory", None)
        on_cpu = (to or args[0].device).type == "cpu"
        out = func(_host_of(args[0]), **given)
        return out if on_cpu else _simulated(out)
    return tree_map(_simulated, func(*tree_map(_host_of, args), **given))


def _host_of(value: Any) -> Any:
    return value.host if isinstance(value, SimulatedTensor) else value


def _simulated(value: Any) -> Any:
    is_plain = isinstance(value, Tensor) and not isinstance(value, SimulatedTensor)
    return SimulatedTensor(value) if is_plain else value


backend_registration._setup_privateuseone_for_python_backend("sim")
_library: Any = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
_library.fallback(_run, "PrivateUse1")
