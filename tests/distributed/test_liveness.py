"""Ranks that go silent, simulated: looks and signs of life are made by hand."""

from __future__ import annotations

import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.distributed import liveness
from gnntrain.distributed.liveness import LOOK_SECONDS, Roster, Watch
from gnntrain.distributed.run_control import Phase, RunControl
from gnntrain.distributed.tcp_store import BoundedStore
from gnntrain.errors import Interrupted, RankLost, UserError
from tests.distributed.stores import FrozenStore, GoneStore, LateStore
from tests.examples import examples

ROSTER = Roster((0, 0, 1, 1), ("gnn1, 10.77.0.1", "gnn2, 10.77.0.2"))
TIMEOUT = 20.0
LOOKS = int(TIMEOUT / LOOK_SECONDS)

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/"
lost_connection = RuntimeError(f"{GLOO}pair.cc:537] Connection closed by peer [10.77.0.2]:38241")
timed_out = RuntimeError(
    f"{GLOO}unbound_buffer.cc:78] Timed out waiting 20000ms for recv operation to complete"
)


class Group:
    """Ranks over one store, of which some stop."""

    def __init__(self, roster: Roster = ROSTER) -> None:
        values: dict[str, bytes] = {}
        ranks = range(len(roster.machines))
        self.controls = [RunControl(LateStore(values), rank) for rank in ranks]
        self.watches = [Watch(control, roster, TIMEOUT) for control in self.controls]
        for control in self.controls:
            control.enter(Phase.TRAINING, 7)
        self.stopped: set[int] = set()

    def pass_time(self, looks: int = 1) -> None:
        for _ in range(looks):
            for rank, control in enumerate(self.controls):
                if rank not in self.stopped:
                    control.sync()
            for rank, watch in enumerate(self.watches):
                if rank not in self.stopped:
                    watch.look()


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    """Time passes when a rank sleeps."""
    made, now = Group(), 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        for rank in {0, 1, 2, 3} - made.stopped:
            made.controls[rank].sync()

    monkeypatch.setattr(liveness, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now))
    return made


def fail_in_collective(control: RunControl) -> None:
    with pytest.raises(ZeroDivisionError), control.waiting():
        raise ZeroDivisionError


def message(lost: Any) -> str:
    assert isinstance(lost, RankLost)
    return lost.message


def test_rank_0_notices_who_is_silent_for_the_whole_time_and_the_others_that_it_is(
    group: Group,
) -> None:
    group.pass_time(5)
    group.stopped = {2}
    group.pass_time(LOOKS)  # the last sign of life arrives late
    assert [watch.lost() for watch in group.watches] == [None] * 4
    group.pass_time(1)
    told = message(group.watches[0].lost())
    assert told.startswith("Rank 2 on machine 1 (gnn2, 10.77.0.2) has not answered for 20 s, since")
    assert "since step 7" in told
    assert group.watches[1].lost() is None
    group.stopped = {0}
    group.pass_time(LOOKS + 1)
    for watch in group.watches[1:]:
        assert message(watch.lost()).startswith("Rank 0 on machine 0 (gnn1, 10.77.0.1) has not")


def test_a_rank_that_was_itself_stopped_accuses_nobody(group: Group) -> None:
    group.pass_time(3)
    group.stopped = {0, 1, 2, 3}  # as by `scontrol suspend`
    group.pass_time(10 * LOOKS)
    group.stopped = set()
    group.pass_time(1)
    assert [watch.lost() for watch in group.watches] == [None] * 4


@pytest.mark.parametrize("observer", [0, 1, 3])
def test_a_lost_connection_is_explained_by_the_rank_that_went_silent(
    group: Group, observer: int
) -> None:
    group.pass_time(3)
    group.stopped = {2}
    fail_in_collective(group.controls[observer])
    told = message(group.watches[observer].cause(lost_connection))
    assert told.startswith("Rank 2 on machine 1 (gnn2, 10.77.0.2) has ended")


def test_a_time_out_is_explained_by_the_machine_that_does_not_answer(group: Group) -> None:
    group.pass_time(3)
    group.stopped = {2, 3}
    fail_in_collective(group.controls[1])
    told = message(group.watches[1].cause(timed_out))
    assert told.startswith("Ranks 2 and 3 on machine 1 (gnn2, 10.77.0.2) have not answered")


def test_a_time_out_while_all_live_is_explained_by_the_rank_that_does_not_wait(
    group: Group,
) -> None:
    for rank in (0, 1, 3):
        fail_in_collective(group.controls[rank])
    told = message(group.watches[1].cause(timed_out))
    assert told.startswith("Rank 2 on machine 1 (gnn2, 10.77.0.2) has not answered")


def test_what_a_rank_has_reported_is_the_cause_and_that_it_ended_no_loss(group: Group) -> None:
    group.controls[3].report_failure(UserError("the value 7 is wrong"))
    group.controls[3].enter(Phase.ENDED)
    group.stopped = {3}
    fail_in_collective(group.controls[0])
    assert isinstance(group.watches[0].cause(lost_connection), UserError)


def test_a_run_that_is_ended_beside_a_rank_that_was_killed_at_the_start_names_that_rank(
    group: Group,
) -> None:
    group.pass_time(3)
    group.stopped = {3}
    group.controls[2].request_stop(signal.SIGTERM)  # by torchrun
    group.pass_time(2)
    interrupted = Interrupted(signal.SIGTERM)
    assert group.watches[1].cause(interrupted) is None  # it has begun: all save and end
    for control in group.controls:
        control.enter(Phase.STARTING, 0)
    assert group.watches[2].cause(interrupted) is None
    assert message(group.watches[0].cause(interrupted)).startswith("Rank 3 on machine 1")


@pytest.mark.parametrize("error", [TimeoutError("timed out"), RuntimeError("read timed out")])
def test_an_error_that_speaks_of_a_time_out_accuses_nobody(group: Group, error: Exception) -> None:
    group.pass_time(3)
    with pytest.raises(type(error)), group.controls[1].waiting():
        raise error  # as by a user's module in the backward pass
    assert group.watches[1].cause(error) is None


@pytest.mark.parametrize(
    ("store", "words"), [(GoneStore(), "has ended"), (FrozenStore(), "has not answered")]
)
def test_a_store_that_is_lost_is_rank_0(store: Any, words: str) -> None:
    control = RunControl(BoundedStore(lambda: store, timeout=1), rank=2)
    watch = Watch(control, ROSTER, TIMEOUT)
    assert watch.lost() is None
    control.sync()
    told = message(watch.lost())
    assert told.startswith(f"Rank 0 on machine 0 (gnn1, 10.77.0.1) {words}")
    fail_in_collective(control)
    assert message(watch.cause(lost_connection)) == told


@examples(30)
@given(machines=st.lists(st.integers(1, 3), min_size=1, max_size=4), pick=st.data())
def test_exactly_the_ranks_that_stopped_and_did_not_end_are_named(
    machines: list[int], pick: Any
) -> None:
    of_rank = tuple(m for m, count in enumerate(machines) for _ in range(count))
    roster = Roster(of_rank, tuple(f"host{m}" for m in range(len(machines))))
    made = Group(roster)
    some = st.sets(st.sampled_from(range(len(of_rank))))
    stopped, ended = pick.draw(some) - {0}, pick.draw(some) - {0}
    made.pass_time(pick.draw(st.integers(1, 5)))
    for rank in ended:
        made.controls[rank].enter(Phase.ENDED)
        made.controls[rank].progress(rank)  # a late `set` has then arrived
    made.stopped = stopped | ended
    made.pass_time(LOOKS + 1)
    lost = made.watches[0].lost()
    assert (lost is None) == (not stopped - ended)
    if lost is not None:
        assert message(lost).lower().startswith(roster.named(sorted(stopped - ended)))


def test_a_script_that_goes_on_after_its_run_is_no_longer_watched() -> None:
    with Watch(RunControl()).running():
        [thread] = [one for one in threading.enumerate() if one.name == "gnntrain-watch"]
    assert not thread.is_alive()
