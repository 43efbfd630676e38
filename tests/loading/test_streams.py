"""What a batch holds is handed over whole; on a GPU, from one stream to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gnntrain.loading.streams import BatchStream, tensors_in


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


class FakeTensor(torch.Tensor):
    """A tensor that says it is on a GPU, and notes who uses it."""

    users: list[object]

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    def record_stream(self, stream: object) -> None:
        self.users.append(stream)


def fake() -> FakeTensor:
    tensor = torch.zeros(1).as_subclass(FakeTensor)
    tensor.users = []
    return tensor


def test_the_taker_waits_on_the_device_and_every_tensor_is_marked_as_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[Any] = []

    class Stream:
        device = torch.device("cuda")

        def wait_event(self, event: object) -> None:
            done.append(event)

    taker = Stream()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: taker)
    stream = BatchStream[Any](torch.device("cpu"), is_side=False)
    monkeypatch.setattr(stream, "_side", Stream())
    tensors = [fake() for _ in range(3)]
    batch = Data(x=tensors[0], blocks=(Table(tensors[1], [tensors[2]]),), on_host=torch.zeros(2))
    assert stream.take((batch, "made")) is batch
    assert done == ["made"]
    assert [tensor.users for tensor in tensors] == [[taker]] * 3
