from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnntrain.distributed.reports import CollectiveTimeout, Reports
from gnntrain.errors import GnntrainError, Interrupted, RunError, UserError


def leave(reports: Reports, rank: int, error: BaseException) -> None:
    with pytest.raises(type(error)), reports.reported(rank):
        raise error


def first(reports: Reports) -> GnntrainError:
    found = reports.first()
    assert found is not None
    return found


def test_the_first_error_of_the_first_rank_counts() -> None:
    reports = Reports.create(3)
    assert reports.first() is None
    leave(reports, 2, UserError("no such file", "Look for it."))
    leave(reports, 0, RuntimeError("closed by peer"))
    leave(reports, 2, ValueError("while it ended"))
    cause = first(reports)
    assert isinstance(cause, UserError)
    assert (cause.message, cause.hint) == ("no such file", "Look for it.")
    assert "Traceback" in cause.__notes__[0]


def test_an_error_of_no_class_of_ours_is_told_with_its_rank() -> None:
    reports = Reports.create(1)
    leave(reports, 0, ZeroDivisionError("it broke"))
    cause = first(reports)
    assert type(cause) is RunError
    assert cause.message == "Rank 0 failed: ZeroDivisionError: it broke"


def test_an_interruption_is_no_error() -> None:
    reports = Reports.create(1)
    leave(reports, 0, Interrupted())
    assert reports.first() is None


@pytest.mark.parametrize("words", ["Timed out waiting 5000ms", "Watchdog: timeout", "time-out"])
def test_a_rank_that_waited_in_vain_is_told_from_one_that_failed(words: str) -> None:
    reports = Reports.create(2)
    leave(reports, 1, RuntimeError(words))
    assert isinstance(reports.first(), CollectiveTimeout)


@settings(max_examples=50, deadline=None)
@given(st.text(), st.sampled_from(["", "x", "\U0001f4a5", "\ud800", "\x00"]))
def test_words_of_any_kind_and_length_have_room(words: str, more: str) -> None:
    reports = Reports.create(2)
    message = words + 50_000 * more
    leave(reports, 1, RunError(message, message))
    cause = first(reports)
    assert message.startswith(cause.message)
    assert message.startswith(cause.hint or "")
    assert len(cause.message) >= min(len(message), 2_000)
    leave(reports, 0, RunError("a slot of its own"))
    assert first(reports).message == cause.message
