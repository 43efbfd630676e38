from __future__ import annotations

import signal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnntrain.distributed.board import Board, Phase, Place
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import Interrupted
from gnntrain.training.wishes import Wishes


def test_the_first_signal_counts() -> None:
    board = Board.create(1)
    assert board.stop_asked == 0
    board.ask_stop(signal.SIGTERM)
    board.ask_stop(signal.SIGINT)
    assert board.stop_asked == signal.SIGTERM


def test_a_checkpoint_is_settled_for_one_step_and_once() -> None:
    board = Board.create(1)
    board.ask_save()
    board.settle(7)
    assert [board.settled(step) for step in (6, 7, 8)] == [0, signal.SIGUSR1, 0]
    board.settle(8)
    assert board.settled(8) == 0


def test_a_stop_goes_before_a_checkpoint() -> None:
    board = Board.create(1)
    board.ask_save()
    board.ask_stop(signal.SIGHUP)
    board.settle(10**12)
    assert board.settled(10**12) == signal.SIGHUP


def test_everyone_sees_where_a_rank_is() -> None:
    board = Board.create(3)
    assert not board.is_training()
    for rank in range(3):
        board.enter(rank, Phase.TRAINING, 12)
    board.wait(1, True)
    board.enter(2, Phase.EVALUATING, 13)
    assert board.is_training()
    assert board.place(1) == Place(Phase.TRAINING, True, 12)
    assert board.place(2) == Place(Phase.EVALUATING, False, 13)


class SimulatedRank:
    """Takes steps as the trainer does, one event at a time."""

    def __init__(self, rank: int, world_size: int, board: Board) -> None:
        context = DistributedContext(rank, world_size, board=board)
        self.wishes = Wishes(context, ())
        self.step, self.has_entered = 1, False
        self.stopped_after: int | None = None
        self.saved: list[int] = []

    def may_move(self, ranks: list[SimulatedRank]) -> bool:
        """Whether it runs, and is not in an exchange that another rank has yet to enter."""
        entered = [rank.step + rank.has_entered for rank in ranks]
        return self.stopped_after is None and (not self.has_entered or min(entered) > self.step)

    def move(self) -> None:
        if not self.has_entered:
            self.wishes.settle(self.step)
            self.has_entered = True
            return
        number = self.wishes.after(self.step)
        if number == signal.SIGUSR1:
            self.saved.append(self.step)
        elif number:
            self.stopped_after = self.step
        self.has_entered = False
        self.step += 1


@settings(max_examples=50, deadline=None)
@given(
    world_size=st.integers(1, 4),
    turns=st.lists(st.integers(0, 10**6), min_size=150, max_size=150),
    asked_at=st.integers(0, 60),
    saves_at=st.integers(0, 60),
)
def test_ranks_that_are_a_step_apart_stop_and_save_after_the_same_step(
    world_size: int, turns: list[int], asked_at: int, saves_at: int
) -> None:
    board = Board.create(world_size)
    ranks = [SimulatedRank(rank, world_size, board) for rank in range(world_size)]
    begun = 0
    for time, turn in enumerate(turns):
        if time == asked_at:
            board.ask_stop(signal.SIGINT)
            begun = max(rank.step for rank in ranks)
        if time == saves_at:
            board.ask_save()
        able = [rank for rank in ranks if rank.may_move(ranks)]
        # To save, all hand rank 0 their part: nobody goes on before.
        waiting = [rank for rank in able if len(rank.saved) < max(len(r.saved) for r in ranks)]
        if able:
            (waiting or able)[turn % len(waiting or able)].move()
    stopped = {rank.stopped_after for rank in ranks}
    assert len(stopped) == 1
    step = stopped.pop()
    assert step is not None
    assert begun <= step <= begun + 1
    assert len({tuple(rank.saved) for rank in ranks}) == 1


def test_ending_is_raised_and_saving_is_told() -> None:
    wishes = Wishes(DistributedContext(), ())
    wishes.answer(signal.SIGUSR1, 3)
    with pytest.raises(Interrupted) as caught:
        wishes.answer(signal.SIGHUP, 3)
    assert caught.value.number == signal.SIGHUP
