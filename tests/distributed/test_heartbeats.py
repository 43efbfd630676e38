"""Ranks that go silent, simulated: looks and beats are made by hand."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.distributed.bounded_store import BoundedStore
from gnntrain.distributed.heartbeats import LOOK_SECONDS, HeartbeatMonitor, Roster
from gnntrain.distributed.run_control import Phase, RunControl
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
        self.monitors = [HeartbeatMonitor(control, roster, TIMEOUT) for control in self.controls]
        for control in self.controls:
            control.enter(Phase.TRAINING, 7)
        self.stopped: set[int] = set()

    def pass_time(self, looks: int = 1) -> None:
        for _ in range(looks):
            for rank, control in enumerate(self.controls):
                if rank not in self.stopped:
                    control.sync()
            for rank, monitor in enumerate(self.monitors):
                if rank not in self.stopped:
                    monitor.look()


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    """Time passes when a rank sleeps."""
    made, now = Group(), 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        made.pass_time()

    monkeypatch.setattr("gnntrain.distributed.heartbeats.time.sleep", sleep)
    monkeypatch.setattr("gnntrain.distributed.heartbeats.time.monotonic", lambda: now)
    return made


def fail_in_collective(control: RunControl) -> None:
    with pytest.raises(ZeroDivisionError), control.waiting():
        raise ZeroDivisionError


def message(lost: Any) -> str:
    assert isinstance(lost, RankLost)
    return lost.message


@pytest.mark.parametrize(
    ("ranks", "named"),
    [
        ([3], "rank 3 on machine 1 (gnn2, 10.77.0.2)"),
        ([2, 3], "ranks 2 and 3 on machine 1 (gnn2, 10.77.0.2)"),
        (
            [1, 2],
            "rank 1 on machine 0 (gnn1, 10.77.0.1) and rank 2 on machine 1 (gnn2, 10.77.0.2)",
        ),
    ],
)
def test_ranks_are_named_with_their_machines(ranks: list[int], named: str) -> None:
    assert ROSTER.named(ranks) == named


def test_rank_0_notices_who_is_silent_for_the_whole_time_and_the_others_that_it_is(
    group: Group,
) -> None:
    group.pass_time(5)
    group.stopped = {2}
    group.pass_time(LOOKS - 1)
    assert [call.lost() for call in group.monitors] == [None] * 4
    group.pass_time(1)
    assert "Rank 2 on machine 1 (gnn2, 10.77.0.2) has not answered" in message(
        group.monitors[0].lost()
    )
    assert "since step 7" in message(group.monitors[0].lost())
    assert group.monitors[1].lost() is None
    group.stopped = {0}
    group.pass_time(LOOKS + 1)
    assert [message(call.lost()).split(" has")[0] for call in group.monitors[1:]] == [
        "Rank 0 on machine 0 (gnn1, 10.77.0.1)"
    ] * 3


def test_a_rank_that_was_itself_stopped_accuses_nobody(group: Group) -> None:
    group.pass_time(3)
    group.stopped = {0, 1, 2, 3}  # as by `scontrol suspend`
    group.pass_time(10 * LOOKS)
    group.stopped = set()
    group.pass_time(1)
    assert [call.lost() for call in group.monitors] == [None] * 4


@pytest.mark.parametrize("observer", [0, 1, 3])
def test_a_lost_connection_is_explained_by_the_rank_that_went_silent(
    group: Group, observer: int
) -> None:
    group.pass_time(3)
    group.stopped = {2}
    fail_in_collective(group.controls[observer])
    told = message(group.monitors[observer].cause(lost_connection))
    assert told.startswith("Rank 2 on machine 1 (gnn2, 10.77.0.2) has ended")


def test_a_time_out_is_explained_by_the_machine_that_does_not_answer(group: Group) -> None:
    group.pass_time(3)
    group.stopped = {2, 3}
    fail_in_collective(group.controls[1])
    told = message(group.monitors[1].cause(timed_out))
    assert told.startswith("Ranks 2 and 3 on machine 1 (gnn2, 10.77.0.2) have not answered")


def test_a_time_out_while_all_live_is_explained_by_the_rank_that_does_not_wait(
    group: Group,
) -> None:
    for rank in (0, 1, 3):
        fail_in_collective(group.controls[rank])
    told = message(group.monitors[1].cause(timed_out))
    assert told.startswith("Rank 2 on machine 1 (gnn2, 10.77.0.2) has not answered")


def test_what_a_rank_has_reported_is_the_cause_and_that_it_ended_no_loss(group: Group) -> None:
    group.controls[3].report_failure(UserError("the value 7 is wrong"))
    group.controls[3].end()
    group.stopped = {3}
    fail_in_collective(group.controls[0])
    assert isinstance(group.monitors[0].cause(lost_connection), UserError)


def test_ranks_that_have_ended_by_themselves_are_not_lost(group: Group) -> None:
    group.pass_time(3)
    for rank in (1, 2, 3):
        group.controls[rank].end()
        group.controls[rank].beat(rank)  # a late `set` has then arrived
    group.stopped = {1, 2, 3}
    group.pass_time(2 * LOOKS)
    assert group.monitors[0].lost() is None


def test_a_run_that_is_ended_beside_a_rank_that_was_killed_at_the_start_names_that_rank(
    group: Group,
) -> None:
    for control in group.controls:
        control.enter(Phase.STARTING, 0)
    group.pass_time(3)
    group.stopped = {3}
    group.controls[2].request_stop(signal.SIGTERM)  # by torchrun
    group.pass_time(2)
    interrupted = Interrupted(signal.SIGTERM)
    assert group.monitors[2].cause(interrupted) is None
    assert message(group.monitors[0].cause(interrupted)).startswith("Rank 3 on machine 1")
    for control in group.controls:
        control.enter(Phase.TRAINING, 1)
    assert group.monitors[0].cause(interrupted) is None


def test_an_error_outside_of_collectives_is_the_rank_s_own(group: Group) -> None:
    group.pass_time(3)
    group.stopped = {2}
    assert group.monitors[1].cause(ValueError("it broke")) is None


@pytest.mark.parametrize("error", [TimeoutError("timed out"), RuntimeError("read timed out")])
def test_an_error_that_speaks_of_a_time_out_accuses_nobody(group: Group, error: Exception) -> None:
    group.pass_time(3)
    with pytest.raises(type(error)), group.controls[1].waiting():
        raise error  # as by a user's module in the backward pass
    assert group.monitors[1].cause(error) is None


@pytest.mark.parametrize(
    ("store", "words"), [(GoneStore(), "has ended"), (FrozenStore(), "has not answered")]
)
def test_a_store_that_is_lost_is_rank_0(store: Any, words: str) -> None:
    control = RunControl(BoundedStore(lambda: store, timeout=1), rank=2)
    calls = HeartbeatMonitor(control, ROSTER, TIMEOUT)
    assert calls.lost() is None
    control.sync()
    calls.look()
    told = message(calls.lost())
    assert told.startswith(f"Rank 0 on machine 0 (gnn1, 10.77.0.1) {words}")
    fail_in_collective(control)
    assert message(calls.cause(lost_connection)) == told


@examples(30)
@given(
    machines=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    pick=st.data(),
)
def test_exactly_the_ranks_that_stopped_are_named(machines: list[int], pick: Any) -> None:
    of_rank = tuple(m for m, count in enumerate(machines) for _ in range(count))
    roster = Roster(of_rank, tuple(f"host{m}" for m in range(len(machines))))
    made = Group(roster)
    ranks = range(len(of_rank))
    draw: Callable[[Any], Any] = pick.draw
    stopped = draw(st.sets(st.sampled_from(ranks), max_size=len(of_rank) - 1))
    stopped -= {0}
    made.pass_time(draw(st.integers(1, 5)))
    made.stopped = stopped
    made.pass_time(LOOKS + 1)
    lost = made.monitors[0].lost()
    if not stopped:
        assert lost is None
    else:
        named = roster.named(sorted(stopped))
        assert message(lost).lower().startswith(named)


@pytest.mark.parametrize(
    ("ranks", "named", "count"),
    [
        ((), "machine 1 (gnn2, 10.77.0.2)", 1),  # lost before its ranks were known
        ((range(1), range(1, 2)), "rank 1 on machine 1 (gnn2, 10.77.0.2)", 1),
        ((range(2), range(2, 4)), "ranks 2 and 3 on machine 1 (gnn2, 10.77.0.2)", 2),
    ],
)
def test_a_lost_machine_is_named_with_its_ranks(
    ranks: tuple[range, ...], named: str, count: int
) -> None:
    roster = Roster((0, 1), ROSTER.hosts, of_machines=True, ranks=ranks)
    assert (roster.named([1]), roster.count([1])) == (named, count)
