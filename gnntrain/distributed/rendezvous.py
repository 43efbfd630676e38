"""The meeting of the ranks that a launcher has started: over one store, in plain JSON.

(Not by collectives of a process group: a signal could not interrupt a process that waits in one,
and process 0 may take hours before it passes on the job, to build a graph's store.)
"""

from __future__ import annotations

import ipaddress
import itertools
import json
import logging
import math
import multiprocessing
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, NamedTuple

import torch.distributed as dist

from gnntrain import __version__, errors
from gnntrain.config import DistributedConfig
from gnntrain.distributed import run_control
from gnntrain.distributed.launchers import Launched, launched
from gnntrain.distributed.liveness import Roster, Watch
from gnntrain.distributed.signals import on_forced_exit
from gnntrain.distributed.tcp_store import BoundedStore, StoreAddress, own_address, serve_store
from gnntrain.errors import RankLost, UserError
from gnntrain.limits import container, core_numbers

_log = logging.getLogger("gnntrain")

_TIMEOUT = "distributed.timeout"
_NAME_SECONDS = 30.0  # a cluster may not know the name of a machine yet
_PATIENCE_SECONDS = 10.0  # whoever waits for longer says for whom
# A process that gives no sign of life for so long is lost; from the configuration on, it is
# distributed.timeout.
_START_SECONDS = 60.0
_LEAVE_SECONDS = 8.0
_CONNECT_SECONDS = 20.0
_LOOK_SECONDS = 0.1
# Of no machine (RFC 3849, RFC 5737): only the route to them is looked up.
_ELSEWHERE = ("2001:db8::1", "192.0.2.1")

_meeting: Rendezvous | None = None
_num_meetings = 0
_served: tuple[str, Any] | None = None  # the address and the store, while this process lives


class ProcessInfo(NamedTuple):
    """What each process tells the others."""

    name: str  # of its machine
    host: str  # the address from which it reaches the others
    local_rank: int
    cores: Sequence[int]  # that it may run on
    program: str  # the version of gnntrain and the command line, which all have in common


@contextmanager
def meeting(command: Sequence[str] | None = None) -> Iterator[Rendezvous | None]:
    """Meet the other processes that a launcher has started, by the `command` line that all have in
    common (None: a program of the user's); None: there are none.

    Within a meeting it yields that meeting. An exception inside ends all processes.

    Raises:
        UserError: As of `launched`; process 0 cannot listen at its address; or the processes were
            started with different command lines or versions.
        RankLost: Others cannot be reached, or have not come in time.
    """
    global _meeting, _num_meetings, _served
    # A child of ours, as a sweep's worker, has inherited the variables.
    found = launched() if multiprocessing.parent_process() is None else None
    if _meeting is not None or found is None:
        yield _meeting
        return
    # A pod or a task may begin minutes after another one. `distributed.timeout` as typed: no
    # process has composed a configuration yet, which will tell what is wrong with the value.
    seconds = DistributedConfig().timeout
    for text in command or ():
        if text.startswith(f"{_TIMEOUT}="):
            with suppress(ValueError):
                seconds = max(0.0, float(text.partition("=")[2])) or seconds
    deadline = time.monotonic() + seconds
    _num_meetings += 1
    address = _reach(found, deadline)
    if _served is not None:  # a name may have another address by now
        address = address._replace(host=_served[0])
    elif found.is_main and not found.has_store:
        try:
            store = serve_store(2 * found.num_processes, _CONNECT_SECONDS, address.host, found.port)
            _served = address.host, store
        except OSError as error:
            raise UserError(
                f"Process 0 cannot listen at MASTER_ADDR={found.address}, "
                f"MASTER_PORT={found.port}: {error.strerror or error}.",
                "Set MASTER_ADDR to an address of its machine, and MASTER_PORT to a free port, "
                "the same for all processes.",
            ) from error
    _meeting = rendezvous = Rendezvous(found, address, own_address(address.host))
    try:
        rendezvous.join(command, deadline)
        with on_forced_exit(rendezvous.mark), rendezvous.watch.running():
            yield rendezvous
    except BaseException as error:
        cause = rendezvous.control.cause_of(error)
        if isinstance(cause, dist.DistError):
            cause = RankLost(
                "Process 0, which leads the run, can no longer be reached at "
                f"{address.host} port {found.port}.",
                "Look at its output for the cause.",
                ranks=[0],
            )
        rendezvous.end_others(cause)
        if cause is error:
            raise
        cause.run_dir = getattr(error, "run_dir", None)  # type: ignore[attr-defined]
        raise cause from error
    finally:
        _meeting = None
        rendezvous.leave()


def _reach(found: Launched, deadline: float) -> StoreAddress:
    """Where process 0 serves the store, once it answers, and the prefix of this meeting's keys,
    which it chooses. A process 0 that will serve the store itself has only to know its own address.
    RankLost: it does not answer until `deadline`, or its name is not known.

    A launcher may start them again while the store of the start before is there: torchrun's
    outlives them, and process 0 may end later than others. So each process stores a request under
    a new random key; only a process 0 that still waits for the others answers it. (torchrun's count
    of restarts differs between machines.)
    """
    request, begin = uuid.uuid4().hex, time.monotonic()
    says_at = begin + _PATIENCE_SECONDS
    while True:
        ends, why = deadline, "it does not answer"
        try:
            known = socket.getaddrinfo(found.address, None, type=socket.SOCK_STREAM)
            # IPv4 if it has one, as gloo prefers.
            host = str(min(known, key=lambda one: one[0] != socket.AF_INET)[4][0])
            # Some systems give their own name a loopback address, which other machines cannot
            # reach: then another one of this machine. One that the launcher gave as a number is
            # meant.
            is_meant = found.is_on_one_machine or host == found.address
            if ipaddress.ip_address(host).is_loopback and not is_meant:
                for elsewhere in _ELSEWHERE:  # the last one counts
                    with suppress(OSError):  # this machine may have no route there
                        host = own_address(elsewhere)
            address = StoreAddress(host, found.port, f"gnntrain/{request}")
            if found.has_store or not found.is_main:
                socket.create_connection((host, found.port), _CONNECT_SECONDS).close()
            if found.is_main:
                return address
            # An error: that store has ended, as that of an earlier start does; or the port is
            # another program's.
            with suppress(dist.DistError), closing(_common(address)) as store:
                store.set(f"ask/{found.num_processes}/{found.process}", request)
                # Between two trainings of a program process 0 may do other things for long.
                while _num_meetings > 1 or time.monotonic() < deadline:
                    if answer := store.compare_set(f"answer/{request}", "", ""):
                        return address._replace(prefix=answer.decode())
                    time.sleep(_LOOK_SECONDS)
        except socket.gaierror as error:
            why, ends = error.strerror or str(error), min(deadline, begin + _NAME_SECONDS)
        except OSError as error:
            why = error.strerror or str(error)
        now, place = time.monotonic(), f"{found.address} port {found.port}"
        whom = "itself" if found.is_main and not found.has_store else "process 0"
        text = f"Process {found.process} cannot reach {whom} at {place}: {why}"
        if now > ends:
            raise RankLost(
                f"{text}.",
                "Look whether process 0 was started, whether this machine knows the name, whether "
                "another program listens at the port, and whether a firewall is between them.",
                ranks=[0],
            )
        if now > says_at:
            says_at = math.inf
            _log.warning("%s; it tries for %.0f s more.", text, ends - now)
        time.sleep(_LOOK_SECONDS)


def _common(address: StoreAddress) -> BoundedStore:
    """A client of the store beside the keys of one meeting: torchrun's store outlives it."""
    common = address._replace(prefix="gnntrain")
    return BoundedStore(lambda: common.connect(_CONNECT_SECONDS), _START_SECONDS)


class Rendezvous:
    """One process's view of the meeting: it publishes plain data under a key, as JSON, and others
    wait for the key. `address` is the store's; from `host` this machine reaches the others."""

    watch: Watch  # notices, once the processes have met, which other one fails or goes silent

    def __init__(self, launched: Launched, address: StoreAddress, host: str) -> None:
        self.launched, self.address, self.host = launched, address, host
        self.is_main, self.is_machine_main = launched.is_main, not launched.local_rank
        self._store = BoundedStore(lambda: address.connect(_CONNECT_SECONDS), _START_SECONDS)
        self._common = _common(address)
        self.control = run_control.RunControl(self._store, launched.process)
        self.processes: list[ProcessInfo] = []
        self.machines: tuple[int, ...] = ()  # of each process, from 0
        self.hosts: tuple[str, ...] = ()  # name and address of each machine

    @property
    def machine(self) -> int:
        return self.machines[self.launched.process]

    @property
    def cores(self) -> int:
        """Cores for this process: its share of those that others of its machine may use too."""
        processes = zip(self.processes, self.machines, strict=True)
        here = [one.cores for one, machine in processes if machine == self.machine]
        own = self.processes[self.launched.process].cores
        quota = (container().cores or math.inf) / len(here)
        return max(1, int(min(len(own) // here.count(own), quota)))

    def join(self, command: Sequence[str] | None, deadline: float) -> None:
        """Meet the other processes, which may come until the deadline, of `time.monotonic`. Raises
        as of `meeting`; and what has failed before, where torchrun tries again in vain."""
        program = f"gnntrain {__version__}"
        if command is not None:
            program += f", started with `{' '.join(command)}`"
        name, local_rank = socket.gethostname(), self.launched.local_rank or 0
        info = ProcessInfo(name, self.host, local_rank, core_numbers(), program)
        self.processes = [ProcessInfo(*one) for one in self.gather("info", info, deadline)]
        # A new machine begins with each local rank 0.
        firsts = itertools.accumulate(not one.local_rank for one in self.processes)
        self.machines = tuple(count - 1 for count in firsts)
        by_machine = dict(zip(self.machines, self.processes, strict=True))
        self.hosts = tuple(f"{one.name}, {one.host}" for one in by_machine.values())
        self.watch = Watch(self.control, Roster(self.machines, self.hosts), _START_SECONDS)
        if not self.is_main:
            return
        for number, one in enumerate(self.processes):
            if one.program != program:
                raise UserError(
                    f"Process {number} ({one.host}) runs {one.program}; process 0 runs {program}.",
                    "Start the same command line of the same version on all machines.",
                )
        if text := self._common.compare_set(f"failed/{_num_meetings}", "", ""):  # see `end_others`
            raise run_control.decoded(text.decode())

    def wait_at_most(self, timeout: float) -> None:
        """Set how long the others may give no sign of life."""
        self._store.timeout = self._common.timeout = self.watch.timeout = timeout

    def publish(self, key: str, value: Any) -> None:
        """Give plain data to all processes that `wait_for` the key."""
        self._store.set(key, json.dumps(value))

    def wait_for(self, key: str) -> Any:
        """Wait for what a process tells. Raises another one's failure; or `Interrupted`."""
        return self._wait_for([key])[0]

    def gather(self, key: str, value: Any, deadline: float | None = None) -> list[Any]:
        """Every process's plain `value` on all, in their order. Process 0 raises RankLost where it
        has not got all until the deadline."""
        self.publish(f"{key}/{self.launched.process}", value)
        keys = [f"{key}/{process}" for process in range(self.launched.num_processes)]
        return self._wait_for(keys, deadline if self.is_main else None)

    def _wait_for(self, keys: Sequence[str], deadline: float | None = None) -> list[Any]:
        """The values of the keys; with a deadline, of what each process tells."""
        values: dict[str, Any] = {}
        answered: set[bytes] = set()
        says_at = time.monotonic() + _PATIENCE_SECONDS
        place = f"{self.address.host} port {self.address.port}"
        while True:
            for key in keys:
                if key not in values and (text := self._store.compare_set(key, "", "")):
                    values[key] = json.loads(text)
            if len(values) == len(keys):
                return [values[key] for key in keys]
            self.control.sync()
            if (failure := self.control.first_failure()) is not None:
                raise failure
            if self.control.stop_requested:
                raise errors.Interrupted(self.control.stop_requested)
            time.sleep(_LOOK_SECONDS)
            if deadline is None:
                continue
            for process in range(1, len(keys)):  # see `_reach`
                request = self._common.compare_set(f"ask/{len(keys)}/{process}", "", "")
                if request and request not in answered:
                    self._common.set(f"answer/{request.decode()}", self.address.prefix)
                    answered.add(request)
            left = deadline - time.monotonic()
            missing = [i for i, key in enumerate(keys) if key not in values]
            listed = ", ".join(map(str, missing[:8])) + ", …" * (len(missing) > 8)
            if left < 0:
                raise RankLost(
                    f"Of {len(keys)} processes that {self.launched.launcher} starts, "
                    f"{len(missing)} have not come to {place}: {listed}.",
                    "Look at their output, and whether a firewall is between the machines.",
                    missing,
                )
            if deadline - left > says_at:
                says_at = math.inf
                text = "Waiting at %s for process %s of %d, for at most %.0f s more (%s)."
                _log.warning(text, place, listed, len(keys), left, _TIMEOUT)

    def job_name(self) -> str | None:
        """A name for what torchrun has started, which it keeps when it starts the ranks again; for
        process 0. None: torchrun serves no store that would outlive them."""
        if not self.launched.has_store:
            return None
        return str(self._common.compare_set("job", "", uuid.uuid4().hex).decode())

    def end_others(self, error: BaseException) -> None:
        """Have all processes end with this error, which process 0 tells the user."""
        control = self.control
        if isinstance(error, Exception):
            control.report_failure(error)
            # torchrun starts the ranks again after any failure. After what would only happen again
            # they then end with this one at once.
            first = control.first_failure()
            if self.launched.has_store and first is not None and not errors.may_mend(first):
                with suppress(dist.DistError):
                    text = run_control.encoded(first, control.rank)
                    self._common.compare_set(f"failed/{_num_meetings}", "", text)
        elif isinstance(error, KeyboardInterrupt):
            control.request_stop(errors.signal_of(error))
        control.is_abandoned = True
        control.sync()
        self.mark(error)

    def mark(self, error: BaseException) -> None:
        """Have torchrun's summary show an error, and mark one that another process tells the user:
        process 0 tells those of all."""
        if isinstance(error, Exception):
            from torch.distributed.elastic.multiprocessing.errors import get_error_handler

            with suppress(OSError):  # the same is on stderr
                get_error_handler().record_exception(error)
        is_alone = isinstance(error, RankLost) and 0 in error.ranks and self.is_machine_main
        if not (self.is_main or is_alone):
            error.is_told = True  # type: ignore[attr-defined]

    def leave(self) -> None:
        """Let go of the store. Process 0, if it serves it, waits for the others to do so."""
        control = self.control
        with suppress(dist.DistError):
            if control.lost_store is None:
                lost = getattr(control.first_failure(), "ranks", ())
                serves = self.is_main and not self.launched.has_store
                awaited = (self.launched.num_processes - len(lost)) * serves
                deadline = time.monotonic() + _LEAVE_SECONDS
                self._store.add("left", 1)
                while self._store.add("left", 0) < awaited and time.monotonic() < deadline:
                    time.sleep(_LOOK_SECONDS)
        control.close()
        self._store.close()
        self._common.close()
