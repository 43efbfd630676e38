"""What the processes of a run tell each other without a collective: words of shared memory."""

from __future__ import annotations

import ctypes
import signal
from dataclasses import dataclass
from enum import IntEnum

from gnntrain.distributed.reports import Reports, shared_array

_STOP, _SAVE, _SETTLED, _ABANDONED, _NUM_WORDS = range(5)
_SIGNAL_BITS = 8


class Phase(IntEnum):
    """What a rank is doing."""

    STARTING = 0
    TRAINING = 1
    EVALUATING = 2
    CLOSING = 3


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank is.

    Attributes:
        phase: What it is doing.
        is_waiting: Whether it is in a collective, which needs the others.
        step: The step that it began last, from 1; 0 before.
    """

    phase: Phase
    is_waiting: bool
    step: int


class Board:
    """The wishes that signals bring, what was settled about them, and where each rank is.

    Every word is written whole, and what has to be agreed is settled by rank 0 alone: it writes
    after which step all act *before* it enters that step's gradient exchange, which no rank leaves
    before all have entered it. So the exchange itself carries the decision, without a collective
    of its own.

    Args:
        words: int64 words, shared by all processes of the run.
        reports: The ranks' errors.
    """

    def __init__(self, words: ctypes.Array[ctypes.c_int64], reports: Reports) -> None:
        self._words = words
        self.reports = reports
        self._world_size = (len(words) - _NUM_WORDS) // 2

    @classmethod
    def create(cls, world_size: int) -> Board:
        """An empty board for the ranks of a run."""
        words = shared_array(ctypes.c_int64, _NUM_WORDS + 2 * world_size, world_size)
        return cls(words, Reports.create(world_size))

    @property
    def stop_asked(self) -> int:
        """The signal that asks the run to end; 0: none."""
        return self._words[_STOP]

    def ask_stop(self, number: int) -> None:
        """Ask all ranks to save and end; the first signal counts."""
        if self._words[_STOP] == 0:
            self._words[_STOP] = number

    def ask_save(self) -> None:
        """Ask for a checkpoint."""
        self._words[_SAVE] = 1

    @property
    def abandoned(self) -> bool:
        """Whether the ranks should end where they are, without going on to a step's end."""
        return self._words[_ABANDONED] != 0

    def abandon(self) -> None:
        """Have the next signal end a rank where it is."""
        self._words[_ABANDONED] = 1

    def settle(self, step: int) -> None:
        """Let all ranks act after `step` on what was asked for; called by rank 0 alone."""
        stop = self._words[_STOP]
        if stop == 0 and self._words[_SAVE] == 0:
            return
        self._words[_SAVE] = 0
        self._words[_SETTLED] = step << _SIGNAL_BITS | (stop or signal.SIGUSR1)

    def settled(self, step: int) -> int:
        """The signal to act on after `step`: SIGUSR1 saves, others end the run; 0: none."""
        settled = self._words[_SETTLED]
        is_now = settled >> _SIGNAL_BITS == step
        return settled & ((1 << _SIGNAL_BITS) - 1) if is_now else 0

    def enter(self, rank: int, phase: Phase, step: int) -> None:
        """Note that a rank begins a step, or evaluates after it."""
        self._words[_NUM_WORDS + 2 * rank] = step << 2 | phase

    def wait(self, rank: int, is_waiting: bool) -> None:
        """Note that a rank enters a collective, or leaves it."""
        self._words[_NUM_WORDS + 2 * rank + 1] = is_waiting

    def place(self, rank: int) -> Place:
        """Where a rank is."""
        word, is_waiting = self._words[_NUM_WORDS + 2 * rank :][:2]
        return Place(Phase(word & 3), bool(is_waiting), word >> 2)

    def is_training(self) -> bool:
        """Whether all ranks have begun to train, so that a wish will be seen by all."""
        return all(self.place(rank).phase != Phase.STARTING for rank in range(self._world_size))

    def is_closing(self, rank: int) -> bool:
        """Whether a rank has left training and writes what it reached."""
        return self.place(rank).phase == Phase.CLOSING

    def is_alone(self) -> bool:
        """Whether the only rank runs in this process."""
        return self._world_size == 1

    def takes_signals(self) -> bool:
        """Whether somebody will see a wish: the parent of several ranks, or a rank that trains."""
        return not self.is_alone() or self.is_training()
