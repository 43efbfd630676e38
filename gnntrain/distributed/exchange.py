"""Calls between ranks: one asks the owners of a part for arrays, others answer.

Not collectives: owners answer in threads of their own, so that ranks need not be in step.

    with open_exchange(context, owners=[[0, 1], [2, 3]], timeout=600) as exchange:
        exchange.serve("rows", lambda arguments: [features[arguments[0]]])
        [rows] = exchange.call("rows", {1: [ids_of_1]})[1]

All connections are opened at the start, by whoever sends the run's token, then the ports are
closed. (`multiprocessing.connection` knows neither IPv6 nor a time limit.) A message is the bytes
of its head (u32, little endian), the head in JSON, and the arrays' own bytes in C order. Nothing
that arrives names code or is run: neither pickle nor object arrays.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import socket
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any

import numpy as np

from gnntrain.compute.buffers import BUFFERS
from gnntrain.distributed import tcp_store
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.owners import AnyArray
from gnntrain.errors import RankLost, RunError, TransientError, may_mend

_log = logging.getLogger("gnntrain")

Answer = Callable[[list[AnyArray]], list[AnyArray]]
"""From a call's arguments to its answer. Runs in several threads at once."""

_HEAD_BYTES = struct.Struct("<I")
_TOKEN_BYTES = 32
_KNOWN = b"\x06"  # the answer to the token


@contextmanager
def open_exchange(
    context: DistributedContext,
    *,
    owners: Sequence[Sequence[int]],
    timeout: float,
    num_lanes: int = 3,
) -> Iterator[Exchange]:
    """An exchange of all ranks. Collective, at its end too: others may still ask this rank. It
    reports a failure, or its cause in another rank, before others lose their connections.

    Args:
        owners: The ranks that hold and serve each part. The ranks of a machine that ask a part of
            several ranks are spread over these.
        timeout: Seconds without a byte of an answer after which its owner is lost.
        num_lanes: How many calls of this rank go on at once; further ones wait for these.

    Raises:
        RunError: This rank cannot listen at its address, or does not reach an owner.
    """
    # Rank 0 passes it on without encryption, as each rank then does.
    token = context.broadcast(secrets.token_bytes(_TOKEN_BYTES))
    exchange = Exchange(context, owners, token, timeout)
    try:
        exchange.connect(context.gather(exchange.listen()), num_lanes)
        context.barrier()
        exchange.close_port()
        yield exchange
        context.barrier()
    except Exception as error:
        context.control.report_failure(context.control.cause_of(error))
        raise
    finally:
        exchange.close()


class Exchange:
    """One rank's end of the calls between ranks. Thread-safe."""

    def __init__(
        self,
        context: DistributedContext,
        owners: Sequence[Sequence[int]],
        token: bytes,
        timeout: float,
    ) -> None:
        self.num_owners = len(owners)
        # The part that this rank holds; None: nothing.
        self.owner = next((o for o, ranks in enumerate(owners) if context.rank in ranks), None)
        self._context, self._token, self._timeout = context, token, timeout
        place = context.rank - context.machine_ranks[0]
        self._asked = [ranks[place % len(ranks)] for ranks in owners]  # by owner
        self._addresses: Sequence[tuple[str, int]] = ()
        self._listening: socket.socket | None = None
        # Each has a connection to every owner, by its number, and is used by one call at a time.
        self._lanes: SimpleQueue[dict[int, socket.socket]] = SimpleQueue()
        self._changed = threading.Condition()  # of all below
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._services: dict[str, Answer] = {}
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    # -- connections

    def listen(self) -> tuple[str, int]:
        """Listen at this machine's address, if another rank may ask this one; return it."""
        host = self._context.host
        if self.owner is None or self._context.world_size == 1:
            return host, 0
        try:
            self._listening = tcp_store.listen(host, backlog=512)
        except OSError as error:
            rank = self._context.rank
            raise RunError(f"Rank {rank} cannot listen at {host}: {error}.") from error
        self._listening.settimeout(0.05)
        self._start(self._accept, self._listening)
        return host, self._listening.getsockname()[1]

    def connect(self, addresses: Sequence[tuple[str, int]], num_lanes: int) -> None:
        """Connect to every owner, `num_lanes` times; `addresses` are of each rank. RunError: an
        owner is out of reach, or does not know the token."""
        self._addresses = addresses
        for _ in range(num_lanes):
            lane = {}
            for owner in set(range(self.num_owners)) - {self.owner}:
                try:
                    address = addresses[self._asked[owner]]
                    lane[owner] = socket.create_connection(address, self._timeout)
                    self._connections.append(lane[owner])
                    _limit(lane[owner], self._timeout)
                    lane[owner].sendall(self._token)
                    if _read(lane[owner], 1) != _KNOWN:
                        raise ConnectionRefusedError("it does not know this run's token")
                except OSError as error:
                    raise RunError(
                        f"{self._words(owner)} is out of reach of rank {self._context.rank}: "
                        f"{error.strerror or error}.",
                        "Let the machines of the run connect to each other, on any port.",
                    ) from error
            self._lanes.put(lane)

    def close_port(self) -> None:
        """Accept no more connections."""
        if self._listening is not None:
            with suppress(OSError):  # as macOS answers, which closes it all the same
                self._listening.shutdown(socket.SHUT_RDWR)
            self._listening.close()

    def _words(self, owner: int) -> str:
        rank, machines = self._asked[owner], self._context.machines
        host, port = self._addresses[rank]
        return f"Rank {rank} on machine {machines[rank] if machines else 0} ({host}, port {port})"

    def _start(self, target: Callable[[socket.socket], None], connection: socket.socket) -> None:
        with self._changed:  # `close` knows of all threads that have started
            if self._is_closed:
                connection.close()
                return
            thread = threading.Thread(target=target, args=(connection,), daemon=True)
            thread.start()
            self._threads.append(thread)
            self._connections.append(connection)

    def close(self) -> None:
        """End all connections, threads and the port. Calls under way raise RunError."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for connection in self._connections:
            with suppress(OSError):  # it has ended already
                connection.shutdown(socket.SHUT_RDWR)
        self.close_port()
        for thread in self._threads:
            thread.join(5.0)
        for connection in self._connections:
            connection.close()

    # -- answering

    def serve(self, name: str, answer: Answer) -> None:
        """Answer calls of `name`, which is not served yet, from now on; also those that have come
        before. An exception of `answer` reaches the caller as a RunError with the message."""
        with self._changed:
            assert name not in self._services, name
            self._services[name] = answer
            self._changed.notify_all()

    def withdraw(self, names: Iterable[str]) -> None:
        """Serve these no longer; a call that is being answered goes on."""
        with self._changed:
            for name in names:
                self._services.pop(name, None)

    def take_seconds(self) -> dict[str, float]:
        """Seconds in answers by name since the last call, summed over threads."""
        with self._changed:
            taken, self._seconds = self._seconds, defaultdict(float)
        return taken

    def _answer(self, name: str, arguments: list[AnyArray]) -> list[AnyArray]:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or name in self._services, self._timeout)
            if self._is_closed or name not in self._services:
                raise TransientError(f"'{name}' is not served.")
            answer = self._services[name]
        begin = time.perf_counter()
        try:
            return answer(arguments)
        finally:
            with self._changed:
                self._seconds[name] += time.perf_counter() - begin

    def _accept(self, listening: socket.socket) -> None:
        while listening.fileno() >= 0:
            with suppress(OSError):  # nobody has come, or the port is closed
                self._start(self._answer_all, listening.accept()[0])

    def _answer_all(self, connection: socket.socket) -> None:
        try:
            with connection:
                _limit(connection, self._timeout)
                if not hmac.compare_digest(_read(connection, _TOKEN_BYTES), self._token):
                    raise ConnectionRefusedError("a stranger")
                connection.sendall(_KNOWN)
                _limit(connection, 0)  # a caller may ask nothing for hours
                while True:
                    name, arguments = _receive(connection)
                    try:
                        message = _encoded(None, self._answer(name, arguments))
                    except Exception as error:
                        _log.debug("exchange: '%s' failed", name, exc_info=True)
                        kind = "" if isinstance(error, RunError) else f"{type(error).__name__}: "
                        message = _encoded([f"{kind}{error}", may_mend(error)], [])
                    _send(connection, message)
        except Exception as error:  # a stranger; or a caller that ends, or fails and tells why
            _log.debug("exchange: a caller's connection ended: %s", error)

    # -- calling

    def call(
        self, name: str, arguments: Mapping[int, Sequence[AnyArray]]
    ) -> dict[int, list[AnyArray]]:
        """Call `name` at several owners at once, with arrays of bool, integers or floating point
        for each, and wait for all; this rank's own part is asked without a connection, while the
        others work.

        Returns:
            By the number of the owner, in this order: new arrays; of the own part the very arrays.

        Raises:
            RunError: An owner has gone, does not answer within `timeout`, or has failed to answer.
        """
        answers: dict[int, list[AnyArray]] = {}
        others = [owner for owner in arguments if owner != self.owner]
        lane = self._lanes.get()
        at: int | None = None  # the owner whose connection is used
        try:
            for at in others:
                _send(lane[at], _encoded(name, arguments[at]))
            at = None
            if self.owner is not None and self.owner in arguments:
                answers[self.owner] = self._answer(name, list(arguments[self.owner]))
            for at in others:
                failure, answers[at] = _receive(lane[at])
                if failure is not None:
                    text, is_transient = failure
                    kind = TransientError if is_transient else RunError
                    raise kind(f"{self._words(at)} failed to answer '{name}': {text}")
        except BaseException as error:
            for connection in lane.values():  # answers may be under way in them
                connection.close()
            if at is None or not isinstance(error, OSError):
                raise
            if self._is_closed:
                raise RunError(f"'{name}' was called while the exchange was closed.") from error
            what, hint = f"was lost during '{name}': {error.strerror or error}", None
            if isinstance(error, BlockingIOError):  # see `_limit`
                what = f"has not answered '{name}' for {self._timeout:g} s"
                hint = "If it only needs more time, raise distributed.timeout."
            raise RankLost(f"{self._words(at)} {what}.", hint, ranks=[self._asked[at]]) from error
        finally:
            self._lanes.put(lane)
        return {owner: answers[owner] for owner in arguments}


def _limit(connection: socket.socket, seconds: float) -> None:
    """Raise BlockingIOError where no byte moves for so long; 0: wait for ever. The limit is the
    kernel's: one system call, for which Python releases its lock once, moves a whole array."""
    connection.settimeout(None)
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _encoded(head: Any, arrays: Sequence[AnyArray]) -> list[memoryview]:
    """A message of a plain head and arrays as buffers: these' own memory where it is contiguous.
    TypeError: an array is not of bool, integers or floating point."""
    arrays = [np.asarray(array, order="C") for array in arrays]
    described = [(_checked(array.dtype).str, array.shape) for array in arrays]
    text = json.dumps([head, described]).encode()
    buffers = [memoryview(_HEAD_BYTES.pack(len(text)) + text)]
    return buffers + [array.reshape(-1).view(np.uint8).data for array in arrays]


def _send(connection: socket.socket, buffers: Sequence[memoryview]) -> None:
    """Send these, the head in one packet with what follows where the system can hold it back."""
    *first, last = (buffer for buffer in buffers if buffer.nbytes)  # nothing would end no packet
    for buffer in first:
        connection.sendall(buffer, getattr(socket, "MSG_MORE", 0))
    connection.sendall(last)


def _receive(connection: socket.socket) -> tuple[Any, list[AnyArray]]:
    """The next message: its head and new, writable arrays. Raises OSError where the other end has
    gone, or sends nothing."""
    (num_bytes,) = _HEAD_BYTES.unpack(_read(connection, _HEAD_BYTES.size))
    head, described = json.loads(_read(connection, num_bytes))
    arrays: list[AnyArray] = []
    for dtype, shape in described:
        arrays.append(BUFFERS.array(shape, _checked(np.dtype(dtype))))
        _fill(connection, arrays[-1].reshape(-1).view(np.uint8).data)
    return head, arrays


def _checked(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind not in "biuf":
        raise TypeError(f"arrays of {dtype} cannot be sent")
    return dtype


def _read(connection: socket.socket, num_bytes: int) -> bytearray:
    buffer = bytearray(num_bytes)
    _fill(connection, memoryview(buffer))
    return buffer


def _fill(connection: socket.socket, buffer: memoryview) -> None:
    while buffer:
        received = connection.recv_into(buffer, 0, socket.MSG_WAITALL)
        if received == 0:
            raise ConnectionResetError("the connection was closed")
        buffer = buffer[received:]
