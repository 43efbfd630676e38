"""Stores for tests: torch's own, and made-up ones that behave as badly as a store may."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]  # public, but not in __all__
    FileStore,
    HashStore,
    PrefixStore,
)

from gnntrain.distributed.run_control import Store
from gnntrain.distributed.tcp_store import LOOPBACK, StoreAddress, serve_store

KINDS = ("hash", "tcp", "file", "prefix", "late")


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


class Clients:
    """Makes clients of one store, of the given kind."""

    def __init__(self, kind: str, directory: Path) -> None:
        self._kind = kind
        self._file = directory / "store"
        self._values: dict[str, bytes] = {}
        self._server: Any = HashStore() if kind == "hash" else None
        if kind in ("tcp", "prefix"):
            self._server = serve_store(8, timeout=30)

    def client(self) -> Store:
        """One more client of the store."""
        store: Any = self._server
        if self._kind == "late":
            store = LateStore(self._values)
        elif self._kind == "file":
            store = FileStore(str(self._file), -1)
        elif self._kind != "hash":
            store = StoreAddress(LOOPBACK, self._server.port).connect(30)
        if self._kind == "prefix":  # torchrun's store is shared with others
            store = PrefixStore("gnntrain", store)
        return store
