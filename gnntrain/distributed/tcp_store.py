"""`TCPStore`s that listen on one address alone, and calls that end when their machine has gone."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # public

LOOPBACK = "127.0.0.1"
_TICK_SECONDS = 0.2


class StoreTimeout(dist.DistNetworkError):
    """The store has not answered in time: its machine is stopped or gone, or the network is."""


class BoundedStore:
    """Makes the calls of a store in a thread, also `connect`, which returns the store, and gives up
    when one takes longer than `timeout` seconds: TCPStore waits without end for a machine or a
    network that has gone, and for a port at which another program listens. Time counts only while
    this process runs: after SIGSTOP and SIGCONT it does not take its own pause for the store's.

    Raises:
        torch.distributed.DistError: The store cannot be reached.
        StoreTimeout: It has not answered in time. All later calls raise at once.
    """

    def __init__(self, connect: Callable[[], Any], timeout: float) -> None:
        self.timeout, self._is_silent = timeout, False
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        threading.Thread(target=self._make_calls, name="gnntrain-store", daemon=True).start()
        try:
            self._store = self._result(connect)
        except BaseException:
            self.close()
            raise

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A method of the store: `compare_set`, `add` or `set`."""
        return lambda *arguments: self._result(lambda: getattr(self._store, name)(*arguments))

    def close(self) -> None:
        """End the thread, and let go of the store."""
        self._is_silent = True
        self._calls.put(None)

    def _result(self, call: Callable[[], Any]) -> Any:
        future: Future[Any] = Future()
        self._calls.put((future, call))
        waited = 0.0
        while not self._is_silent:
            try:
                return future.result(_TICK_SECONDS)
            except TimeoutError:
                waited += _TICK_SECONDS
                self._is_silent |= waited >= self.timeout
        raise StoreTimeout(f"The store has not answered for {self.timeout:g} s.")

    def _make_calls(self) -> None:
        while (one := self._calls.get()) is not None:
            try:
                one[0].set_result(one[1]())
            except Exception as error:
                one[0].set_exception(error)


class StoreAddress(NamedTuple):
    """Where a store is served, and the prefix of the keys that a client of it sees."""

    host: str
    port: int
    prefix: str = ""

    def connect(self, timeout: float) -> Any:
        """A new client of the store, a `torch.distributed.Store`; DistError: it cannot be reached
        within `timeout` seconds."""
        store = TCPStore(self.host, self.port, is_master=False, timeout=timedelta(seconds=timeout))
        return PrefixStore(self.prefix, store) if self.prefix else store


def listen(host: str, port: int = 0, backlog: int | None = None) -> socket.socket:
    """A socket that listens at one address of this machine; port 0: the system chooses one.
    OSError: the address is not this machine's, or the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=backlog)


def serve_store(world_size: int, timeout: float, host: str = LOOPBACK, port: int = 0) -> TCPStore:
    """A store that this process serves, at an address and port as of `listen`, for so many
    processes at once, whose clients wait for a key for `timeout` seconds."""
    with listen(host, port, backlog=2 * world_size) as listener:
        # TCPStore takes the listening socket over, so that no other process can take the port. A
        # socket that TCPStore opens itself would listen on all interfaces.
        return TCPStore(
            host,
            listener.getsockname()[1],
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=timeout),
            master_listen_fd=listener.detach(),
        )


def own_address(towards: str) -> str:
    """The address of this machine from which it reaches `towards`; OSError: there is no way there.
    Nothing is sent."""
    family = socket.AF_INET6 if ":" in towards else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((towards, 9))
        return str(probe.getsockname()[0])
