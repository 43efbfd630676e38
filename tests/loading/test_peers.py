"""Where the GPUs of a machine read each other's memory, and where they only seem to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from gnntrain.distributed.context import DistributedContext
from gnntrain.loading import placement
from gnntrain.loading.placement import why_no_peers

GPUS = ["07", "0f", "47", "4e"]


class Rank(DistributedContext):
    """A rank of four, whose own address and answer the others share but for what a test says."""

    def gather(self, value: Any) -> list[Any]:
        return list(GPUS) if value in GPUS else [value] * self.world_size


def seen_from(
    monkeypatch: pytest.MonkeyPatch, rank: int, visible: list[str], reads: bool = True
) -> str:
    """Why the rank's GPU cannot read the others', where it sees these."""
    monkeypatch.setattr(placement, "gpu_address", lambda device: visible[device.index])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(visible))
    asked: list[int] = []

    def can_access(_: torch.device, peer: int) -> bool:
        asked.append(peer)
        return reads

    monkeypatch.setattr(torch.cuda, "can_device_access_peer", can_access)
    own = visible.index(GPUS[rank])
    why = why_no_peers(Rank(rank, len(GPUS), torch.device("cuda", own)))
    assert own not in asked
    return why


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in placement._SETTINGS:
        monkeypatch.delenv(name, raising=False)


def test_gpus_with_a_way_to_each_other_are_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seen_from(monkeypatch, 2, GPUS) == ""
    assert seen_from(monkeypatch, 2, GPUS[::-1]) == ""
    assert seen_from(monkeypatch, 2, GPUS, reads=False) == "these do not"


def test_a_rank_that_sees_only_its_own_gpu_has_no_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks call theirs number 0."""
    assert "its own GPU alone" in seen_from(monkeypatch, 2, ["47"])


@pytest.mark.parametrize(
    ("name", "value", "is_shared"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", False),
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:64,expandable_segments: true", False),
        ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync", False),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False,backend:native", True),
    ],
)
def test_memory_that_torchs_allocator_does_not_share_is_not_read_by_peers(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, is_shared: bool
) -> None:
    monkeypatch.setenv(name, value)
    why = seen_from(monkeypatch, 0, GPUS)
    assert (why == "") is is_shared
    assert is_shared or name in why


def test_one_gpu_needs_no_way_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "gpu_address", lambda _: "07")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    alone = DistributedContext(device=torch.device("cuda", 0))
    assert why_no_peers(alone) == ""
    assert why_no_peers(replace(alone, device=torch.device("cpu"))) != ""
