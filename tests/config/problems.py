"""The problems of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gnntrain.config import ConfigError, Problem, from_dict


def problems_of(raw: Mapping[str, Any], *, saved: bool = False) -> dict[str, Problem]:
    try:
        from_dict(raw, saved=saved)
    except ConfigError as error:
        return {problem.key: problem for problem in error.problems}
    return {}


def only_problem(raw: Mapping[str, Any]) -> Problem:
    (problem,) = problems_of(raw).values()
    return problem
