from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.report.tables import phase_seconds, typical_phases
from tests.report.samples import records_of

SECONDS = st.floats(0, 100)


@given(SECONDS, SECONDS, SECONDS, SECONDS)
def test_phases_add_up_to_the_epoch(
    forward: float, backward: float, untimed: float, evaluation: float
) -> None:
    (record,) = records_of(0.5)
    time = {"forward": forward, "backward": backward, "evaluation": evaluation}
    seconds = forward + backward + untimed
    record = dataclasses.replace(record, time=time, seconds=seconds)
    assert phase_seconds([record]).to_numpy().sum() == pytest.approx(seconds + evaluation)


def test_a_typical_epoch_is_not_the_first_which_warms_up() -> None:
    cold, *warm = records_of(0.5, 0.6, 0.7)
    cold = dataclasses.replace(cold, time={**cold.time, "forward": 50.0}, seconds=60.0)
    assert typical_phases([cold, *warm]) == typical_phases(warm)
    assert typical_phases([cold])["forward"] == 50
