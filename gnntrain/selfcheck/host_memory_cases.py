"""Whether kernels read feature rows in pinned host memory, as some placements need."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.rows import Gather
from gnntrain.compute.selection import HOST_MEMORY
from gnntrain.loading.pinned import device_addresses, empty_pinned
from gnntrain.selfcheck.case import Case, WrongResultError

_NUM_ROWS, _WIDTH, _NUM_CACHED = 50, 40, 20


def host_memory_cases() -> Iterator[Case]:
    """Of both ways in which rows lie there."""
    yield Case(HOST_MEMORY, "all rows", None, partial(_tried, is_cached=False))
    yield Case(HOST_MEMORY, "rows that are not cached", None, partial(_tried, is_cached=True))


def _tried(device: torch.device, *, is_cached: bool) -> float:
    """Read rows in the order of random nodes."""
    draw = torch.Generator().manual_seed(0)
    rows = empty_pinned((_NUM_ROWS, _WIDTH)).normal_(generator=draw)
    nodes = torch.randint(0, _NUM_ROWS, (90,), generator=draw)
    features = LazyFeatures(rows, nodes.to(device))
    if is_cached:
        slots = torch.arange(_NUM_ROWS, dtype=torch.int32)
        slots[_NUM_CACHED:] = -1
        features = LazyFeatures(
            rows[:_NUM_CACHED].to(device),
            nodes.to(device),
            slots.to(device),
            device_addresses([rows], device),
            _NUM_ROWS,
            (rows,),
        )
    found = Gather(features, 0, len(nodes), torch.float32).cuda()
    if not torch.equal(found.cpu(), rows[nodes]):
        raise WrongResultError("other rows than were written there")
    return 0.0
