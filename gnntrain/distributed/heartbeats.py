"""Finds the ranks that no longer give a sign of life, and names them with their machines."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

from gnntrain.distributed.run_control import (
    SYNC_SECONDS,
    Member,
    Phase,
    Progress,
    RunControl,
    StoreTimeout,
    is_timeout,
    process_name,
)
from gnntrain.errors import GnntrainError, RankLost

# Seconds between two looks at the other ranks' beats.
LOOK_SECONDS = 1.0
# A rank that has failed by a lost connection looks this long for the rank that caused it, ...
OBSERVE_SECONDS = 6.0
# ... which is one that gives no sign of life for so long. A rank that computes without releasing
# Python's lock may miss some beats.
_SILENT_SECONDS = 4.0

_HINT = (
    "A process is stopped or hangs, or a machine or the network between them has gone. Raise "
    "distributed.timeout if a step may take longer."
)
_ENDED_HINT = (
    "If the system killed it for want of memory, lower trainer.batch_size or sampler.fan_outs. Its "
    "log is logs/rank_{rank}.log in the run directory."
)


@dataclass(frozen=True, slots=True)
class Roster:
    """The machines of a run.

    Attributes:
        machines: The number of each rank's machine, ascending from 0.
        hosts: Name and address of each machine, as in "gnn2, 10.77.0.2".
        of_machines: Whether its members are not ranks, but the one process that a launcher has
            started on each machine.
        ranks: With `of_machines` the ranks that each member starts; empty: not known yet.
    """

    machines: tuple[int, ...]
    hosts: tuple[str, ...]
    of_machines: bool = False
    ranks: tuple[range, ...] = ()

    def member(self, number: int) -> Member:
        """The name by which `RunControl` knows a member."""
        return process_name(number) if self.of_machines else number

    def named(self, numbers: Sequence[int]) -> str:
        """The members with their machines: "rank 3 on machine 1 (gnn2, 10.77.0.2)"."""
        groups = itertools.groupby(sorted(numbers), key=lambda number: self.machines[number])
        return " and ".join(
            self._ranks_in_words(list(group)) + f"machine {machine} ({self.hosts[machine]})"
            for machine, group in groups
        )

    def count(self, numbers: Sequence[int]) -> int:
        """How many ranks, or machines whose ranks are not known, `named` names."""
        return sum(len(self.ranks[number]) for number in numbers) if self.ranks else len(numbers)

    def _ranks_in_words(self, numbers: Sequence[int]) -> str:
        if self.of_machines:
            numbers = [rank for number in numbers if self.ranks for rank in self.ranks[number]]
        return f"{_listed(numbers)} on " if numbers else ""


class HeartbeatMonitor:
    """One rank's view of which ranks live, by the beats that they publish.

    Rank 0 watches all, the others watch rank 0; a rank that has lost a connection watches all.

    Args:
        control: Of this rank.
        roster: The machines of the run.
        timeout: Seconds after which a silent rank is lost.
        number: Of this rank, or this machine, in the roster.

    Attributes:
        roster: As given; may be replaced when more is known.
        timeout: As given; may be changed.
    """

    def __init__(
        self, control: RunControl, roster: Roster, timeout: float, number: int | None = None
    ) -> None:
        self._control = control
        self.roster = roster
        self.timeout = timeout
        self._number = control.rank if number is None else number
        self._watches_all = self._number == 0
        self._beats = [-1] * len(roster.machines)
        self._silence = [0.0] * len(roster.machines)

    def look(self) -> None:
        """Read the beats; called every `LOOK_SECONDS`."""
        for rank in range(len(self._beats) if self._watches_all else 1):
            beat = self._control.beat(self.roster.member(rank))
            is_same = beat == self._beats[rank] and rank != self._number
            # Time counts in looks: a process that was itself stopped accuses nobody.
            self._silence[rank] = is_same * (self._silence[rank] + LOOK_SECONDS)
            self._beats[rank] = beat

    def lost(self) -> RankLost | None:
        """The ranks from which nothing has come for `timeout` seconds; None: there is none.

        Raises nothing, and does not wait for a store that does not answer.
        """
        if self._control.lost_store is not None:
            return self._without_store()
        silent = self._silent(self.timeout)
        return self._unanswered(silent) if silent else None

    def cause(self, error: BaseException) -> GnntrainError | None:
        """The failure of another rank behind `error`. After a lost connection, looks for some
        seconds which rank is silent.

        Called while another thread calls `look`.

        Returns:
            What another rank has reported; or the ranks that are silent; None: all live.
        """
        if self._control.lost_store is not None:
            return self._without_store()
        if not self._may_be_anothers(error):
            return self._control.first_failure()
        self._watches_all = True
        deadline = time.monotonic() + OBSERVE_SECONDS
        while time.monotonic() < deadline and self._control.lost_store is None:
            time.sleep(SYNC_SECONDS)
            if (failure := self._control.first_failure()) is not None:
                return failure
        if self._control.lost_store is not None:
            return self._without_store()
        # The exchange tells a time-out as a RankLost.
        late_answer = isinstance(error, RankLost) and isinstance(error.__cause__, TimeoutError)
        in_vain = is_timeout(error) or late_answer
        if silent := self._silent(_SILENT_SECONDS):
            return self._unanswered(silent) if in_vain else self._ended(silent)
        return self._hanging() if is_timeout(error) else None

    def _may_be_anothers(self, error: BaseException) -> bool:
        control = self._control
        if isinstance(error, KeyboardInterrupt):
            # torchrun ends the ranks beside one that was killed: they ask the whole run to end.
            has_begun = control.is_supervising or not control.is_starting
            return control.is_stopped_elsewhere and not has_begun
        return control.failed_waiting or isinstance(error, RankLost)

    def _silent(self, seconds: float) -> list[int]:
        silent = [rank for rank, silence in enumerate(self._silence) if silence >= seconds]
        return [rank for rank in silent if self._progress(rank).phase != Phase.ENDED]

    def _progress(self, number: int) -> Progress:
        return self._control.progress(self.roster.member(number))

    def _hanging(self) -> RankLost | None:
        """The ranks for which others wait though they give signs of life."""
        ranks = range(len(self._beats))
        computing = [rank for rank in ranks if not self._progress(rank).is_waiting]
        return self._unanswered(computing) if 0 < len(computing) < len(ranks) else None

    def _without_store(self) -> RankLost:
        """Rank 0 serves the store."""
        is_silent = isinstance(self._control.lost_store, StoreTimeout)
        return self._unanswered([0]) if is_silent else self._ended([0])

    def _unanswered(self, ranks: Sequence[int]) -> RankLost:
        have = "has" if self.roster.count(ranks) == 1 else "have"
        return RankLost(
            f"{_capitalized(self.roster.named(ranks))} {have} not answered for "
            f"{self.timeout:g} s{self._where('since', ranks)}.",
            _HINT,
            ranks,
        )

    def _ended(self, ranks: Sequence[int]) -> RankLost:
        have = "has" if self.roster.count(ranks) == 1 else "have"
        return RankLost(
            f"{_capitalized(self.roster.named(ranks))} {have} ended without a word"
            f"{self._where('after', ranks)}.",
            None if self.roster.of_machines else _ENDED_HINT.format(rank=ranks[0]),
            ranks,
        )

    def _where(self, word: str, ranks: Sequence[int]) -> str:
        """Where the first of them was; nothing if the store has gone."""
        if self.roster.of_machines or self._control.lost_store is not None:
            return ""
        return f", {word} {where(self._progress(ranks[0]))}"


def where(place: Progress) -> str:
    """Where a rank is, for a sentence."""
    if place.phase == Phase.STARTING:
        return "its start"
    evaluation = "the evaluation after " if place.phase == Phase.EVALUATING else ""
    return f"{evaluation}step {place.step}"


def _listed(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _capitalized(text: str) -> str:
    return text[0].upper() + text[1:]
