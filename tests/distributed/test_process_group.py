"""The process group is bound to each rank's GPU, and no two processes have the same one."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.process_group import init_process_group, refuse_shared_gpus
from gnntrain.distributed.run_control import RunControl
from gnntrain.errors import RunError, UserError


def started(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, environment: dict[str, str]
) -> dict[str, Any]:
    """What torch is told when a rank with this device meets the others."""
    told: dict[str, Any] = {}
    monkeypatch.setattr(dist, "init_process_group", lambda *a, **k: told.update(k, backend=a[0]))
    context = DistributedContext(0, 1, device)
    with mock.patch.dict(os.environ, environment, clear=True):
        store: Any = dist.HashStore()  # type: ignore[attr-defined]
        init_process_group(context, store, 90)
        return told | {"environment": dict(os.environ)}


def test_a_group_of_gpus_is_bound_to_the_ranks_device_and_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = started(monkeypatch, torch.device("cpu"), {})
    assert (told["backend"], told["device_id"]) == ("gloo", None)
    told = started(monkeypatch, torch.device("cuda", 3), {})
    assert (told["backend"], told["device_id"]) == ("nccl", torch.device("cuda", 3))
    assert told["timeout"] == timedelta(seconds=90)
    assert told["environment"]["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] == "90"
    assert told["environment"]["NCCL_SOCKET_IFNAME"] == "=lo"
    theirs = {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "7", "NCCL_SOCKET_IFNAME": "ib0"}
    found = started(monkeypatch, torch.device("cuda", 0), theirs)["environment"]
    assert {name: found[name] for name in theirs} == theirs


def test_an_address_of_no_interface_is_refused() -> None:
    store: Any = dist.HashStore()  # type: ignore[attr-defined]
    for host in ("198.51.100.7", "fe80::7:7:7:7%eth0"):
        context = DistributedContext(0, 2, torch.device("cpu"), host=host)
        with pytest.raises(UserError, match=f"has the address {host}"):
            init_process_group(context, store, 1)


def test_ranks_of_gpus_connect_when_all_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL would wait without end for a rank that has not come."""
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: pytest.fail("rank 1 is gone"))
    context = DistributedContext(0, 2, torch.device("cuda", 0))
    store: Any = dist.HashStore()  # type: ignore[attr-defined]
    with pytest.raises(dist.DistStoreError):
        init_process_group(context, store, 0.2)


def test_a_rank_that_nccl_does_not_connect_is_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    control = RunControl()
    found: list[object] = []

    def hang(*_: object, **__: object) -> None:
        found.append(control.overdue())

    monkeypatch.setattr(dist, "init_process_group", hang)
    context = DistributedContext(0, 1, torch.device("cuda", 0), control)
    store: Any = dist.HashStore()  # type: ignore[attr-defined]
    for limit in (60, 0):
        init_process_group(context, store, limit)
    assert found[0] is None
    assert isinstance(found[1], RunError)
    assert "NCCL" in found[1].message
    assert control.overdue() is None


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("NCCL error\nLast error:\nDuplicate GPU\n", RunError, "connect rank 0 .*Duplicate GPU"),
        ("store->get('0') got error: wait timeout", dist.DistBackendError, "timeout"),
    ],
)
def test_why_nccl_does_not_connect_ranks_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, text: str, kind: type[Exception], words: str
) -> None:
    """Of a rank that does not come, the others say that they have waited."""

    def fail(*_: object, **__: object) -> None:
        raise dist.DistBackendError(text)

    monkeypatch.setattr(dist, "init_process_group", fail)
    context = DistributedContext(0, 1, torch.device("cuda", 0))
    store: Any = dist.HashStore()  # type: ignore[attr-defined]
    with pytest.raises(kind, match=words):
        init_process_group(context, store, 9)


def test_two_processes_on_one_gpu_are_refused() -> None:
    refuse_shared_gpus(["07", "0f", "07", "0f"], [0, 0, 1, 1])
    refuse_shared_gpus([None, None], [0, 0])  # of XPUs nothing is known
    with pytest.raises(UserError, match="1 and 2"):
        refuse_shared_gpus(["07", "0f", "0f"], [0, 1, 1])
