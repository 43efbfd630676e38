from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.distributed.context import DistributedContext, rank_range
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.distributed.shared import exchange_rows, shared_tensor


@given(num_items=st.integers(0, 100), world_size=st.integers(1, 12))
def test_shares_cover_everything_once_and_differ_by_one_at_most(
    num_items: int, world_size: int
) -> None:
    items = list(range(num_items))
    shares = [items[rank_range(num_items, rank, world_size)] for rank in range(world_size)]
    assert [item for share in shares for item in share] == items
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def some_among_themselves(context: DistributedContext, directory: str) -> None:
    first, last = (context.among(ranks, 60) for ranks in (range(3), range(3, 5)))
    own = first or last
    assert own is not None
    assert (first is None) == (context.rank >= 3)
    module = torch.nn.BatchNorm1d(1)
    module.running_mean.fill_(float(context.rank))  # type: ignore[union-attr]
    own.synchronize_buffers(module)
    own.barrier()
    own.on_machine.barrier()
    matrix = shared_tensor((2, 1), torch.float32, own, None)
    if own.is_machine_main:
        matrix[own.machine] = context.rank
    exchange_rows(matrix, [(0, 1), (1, 2)], own)
    told = {
        "rank": own.rank,
        "threads": torch.get_num_threads(),
        "machines": own.machines,
        "machine_ranks": list(own.machine_ranks),
        "sum": own.sum(torch.tensor([context.rank])).tolist(),
        "broadcast": own.broadcast(context.rank),
        "machine_broadcast": own.on_machine.broadcast(context.rank),
        "gather": own.gather(context.rank),
        "gather_to_main": own.gather_to_main(context.rank),
        "buffer": module.running_mean.tolist(),  # type: ignore[union-attr]
        "matrix": matrix.flatten().tolist(),
    }
    Path(directory, str(context.rank)).write_text(repr(told))


def test_collectives_of_some_ranks_leave_the_others_out(tmp_path: Path) -> None:
    plan = LaunchPlan(5, "cpu", threads=3, timeout=60, machines=(0, 1, 1, 1, 2))
    launch(some_among_themselves, str(tmp_path), plan, tmp_path)
    told = [ast.literal_eval((tmp_path / str(rank)).read_text()) for rank in range(5)]
    expected: dict[str, list[Any]] = {
        "rank": [0, 1, 2, 0, 1],
        "threads": [3] * 5,
        "machines": [(0, 1, 1)] * 3 + [(0, 1)] * 2,
        "machine_ranks": [[0], [1, 2], [1, 2], [0], [1]],
        "sum": [[3]] * 3 + [[7]] * 2,
        "broadcast": [0, 0, 0, 3, 3],
        "machine_broadcast": [0, 1, 1, 3, 4],
        "gather": [[0, 1, 2]] * 3 + [[3, 4]] * 2,
        "gather_to_main": [[0, 1, 2], [], [], [3, 4], []],
        "buffer": [[0.0]] * 3 + [[3.0]] * 2,
        "matrix": [[0.0, 1.0]] * 3 + [[3.0, 4.0]] * 2,
    }
    assert {name: [one[name] for one in told] for name in told[0]} == expected
