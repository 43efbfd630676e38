"""The problems of a configuration that cannot be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gnntrain.config import ConfigError, Problem, from_dict


def problems_of(raw: Mapping[str, Any]) -> dict[str, Problem]:
    with pytest.raises(ConfigError) as caught:
        from_dict(raw)
    return {problem.key: problem for problem in caught.value.problems}


def only_problem(raw: Mapping[str, Any]) -> Problem:
    (problem,) = problems_of(raw).values()
    return problem
