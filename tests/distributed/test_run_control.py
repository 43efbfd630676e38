"""Over a store that carries out `set` late."""

from __future__ import annotations

import signal

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.distributed.run_control import CollectiveTimeout, RunControl
from gnntrain.errors import Diverged, GnntrainError, RunError, TransientError, UserError
from tests.distributed.stores import LateStore
from tests.examples import examples


def fail(control: RunControl, error: BaseException) -> None:
    try:
        raise error
    except type(error):
        control.report_failure(error)


@pytest.mark.parametrize("kind", [UserError, Diverged])
def test_the_first_error_of_the_first_rank_counts(kind: type[GnntrainError]) -> None:
    values: dict[str, bytes] = {}
    controls = [RunControl(LateStore(values), rank) for rank in (None, 0, 2)]
    parent, main, other = controls
    assert parent.first_failure() is None
    fail(other, kind("no such file", "Look for it."))
    fail(main, RuntimeError("closed by peer"))
    fail(other, ValueError("while it ended"))
    for control in controls:
        cause = control.first_failure()
        assert type(cause) is kind
        assert (cause.message, cause.hint) == ("no such file", "Look for it.")
        assert "Traceback" in cause.__notes__[0]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("[gloo/transport/tcp/buffer.cc:78] Timed out waiting"), CollectiveTimeout),
        (RuntimeError("Application timeout caused pair closure"), CollectiveTimeout),
        (dist.DistBackendError("Watchdog caught collective operation timeout"), CollectiveTimeout),
        (dist.DistStoreError("wait timeout after 5000ms, keys: /a"), CollectiveTimeout),
        (RuntimeError("[gloo/transport/tcp/pair.cc:537] Connection closed"), TransientError),
        (TimeoutError("timed out"), TransientError),
        (RuntimeError("the feature service timed out"), RunError),
        (torch.OutOfMemoryError("CUDA out of memory."), RunError),
    ],
)
def test_a_rank_that_waited_in_vain_is_told_from_one_that_failed(
    error: Exception, kind: type[RunError]
) -> None:
    control = RunControl()
    fail(control, error)
    assert type(control.first_failure()) is kind


class SimulatedRank:
    """Takes steps as the trainer does, one event at a time."""

    def __init__(self, rank: int, control: RunControl) -> None:
        self.rank, self.control = rank, control
        self.step, self.has_entered = 1, False
        self.stopped_after: int | None = None
        self.saved: list[int] = []

    def may_move(self, ranks: list[SimulatedRank]) -> bool:
        """Whether it runs, and is not in an exchange that another rank has yet to enter."""
        entered = [rank.step + rank.has_entered for rank in ranks]
        return self.stopped_after is None and (not self.has_entered or min(entered) > self.step)

    def move(self) -> None:
        if not self.has_entered:
            if self.rank == 0:
                self.control.commit(self.step)
            self.has_entered = True
            return
        if number := self.control.agreed(self.step):
            self.saved.append(self.step)
            if number != signal.SIGUSR1:
                self.stopped_after = self.step
        self.has_entered = False
        self.step += 1


@examples(50)
@given(
    world_size=st.integers(1, 4),
    turns=st.lists(st.integers(0, 10**6), min_size=200, max_size=200),
    stop_at=st.integers(0, 60),
    save_at=st.integers(0, 60),
    told=st.integers(0, 4),
)
def test_ranks_that_are_a_step_apart_stop_and_save_after_the_same_step(
    world_size: int, turns: list[int], stop_at: int, save_at: int, told: int
) -> None:
    """Over a store that carries out `set` late; each process syncs at times of its own."""
    values: dict[str, bytes] = {}
    parent = RunControl(LateStore(values), rank=None)
    controls = [RunControl(LateStore(values), rank) for rank in range(world_size)]
    ranks = [SimulatedRank(i, control) for i, control in enumerate(controls)]
    processes = [parent, *controls]
    step_when_known: int | None = None
    for time, turn in enumerate(turns):
        if time == stop_at:
            processes[told % len(processes)].request_stop(signal.SIGINT)
        if time == save_at:
            processes[(told + turn) % len(processes)].request_save()
        # In the end, all know of the request.
        for process in processes if time > 150 else [processes[turn // 7 % len(processes)]]:
            process.sync()
        if step_when_known is None and controls[0].stop_requested:
            step_when_known = max(rank.step for rank in ranks)
        able = [rank for rank in ranks if rank.may_move(ranks)]
        # To save, all hand rank 0 their part: nobody goes on before.
        waiting = [rank for rank in able if len(rank.saved) < max(len(r.saved) for r in ranks)]
        if able:
            (waiting or able)[turn % len(waiting or able)].move()
    stopped = {rank.stopped_after for rank in ranks}
    assert len(stopped) == 1
    step = stopped.pop()
    assert step is not None
    assert step_when_known is not None
    assert step_when_known <= step <= step_when_known + 1
    assert len({tuple(rank.saved) for rank in ranks}) == 1
