"""A port at which ranks of this run connect, and at which strangers achieve nothing."""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import cast

from gnntrain.distributed.messages import REPLY_BYTES, Connection, Greeting

_log = logging.getLogger("gnntrain")

# Connections that have not proved themselves: more push out the oldest. A rank needs milliseconds.
MAX_UNPROVED = 64
UNPROVED_SECONDS = 10.0
_BACKLOG = 512


class Listener:
    """Accepts connections on one address, in a thread of its own.

    Args:
        host: The address to listen on; not all interfaces.
        token: The run's secret.
        timeout: See `Connection`.
        on_connection: Called with every caller that knows the token. After a RuntimeError, as where
            the system starts no more threads, the caller is hung up on.

    Raises:
        OSError: The address is not one of this machine.
    """

    def __init__(
        self, host: str, token: bytes, timeout: float, on_connection: Callable[[Connection], None]
    ) -> None:
        self._token = token
        self._timeout = timeout
        self._on_connection = on_connection
        self._unproved: dict[socket.socket, _Caller] = {}
        family, *_, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        self._listening = socket.create_server(
            cast(tuple[str, int], address), family=family, backlog=_BACKLOG
        )
        self._listening.setblocking(False)
        self._waker, self._wakes = socket.socketpair()
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name="exchange-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the port and all connections that have not proved themselves."""
        self._waker.close()
        self._thread.join()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector, self._listening, self._wakes:
            self._selector = selector
            selector.register(self._listening, selectors.EVENT_READ)
            selector.register(self._wakes, selectors.EVENT_READ)
            while self._handle([cast(socket.socket, key.fileobj) for key, _ in selector.select(1)]):
                self._drop_late()
            for stranger in list(self._unproved):
                self._drop(stranger)

    def _handle(self, ready: list[socket.socket]) -> bool:
        """Handle what arrived; return whether to go on."""
        for one in ready:
            if one is self._listening:
                self._accept()
            elif one in self._unproved:  # may have been pushed out meanwhile
                self._read(one)
        return self._wakes not in ready

    def _accept(self) -> None:
        try:
            caller, _ = self._listening.accept()
        except OSError:  # gone already; or no file can be opened now: the backlog keeps it
            time.sleep(0.01)
            return
        if len(self._unproved) >= MAX_UNPROVED:
            self._drop(next(iter(self._unproved)))
        caller.setblocking(False)
        self._unproved[caller] = greeted = _Caller(self._token)
        self._selector.register(caller, selectors.EVENT_READ)
        try:
            caller.sendall(greeted.greeting.sent)
        except OSError:
            self._drop(caller)

    def _read(self, caller: socket.socket) -> None:
        unproved = self._unproved[caller]
        try:
            received = caller.recv(REPLY_BYTES - len(unproved.reply))
            unproved.reply += received
            if len(unproved.reply) == REPLY_BYTES:
                self._judge(caller, unproved)
            elif not received:
                self._drop(caller)
        except OSError:
            self._drop(caller)

    def _judge(self, caller: socket.socket, unproved: _Caller) -> None:
        proof = unproved.greeting.accept(bytes(unproved.reply))
        if proof is None:
            self._drop(caller)
            return
        caller.sendall(proof)
        self._forget(caller)
        connection = Connection(caller, self._timeout)
        try:
            self._on_connection(connection)
        except RuntimeError as error:
            _log.warning("A rank that connects is not answered: %s", error)
            connection.close()

    def _drop_late(self) -> None:
        now = time.monotonic()
        for caller, unproved in list(self._unproved.items()):
            if now - unproved.since > UNPROVED_SECONDS:
                self._drop(caller)

    def _drop(self, caller: socket.socket) -> None:
        self._forget(caller)
        with contextlib.suppress(OSError):
            caller.close()

    def _forget(self, caller: socket.socket) -> None:
        if self._unproved.pop(caller, None) is not None:
            self._selector.unregister(caller)


class _Caller:
    """A caller that has not proved itself."""

    def __init__(self, token: bytes) -> None:
        self.greeting = Greeting(token)
        self.reply = bytearray()
        self.since = time.monotonic()
