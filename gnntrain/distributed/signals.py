"""Signals: what ends a command in order, what ends it at once, what only saves."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from gnntrain.errors import GnntrainError, Interrupted

if TYPE_CHECKING:
    from gnntrain.distributed.board import Board

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HANDLED = (*ENDING, signal.SIGUSR1)

# Seconds from the first signal in which a run may come to the end of its step, ...
STEP_SECONDS = 10.0
# ... and in which it has ended, whatever it does.
LAST_SECONDS = 18.0
_LAST_SECONDS_AT_ONCE = 2.0
# Programs that start others (timeout, uv run) hand on what the terminal has told all already.
_ONE_SIGNAL_SECONDS = 0.2


@contextmanager
def handled() -> Iterator[None]:
    """Answer signals meanwhile; inside another `handled`, and in other threads, nothing changes.

    The first SIGINT, SIGTERM or SIGHUP is raised as `Interrupted`, or within `passed_on` noted
    for the ranks. A second SIGINT is raised at once; more of the others are ignored, since a
    scheduler may send many. Whatever the process does, it ends 18 s after the first, and 2 s
    after a second SIGINT. What it was started to ignore (as by nohup) it goes on to ignore.
    Where a library swallows what was raised (as some do while they are imported), the failure
    that this leads to is raised as the `Interrupted` that it is.
    """
    global _active
    if _active is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    _active = _Answers()
    previous = {n: signal.signal(n, _active.answer) for n in HANDLED if not _is_ignored(n)}
    try:
        yield
    except Exception as error:
        if _active.raised is None or isinstance(error, GnntrainError):
            raise
        raise Interrupted(_active.raised) from error
    finally:
        _active.over.set()
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        _active = None


@contextmanager
def passed_on(board: Board) -> Iterator[None]:
    """Note the first signal that ends a run on `board`, for the ranks to stop after a step, and
    SIGUSR1 as the wish for a checkpoint."""
    with handled():
        if _active is None:
            yield
            return
        if _active.raised is not None:
            raise Interrupted(_active.raised)  # it was swallowed
        _active.board = board
        try:
            yield
        finally:
            _active.board = None


@contextmanager
def last_words(say: Callable[[int], None]) -> Iterator[None]:
    """Have `say(signal number)` called where the process has to be ended in the middle of it."""
    with handled():
        if _active is None:
            yield
            return
        _active.say = say
        try:
            yield
        finally:
            _active.say = None


class _Answers:
    """What one command does about signals."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.board: Board | None = None
        self.say: Callable[[int], None] | None = None
        self.raised: int | None = None
        self._first = 0
        self._latest = self._ends_by = 0.0
        self._is_impatient = False
        self._is_at_once = False

    def answer(self, number: int, _frame: object) -> None:
        if number == signal.SIGUSR1:
            if self.board is not None:
                self.board.ask_save()
        elif self._first == 0:
            self._first, self._latest = number, time.monotonic()
            self._ends_by = self._latest + LAST_SECONDS
            threading.Thread(target=self._see_to_the_end, daemon=True).start()
            if self.board is not None:
                self.board.ask_stop(number)
            if self.board is None or not self.board.takes_signals():
                self.raised = number
                raise Interrupted(number)
        elif self._is_impatient:
            self._is_impatient = False
            raise Interrupted(self._first)
        elif number == signal.SIGINT and not self._is_at_once:
            self._answer_again()

    def _answer_again(self) -> None:
        now = time.monotonic()
        if now - self._latest > _ONE_SIGNAL_SECONDS:
            self._is_at_once = True
            self._ends_by = now + _LAST_SECONDS_AT_ONCE
            raise Interrupted(self._first)

    def _see_to_the_end(self) -> None:
        """End a process that does not come to an end; only a thread can, while it computes."""
        impatient_at = time.monotonic() + STEP_SECONDS
        while not self.over.wait(0.1):
            now = time.monotonic()
            if now >= self._ends_by:
                self._end()
            if now >= impatient_at:
                impatient_at = self._ends_by
                self._urge()

    def _urge(self) -> None:
        """Have a rank in this process end where it is, unless it writes what it reached."""
        board = self.board
        if board is not None and board.is_alone() and not board.is_closing(0):
            self._is_impatient = True
            os.kill(os.getpid(), signal.SIGTERM)

    def _end(self) -> None:
        import multiprocessing

        for rank in multiprocessing.active_children():
            rank.kill()
        if self.say is not None:
            with suppress(Exception):  # nobody could be told
                self.say(self._first)
        os._exit(128 + self._first)


_active: _Answers | None = None


def _is_ignored(number: int) -> bool:
    return signal.getsignal(number) == signal.SIG_IGN


@contextmanager
def held_back() -> Iterator[None]:
    """Signals wait meanwhile; a process that is started leaves them waiting until it listens."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def listen_in_rank(board: Board, rank: int) -> None:
    """Have a rank note on the board what it is told: a terminal or a scheduler tells all processes
    of a run. Only where the run is abandoned does a signal end the rank where it is, unless it
    writes what it reached."""

    def answer(number: int, _frame: object) -> None:
        if number == signal.SIGUSR1:
            board.ask_save()
        elif not board.abandoned or board.is_closing(rank):
            board.ask_stop(number)
        else:
            for ending in ENDING:
                signal.signal(ending, signal.SIG_IGN)
            raise Interrupted(number)

    for number in HANDLED:
        if not _is_ignored(number):
            signal.signal(number, answer)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    threading.Thread(target=_end_with_parent, args=(board,), daemon=True).start()


def _end_with_parent(board: Board) -> None:
    """No rank outlives the process that started it: it saves and ends, or is ended."""
    import multiprocessing

    parent = multiprocessing.parent_process()
    if parent is None:
        return
    parent.join()
    board.ask_stop(signal.SIGTERM)
    if board.is_training():
        time.sleep(STEP_SECONDS)
    board.abandon()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LAST_SECONDS - STEP_SECONDS)
    os._exit(1)
