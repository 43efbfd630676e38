"""What a batch holds is handed over whole; on a GPU, from one stream to another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gnntrain.loading.streams import BatchStream, tensors_in
from tests.simulated_device import present, watched


@dataclass(frozen=True, slots=True)
class Table:
    rows: torch.Tensor
    other: object


def test_every_tensor_of_a_batch_is_found_at_any_depth() -> None:
    parts = [torch.full((2,), number) for number in range(6)]
    table = Table(parts[0], {"a": [parts[1], None], "b": 3})
    data = Data(x=parts[2], blocks=(table, Table(parts[3], Table(parts[4], "text"))))
    data.more = [parts[5]]
    assert sorted(int(tensor[0]) for tensor in tensors_in(data)) == list(range(6))


def test_on_the_cpu_and_without_threads_there_is_one_stream() -> None:
    for device, is_side in (("cpu", True), ("cuda", False)):
        stream = BatchStream[str](torch.device(device), is_side=is_side)
        assert stream.make(lambda: "batch") == ("batch", None)
        assert stream.take(("batch", None)) == "batch"


@pytest.fixture
def sim() -> Iterator[torch.device]:
    with present():
        yield torch.device("sim", 0)


def test_the_taker_waits_on_the_device_and_no_memory_is_reused_too_early(
    sim: torch.device,
) -> None:
    stream = BatchStream[Any](sim, is_side=True)
    with watched() as traffic:
        made = stream.make(lambda: Data(x=torch.ones(9, device=sim), on_host=torch.zeros(2)))
        batch = stream.take(made)
        total = batch.x.sum()
        del made, batch  # the side stream may fill this memory, once the sum has been computed
    assert float(total) == 9
    assert not traffic.races
    assert not traffic.waits
