"""Each way in for foreign input, with a few inputs, always the same; `scripts.fuzz` tries more."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.examples import share
from tests.fuzz import commands, graphs, records
from tests.fuzz.surface import Surface

SURFACES = [*commands.surfaces(), *graphs.surfaces(), *records.surfaces()]
_MOST, _FEWEST = 60, 8


@pytest.mark.hypothesis
@pytest.mark.parametrize("surface", SURFACES, ids=lambda surface: surface.name)
def test_foreign_input_is_taken_or_refused_with_a_sentence(surface: Surface) -> None:
    @settings(
        max_examples=share(max(_FEWEST, min(_MOST, 4 * surface.share))),
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(surface.inputs)
    def try_it(value: object) -> None:
        with warnings.catch_warnings(action="ignore"):
            surface.check(value)

    try_it()
