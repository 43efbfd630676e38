"""Hydra's own errors, as sentences."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from gnntrain.app.overrides import is_hydras, parse_override, sides_of
from gnntrain.app.sources import COMPOSE_ERRORS, Sources, compose_files
from gnntrain.config.problems import Problem, did_you_mean
from gnntrain.errors import GnntrainError, UserError
from gnntrain.reporting.rundir import explained


class HydraRefused(UserError):
    """Hydra refused the command line before anything ran. There may be more mistakes in it."""


def as_ours(error: Exception) -> Exception:
    """The error to raise for one that came out of Hydra's main."""
    ours = next((e for e in _chain(error) if isinstance(e, GnntrainError)), None)
    if ours is not None:
        return ours
    frames = {frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)}
    if hasattr(error, "run_dir"):  # of a run
        return error
    if isinstance(error, HydraException | OmegaConfBaseException):
        kind = UserError if "sweep" in frames else HydraRefused
        return kind(_one_line(error), "`gnntrain --hydra-help` tells of Hydra's flags and keys.")
    if isinstance(error, OSError) and frames & {"run_job", "sweep"}:
        try:
            with explained(Path(error.filename or ".")):
                raise error
        except GnntrainError as sentence:
            return sentence
    return error if frames & {"sweep", "run_job"} else HydraRefused(_one_line(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    cause = " ".join(str(error.__cause__ or "").split())
    return ": ".join(part for part in (text, cause) if part) or type(error).__name__


def hydra_problems(typed: Sequence[str], sources: Sources) -> list[Problem]:
    """The mistakes in Hydra's own keys, each of them composed by itself."""
    parsed = [one for one in map(parse_override, typed) if one is not None and is_hydras(one[0])]
    groups = [one for one in parsed if "/" in one[0].key_or_group]
    sound: list[str] = []
    problems: list[Problem] = []
    for override, form in [*groups, *(one for one in parsed if one not in groups)]:
        problem = (
            None if override.is_sweep_override() else _problem(override, [*sound, form], sources)
        )
        if problem is not None:
            problems.append(problem)
        elif (override, form) in groups:
            sound.append(form)
    return problems


def _problem(override: Override, lines: list[str], sources: Sources) -> Problem | None:
    try:
        _compose_hydra(lines, sources)
    except MissingConfigException as error:
        options = list(error.options or ())
        expects = f"one of {', '.join(options)}" if options else _one_line(error)
        return Problem(*sides_of(override), expects, did_you_mean(sides_of(override)[1], options))
    except COMPOSE_ERRORS as error:
        key, value = sides_of(override)
        known = [f"hydra.{name}" for name in _keys(_compose_hydra(lines[:-1], sources).hydra)]
        if key in known:
            return Problem(key, value, str(error.__cause__ or error).splitlines()[0])
        return Problem(key, value, "no such key of Hydra's", did_you_mean(key, known))
    return None


def _compose_hydra(lines: list[str], sources: Sources) -> DictConfig:
    return compose_files(lines, sources, with_hydra=True)


def _keys(node: Any) -> Iterator[str]:
    """Every dotted key below a node."""
    for key in node if isinstance(node, DictConfig) else ():
        yield str(key)
        yield from (f"{key!s}.{name}" for name in _keys(node._get_node(key)))
