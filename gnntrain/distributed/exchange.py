"""Calls between ranks: one asks the owners of a part for arrays, others answer.

Not collectives: a rank calls when it needs something, in any thread, and the owners answer in
threads of their own. So ranks need not be in step with each other.

    with open_exchange(context, owners=[[0, 1], [2, 3]], host=host, timeout=600) as exchange:
        exchange.serve("rows", lambda arguments: [features[arguments[0]]])
        answers = exchange.call("rows", {0: [ids_of_0], 1: [ids_of_1]})
        [rows] = answers[1]
"""

from __future__ import annotations

import logging
import math
import secrets
import selectors
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.listener import Listener
from gnntrain.distributed.messages import Array, Connection, Kind, connect, encode
from gnntrain.errors import RankLost, RunError, TransientError, may_mend

_log = logging.getLogger("gnntrain")

Answer = Callable[[list[Array]], list[Array]]
"""From a call's arguments to its answer. Runs in several threads at once."""

_SLICE_SECONDS = 1.0
_JOIN_SECONDS = 5.0


def open_exchange(
    context: DistributedContext, *, owners: Sequence[Sequence[int]], host: str, timeout: float
) -> Exchange:
    """An exchange of all ranks. Collective.

    Args:
        context: This rank.
        owners: The ranks that hold and serve each part. The ranks of a machine that ask a part of
            several ranks are spread over these.
        host: The address of this rank's machine at which other ranks reach it.
        timeout: Seconds to wait for an answer.

    Raises:
        RunError: This rank cannot listen at `host`, or does not reach an owner.
    """
    token = context.broadcast(secrets.token_bytes(32))
    exchange = Exchange(context, owners, token, timeout)
    try:
        address = exchange.listen(host)
        exchange.meet(context.gather(address))
    except BaseException:
        exchange.close()
        raise
    return exchange


class Exchange:
    """One rank's end of the calls between ranks. Thread-safe.

    As a context manager it waits at the end for all ranks, since they may still ask this one, and
    closes. After an error it reports this rank's failure, or the other rank's failure that caused
    it, before others lose their connections.

    Attributes:
        num_owners: The number of parts.
        owner: The number of the part that this rank holds; None: it holds nothing.
    """

    def __init__(
        self,
        context: DistributedContext,
        owners: Sequence[Sequence[int]],
        token: bytes,
        timeout: float,
    ) -> None:
        self.num_owners = len(owners)
        self.owner = next((o for o, ranks in enumerate(owners) if context.rank in ranks), None)
        self._context = context
        self._owners = owners
        self._token = token
        self._timeout = timeout
        self._addresses: Sequence[tuple[str, int]] = ()
        self._services: dict[str, _Service] = {}
        self._changed = threading.Condition()  # of `_services` and `_is_closed`
        self._is_closed = False
        self._lock = threading.Lock()  # of all below
        self._idle: dict[int, list[Connection]] = defaultdict(list)
        self._open: set[Connection] = set()
        self._threads: list[threading.Thread] = []
        self._bytes: dict[str, tuple[int, int]] = {}
        self._seconds: dict[str, float] = {}
        self._listener: Listener | None = None

    def listen(self, host: str) -> tuple[str, int]:
        """Listen at `host` if another rank asks this one; return the address.

        Raises:
            RunError: `host` is not an address of this machine.
        """
        if not self._is_asked():
            return host, 0
        try:
            self._listener = Listener(host, self._token, self._timeout, self._start_answering)
        except OSError as error:
            raise RunError(
                f"Rank {self._context.rank} cannot listen at {host}: {error.strerror or error}."
            ) from error
        return host, self._listener.port

    def _is_asked(self) -> bool:
        context = self._context
        return self.owner is not None and any(
            rank not in self._owners[self.owner] and self._asked(rank, self.owner) == context.rank
            for rank in range(context.world_size)
        )

    def _asked(self, rank: int, owner: int) -> int:
        """The rank that `rank` asks for a part."""
        machine = self._context.machines[rank] if self._context.machines else 0
        place = rank - self._context.ranks_of(machine)[0]
        ranks = self._owners[owner]
        return ranks[place % len(ranks)]

    def meet(self, addresses: Sequence[tuple[str, int]]) -> None:
        """Connect to every owner: an address that is out of reach is told at the start.

        Args:
            addresses: The address of each rank.

        Raises:
            RunError: An owner is out of reach.
        """
        self._addresses = addresses
        for owner in range(self.num_owners):
            if owner != self.owner:
                try:
                    self._give_back(owner, self._take(owner))
                except OSError as error:
                    raise RunError(
                        f"Rank {self._context.rank} cannot reach {self._words(owner, 'rank')}: "
                        f"{error.strerror or error}.",
                        "Let the machines of the run connect to each other, on any port.",
                    ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._context.barrier()
            elif isinstance(error, Exception):
                control = self._context.control
                control.report_failure(control.cause_of(error))
        finally:
            self.close()

    def close(self) -> None:
        """End all connections, threads and the port. Calls under way raise RunError."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._listener is not None:
            self._listener.close()
        with self._lock:
            connections, threads = list(self._open), list(self._threads)
            idle = [connection for waiting in self._idle.values() for connection in waiting]
            self._idle.clear()
        for connection in connections:
            connection.shut_down()
        for connection in idle:
            self._discard(connection)
        for thread in threads:
            thread.join(_JOIN_SECONDS)

    # -- answering

    def serve(self, name: str, answer: Answer) -> None:
        """Answer calls of `name` from now on. Calls that came before have waited.

        Args:
            name: Not served yet.
            answer: Its exception reaches the caller as a RunError with the message.
        """
        with self._changed:
            assert name not in self._services, name
            self._services[name] = _Service(answer)
            self._changed.notify_all()

    def withdraw(self, name: str) -> None:
        """Serve `name` no longer; wait until no call of it is being answered."""
        with self._changed:
            service = self._services.pop(name)
            self._changed.wait_for(lambda: service.num_running == 0)

    def _answer(self, name: str, arguments: list[Array]) -> list[Array]:
        with self._changed:
            found = self._changed.wait_for(
                lambda: self._is_closed or name in self._services, self._timeout
            )
            if self._is_closed or not found:
                raise TransientError(f"'{name}' is not served.")
            service = self._services[name]
            service.num_running += 1
        begin = time.perf_counter()
        try:
            return service.answer(arguments)
        finally:
            with self._lock:
                seconds = self._seconds.get(name, 0.0) + time.perf_counter() - begin
                self._seconds[name] = seconds
            with self._changed:
                service.num_running -= 1
                self._changed.notify_all()

    def _start_answering(self, connection: Connection) -> None:
        thread = threading.Thread(
            target=self._answer_all, args=(connection,), name="exchange", daemon=True
        )
        with self._lock:
            self._threads = [one for one in self._threads if one.is_alive()]
            # Inside the lock: `close` joins threads that have started.
            thread.start()
            self._open.add(connection)
            self._threads.append(thread)

    def _answer_all(self, connection: Connection) -> None:
        try:
            while True:
                message = connection.receive(patience=math.inf)
                answer = self._encoded_answer(message.text, message.arrays)
                # Counted first: when the caller has the answer, it stands in the counts of both.
                self._count(message.text, sum(map(len, answer)), message.num_bytes)
                connection.send(answer)
        except OSError as error:  # the caller has ended the connection, or fails and tells why
            _log.debug("exchange: a caller's connection ended: %s", error)
        finally:
            self._discard(connection)

    def _encoded_answer(self, name: str, arguments: list[Array]) -> list[memoryview]:
        try:
            return encode(Kind.ANSWER, "", self._answer(name, arguments))
        except Exception as error:
            _log.debug("exchange: '%s' failed", name, exc_info=True)
            ours = isinstance(error, RunError)
            text = str(error) if ours else f"{type(error).__name__}: {error}"
            return encode(Kind.TRANSIENT if may_mend(error) else Kind.ERROR, text, [])

    # -- calling

    def call(self, name: str, arguments: Mapping[int, Sequence[Array]]) -> dict[int, list[Array]]:
        """Call `name` at several owners at once and wait for all.

        This rank's own part is asked without a connection, while the others work.

        Args:
            name: As the owners serve it.
            arguments: By the number of the owner; arrays of bool, integers or floating point.

        Returns:
            By the number of the owner, in the order of `arguments`: new arrays; from the own part
            the very arrays of its answer.

        Raises:
            RunError: An owner has gone, does not answer within `timeout`, or has failed to answer.
        """
        asked: dict[int, Connection] = {}
        try:
            for owner, arrays in arguments.items():
                if owner != self.owner:
                    with self._naming(owner, name):
                        asked[owner] = self._take(owner)
                        sent = asked[owner].send(encode(Kind.CALL, name, arrays))
                        self._count(name, sent, 0)
            answers = {}
            if self.owner is not None and self.owner in arguments:
                answers[self.owner] = self._answer(name, list(arguments[self.owner]))
            for owner in self._in_order_of_arrival(asked, name):
                answers[owner] = self._receive(owner, asked[owner], name)
        except BaseException:
            for connection in asked.values():  # answers may be under way in them
                self._discard(connection)
            raise
        for owner, connection in asked.items():
            self._give_back(owner, connection)
        return {owner: answers[owner] for owner in arguments}

    def _in_order_of_arrival(self, asked: Mapping[int, Connection], name: str) -> Iterator[int]:
        deadline = time.monotonic() + self._timeout
        with selectors.PollSelector() as selector:
            for owner, connection in asked.items():
                selector.register(connection, selectors.EVENT_READ, owner)
            while selector.get_map():
                ready = selector.select(_SLICE_SECONDS)
                for key, _ in ready:
                    selector.unregister(key.fileobj)
                    yield key.data
                if not ready and time.monotonic() > deadline:
                    late = next(iter(selector.get_map().values())).data
                    with self._naming(late, name):
                        raise TimeoutError

    def _receive(self, owner: int, connection: Connection, name: str) -> list[Array]:
        with self._naming(owner, name):
            message = connection.receive()
        self._count(name, 0, message.num_bytes)
        if message.kind in (Kind.ERROR, Kind.TRANSIENT):
            kind = TransientError if message.kind == Kind.TRANSIENT else RunError
            raise kind(f"{self._words(owner)} failed to answer '{name}': {message.text}")
        return message.arrays

    @contextmanager
    def _naming(self, owner: int, name: str) -> Iterator[None]:
        """Raises RankLost with the owner's rank, machine and address for its lost connection."""
        rank = self._asked(self._context.rank, owner)
        try:
            yield
        except TimeoutError as error:
            raise RankLost(
                f"{self._words(owner)} has not answered '{name}' for {self._timeout:g} s.",
                "If it only needs more time, raise distributed.timeout.",
                ranks=[rank],
            ) from error
        except OSError as error:
            if self._is_closed:
                raise RunError(f"'{name}' was called while the exchange was closed.") from error
            reason = error.strerror or str(error)
            raise RankLost(
                f"{self._words(owner)} was lost during '{name}': {reason}.", ranks=[rank]
            ) from error

    def _words(self, owner: int, begin: str = "Rank") -> str:
        rank = self._asked(self._context.rank, owner)
        machine = self._context.machines[rank] if self._context.machines else 0
        host, port = self._addresses[rank]
        return f"{begin} {rank} on machine {machine} ({host}, port {port})"

    # -- connections

    def _take(self, owner: int) -> Connection:
        """A connection that no other thread uses."""
        with self._lock:
            if self._idle[owner]:
                return self._idle[owner].pop()
        rank = self._asked(self._context.rank, owner)
        connection = connect(self._addresses[rank], self._token, self._timeout)
        with self._lock:
            self._open.add(connection)
        if self._is_closed:
            connection.shut_down()
        return connection

    def _give_back(self, owner: int, connection: Connection) -> None:
        with self._lock:
            self._idle[owner].append(connection)
        if self._is_closed:
            self._discard(connection)

    def _discard(self, connection: Connection) -> None:
        with self._lock:
            self._open.discard(connection)
            connection.close()

    def _count(self, name: str, sent: int, received: int) -> None:
        with self._lock:
            before = self._bytes.get(name, (0, 0))
            self._bytes[name] = before[0] + sent, before[1] + received

    def take_bytes(self) -> dict[str, tuple[int, int]]:
        """Bytes sent and received by name since the last call, as caller and as owner."""
        with self._lock:
            taken, self._bytes = self._bytes, {}
        return taken

    def take_seconds(self) -> dict[str, float]:
        """Seconds in answers by name since the last call, summed over threads."""
        with self._lock:
            taken, self._seconds = self._seconds, {}
        return taken


@dataclass(slots=True)
class _Service:
    """A name that is served, and how many calls of it are being answered."""

    answer: Answer
    num_running: int = 0
