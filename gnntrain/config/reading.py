"""From plain data to the schema, with every mistake at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from gnntrain.config.checks import contradictions, missing_files
from gnntrain.config.mistakes import Place, in_words, key_schema, places, problems_of
from gnntrain.config.problems import ConfigError, Problem
from gnntrain.config.schema import Config
from gnntrain.config.types import Section, without_numpy

GONE: Set[tuple[str, ...]] = {("features", "hotness")}
"""Keys of earlier versions, in runs of which they may stand: they changed no result."""


@dataclass(frozen=True)
class Reading:
    """What could be read.

    Attributes:
        config: The configuration, with defaults in place of what is wrong.
        problems: Every mistake.
    """

    config: Config
    problems: list[Problem]

    def is_sound(self, *keys: str) -> bool:
        """Whether no mistake touches these keys, so that they may be compared."""
        wrong = {problem.key for problem in self.problems}
        # Under an unknown name nothing in the section is known.
        wrong |= {key.removesuffix(".name") for key in wrong if key.endswith(".name")}
        return not any(key == bad or key.startswith(bad + ".") for key in keys for bad in wrong)


def from_dict(raw: Mapping[str, Any], *, saved: bool = False) -> Config:
    """The configuration that `raw` (plain data, possibly in part) asks for.

    Args:
        raw: Sections by name, each a mapping of keys; what is left out has its default.
        saved: Read back from a run directory: raw files and plug-ins may have gone since, and
            are not looked for.

    Raises:
        ConfigError: With every mistake: unknown keys and names, wrong types and ranges, keys that
            contradict each other, files that are not there.
    """
    reading = read(raw, saved=saved)
    if reading.problems:
        raise ConfigError(reading.problems)
    return reading.config


def read(raw: Mapping[str, Any], *, saved: bool = False, found: Sequence[Problem] = ()) -> Reading:
    """As `from_dict`, but the mistakes are returned, with what could be read.

    Args:
        raw: As for `from_dict`.
        saved: As for `from_dict`.
        found: Mistakes already known; what they touch is not compared with other keys.
    """
    config, wrong = _sound_part(_without(without_numpy(raw), GONE if saved else set()), saved)
    values, already = config.to_dict(), {problem.key for problem in found}
    told = [problem for place in wrong for problem in problems_of(place, Config, values)]
    reading = Reading(config, [*found, *(one for one in told if one.key not in already)])
    contradicting = [p for keys, p in contradictions(config) if reading.is_sound(*keys)]
    missing = [] if saved else [p for p in missing_files(config) if reading.is_sound(p.key)]
    return Reading(config, [*reading.problems, *contradicting, *missing])


def takes_integers(config: Config, key: str) -> bool:
    """Whether a dotted key takes whole numbers alone."""
    section, _, name = key.rpartition(".")
    owner = getattr(config, section, config)
    is_key = isinstance(owner, Section) and name in type(owner).model_fields
    return is_key and "an integer" in in_words(key_schema(type(owner), name))


def _sound_part(raw: Mapping[str, Any], saved: bool) -> tuple[Config, list[Place]]:
    """The configuration without the wrong keys, and these: the others can be compared."""
    try:
        return Config.model_validate(raw, context={"saved": saved}), []
    except ValidationError as error:
        wrong = places(error, Config, raw)
    # Without its name, a section's keys are not known.
    paths = {place.path[: -(place.path[-1] == "name")] or place.path for place in wrong}
    return _sound_part(_without(raw, paths), saved)[0], wrong


def _without(
    raw: Mapping[Any, Any], paths: Set[tuple[str, ...]], within: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Plain data without these keys; every key is text."""
    found = {(*within, str(key)): value for key, value in raw.items()}
    return {
        path[-1]: _without(value, paths, path) if isinstance(value, Mapping) else value
        for path, value in found.items()
        if path not in paths
    }
