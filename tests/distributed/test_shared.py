"""Memory that the ranks of a machine share, and rows that machines exchange."""

from __future__ import annotations

from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gnntrain.distributed import shared
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.distributed.shared import exchange_rows, shared_tensor
from gnntrain.loading.pinned import pinned

MACHINES = [(0, 1), (0, 0, 1), (0, 1, 2), (0, 1, 1, 2)]

SIZES = [[10, 10, 10], [1, 30, 7], [0, 25, 1], [3, 0, 0], [0, 0, 0]]
"""Rows that each machine has computed; a message holds three."""


def use_machines(context: DistributedContext, out: Path) -> None:
    """Share memory and exchange rows; save what each rank has mapped and received."""
    files: list[str] = []
    from_file = torch.from_file

    def noted(path: str, **options: Any) -> Tensor:
        files.append(path)
        return from_file(path, **options)

    torch.from_file = noted  # type: ignore[assignment]
    made = [shared_tensor((4, 3), torch.float32, context, folder) for folder in (None, out)]
    made.append(pinned(torch.zeros(4, 3), context))
    for tensor in made:
        if context.is_machine_main:
            tensor[:] = context.machine
    context.barrier()
    held = [sorted(set(tensor.flatten().tolist())) for tensor in made]
    received = [exchanged(context, sizes) for sizes in SIZES]
    answers = context.gather((files, held, received))
    if context.is_main:
        torch.save(answers, out / "answers.pt")


def exchanged(context: DistributedContext, sizes: list[int]) -> list[int]:
    """The machine that wrote each row, as this rank sees it after the exchange."""
    shared._MESSAGE_BYTES = 3 * 4 * 2
    ranges = list(pairwise(accumulate(sizes[: context.num_machines], initial=0)))
    matrix = shared_tensor((ranges[-1][1], 2), torch.float32, context, None)
    start, stop = ranges[context.machine]
    if context.is_machine_main:
        matrix[:] = -1
        matrix[start:stop] = context.machine
    exchange_rows(matrix, ranges, context)
    return [int(row[0]) for row in matrix.tolist() if row[0] == row[1]]


@pytest.mark.parametrize("machines", MACHINES)
def test_memory_is_shared_within_a_machine_and_rows_reach_the_others(
    tmp_path: Path, machines: tuple[int, ...]
) -> None:
    launch(use_machines, tmp_path, LaunchPlan(len(machines), "cpu", 1, 60, machines), tmp_path)
    answers = torch.load(tmp_path / "answers.pt")
    maps: dict[str, set[int]] = {}
    for machine, (files, held, received) in zip(machines, answers, strict=True):
        assert held == [[machine]] * 3
        for sizes, rows in zip(SIZES, received, strict=True):
            own = sizes[: machines[-1] + 1]
            assert rows == [writer for writer, size in enumerate(own) for _ in range(size)]
        for file in files:
            maps.setdefault(file, set()).add(machine)
    assert maps  # each file by the ranks of one machine
    assert all(len(by) == 1 for by in maps.values())
