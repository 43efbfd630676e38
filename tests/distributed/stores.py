"""Stores for tests, which behave as badly as a store may."""

from __future__ import annotations

import threading
from typing import Any

import torch.distributed as dist


class LateStore:
    """A client of a dictionary. `set` is done only before the client's next answer, as with a
    TCPStore whose server is slow."""

    def __init__(self, values: dict[str, bytes]) -> None:
        self._values = values
        self._late: dict[str, bytes] = {}

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        self._catch_up()
        if self._values.get(key, b"") == expected.encode():
            self._values[key] = desired.encode()
        return self._values.get(key, b"")

    def add(self, key: str, amount: int, /) -> int:
        self._catch_up()
        total = int(self._values.get(key, b"0")) + amount
        self._values[key] = str(total).encode()
        return total

    def set(self, key: str, value: str, /) -> None:
        self._late[key] = value.encode()

    def _catch_up(self) -> None:
        self._values |= self._late
        self._late.clear()


class GoneStore:
    """A store whose server has gone."""

    def _fail(self, *_: object) -> Any:
        raise dist.DistNetworkError("Broken pipe")

    compare_set = add = set = _fail


class FrozenStore:
    """A store whose machine does not answer, until it thaws."""

    def __init__(self) -> None:
        self.thaw = threading.Event()

    def _wait(self, *_: object) -> Any:
        self.thaw.wait()

    compare_set = add = set = _wait
