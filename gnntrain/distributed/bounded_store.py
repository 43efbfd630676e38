"""A store whose calls end when the machine that serves it has gone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from gnntrain.distributed.run_control import Store, StoreTimeout

T = TypeVar("T")

_TICK_SECONDS = 0.2


class BoundedStore:
    """Makes the calls of a store in a thread, and gives up when one takes longer than `timeout`.

    TCPStore waits for an answer without end. If the serving process has ended, the connection
    breaks and the call raises; if its machine or the network has gone, nothing arrives.

    Time counts only while this process runs: after SIGSTOP and SIGCONT it does not take its own
    pause for the store's.

    Args:
        connect: Returns the store. It is called as the methods are: a client of a TCPStore waits
            without end for a port at which another program listens.
        timeout: Seconds that a call may take.

    Attributes:
        timeout: As given; may be changed.
        is_silent: Whether a call took too long, or the store was closed. All later calls raise at
            once.

    Raises:
        DistError: The store cannot be reached.
    """

    def __init__(self, connect: Callable[[], Store], timeout: float) -> None:
        self.timeout = timeout
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self.is_silent = False
        threading.Thread(target=self._make_calls, name="gnntrain-store", daemon=True).start()
        try:
            self._store = self._result(connect)
        except BaseException:
            self.close()
            raise

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """As `Store.compare_set`.

        Raises:
            DistError: The store has gone.
            StoreTimeout: It has not answered in time.
        """
        return self._result(lambda: self._store.compare_set(key, expected, desired))

    def add(self, key: str, amount: int, /) -> int:
        """As `Store.add`; raises as `compare_set`."""
        return self._result(lambda: self._store.add(key, amount))

    def set(self, key: str, value: str, /) -> None:
        """As `Store.set`; raises as `compare_set`."""
        self._result(lambda: self._store.set(key, value))

    def close(self) -> None:
        """End the thread, and let go of the store."""
        self.is_silent = True
        self._calls.put(None)

    def _result(self, call: Callable[[], T]) -> T:
        future: Future[T] = Future()
        if not self.is_silent:
            self._calls.put((future, call))
        waited = 0.0
        while not self.is_silent:
            try:
                return future.result(_TICK_SECONDS)
            except TimeoutError:
                waited += _TICK_SECONDS
                if waited >= self.timeout:
                    self.is_silent = True
        raise StoreTimeout(f"The store has not answered for {self.timeout:g} s.")

    def _make_calls(self) -> None:
        while (one := self._calls.get()) is not None:
            future, call = one
            try:
                future.set_result(call())
            except Exception as error:
                future.set_exception(error)
