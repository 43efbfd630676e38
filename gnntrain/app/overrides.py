"""Overrides as they are typed, in Hydra's syntax; those that cannot be read become problems."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from gnntrain.config.problems import Problem, did_you_mean, shown
from gnntrain.plugins import DATASETS, MODELS, plugin_names

_KEY = re.compile(r"[~+]*[\w@:/-]+(\.[\w@:/-]+)*")
_DEEPEST = 20
TEXT_KEYS = ("task.positive_class",)  # +5 and 1E1 are texts, as in the files
LIST_KEYS = ("logger", "sampler.fan_outs", "evaluation.fan_outs")


def parse_overrides(
    overrides: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    problems: list[Problem],
    *,
    sweep: bool = False,
) -> Iterator[Override]:
    """The overrides that can be read; one that cannot is a problem.

    Args:
        overrides: As typed.
        groups: The options of every group.
        problems: What is wrong is added.
        sweep: Whether a key may have several values.
    """
    for text in overrides:
        parsed = parse_override(text)
        problem = _problem(text, parsed and parsed[0], groups, sweep=sweep)
        if problem is not None:
            problems.append(problem)
        elif parsed is not None:
            yield parsed[0]


def parse_override(text: str) -> tuple[Override, str] | None:
    """The override, and the text that Hydra's parser takes; None where it takes none.

    Hydra wants values such as `~/data` or `a=b.csv` quoted. Where nothing else can be meant, they
    are taken as they are.
    """
    key, _, value = text.partition("=")
    if max(value.count(left) for left in "[{") > _DEEPEST:
        return None  # parsers recurse
    plain = value and (value == "," or not set(value) & set("[]{}'\"\\,"))
    forms = [text, f'{key}="{value}"' if plain else text]
    if key.lstrip("+") in TEXT_KEYS and value != "null":
        forms.reverse()
    parser = OverridesParser.create()
    for form in forms:
        try:
            override = parser.parse_override(form)
        except (HydraException, ValueError):  # ValueError: a number of thousands of digits
            continue
        override.input_line = text
        return override, form
    return None


def sides_of(override: Override) -> tuple[str, str]:
    """Key and value as typed, without + and ~."""
    key, _, value = str(override.input_line).partition("=")
    return key.strip().lstrip("+~"), value.strip()


def is_hydras(override: Override) -> bool:
    """Whether it sets one of Hydra's own keys."""
    return re.match(r"hydra([./@]|$)", override.key_or_group) is not None


def is_choice(override: Override, groups: Mapping[str, Sequence[str]]) -> bool:
    """Whether it chooses an option of one of our groups."""
    return override.key_or_group in groups and not isinstance(override.value(), dict)


def chosen_options(
    overrides: Iterable[Override], groups: Mapping[str, Sequence[str]]
) -> dict[str, object]:
    """The options that overrides choose, by group; None where one removes the group."""
    return {
        one.key_or_group: None if one.is_delete() else one.value()
        for one in overrides
        if is_choice(one, groups)
    }


def choice_problem(override: Override, groups: Mapping[str, Sequence[str]]) -> Problem | None:
    """What is wrong with the choice of a group's option."""
    group, value = override.key_or_group, override.value()
    options = groups[group]
    several = group in LIST_KEYS
    if override.is_delete() or (group == "experiment" and value is None):
        return None
    chosen = value if several and isinstance(value, list) else [value]
    wrong = [name for name in chosen if str(name) not in options or isinstance(name, bool | None)]
    if not wrong or all(is_packaged(group, name) for name in wrong):
        return None
    expects = ("a list of some of " if several else "one of ") + ", ".join(options)
    hint = did_you_mean(str(wrong[0]), options)
    if group == "model" and wrong[0] in plugin_names(MODELS):
        hint = f"write model=plugin model.name={wrong[0]}"
    elif hint is None and len(options) == 1:
        hint = f"to set a key write {group}.KEY=VALUE"
    return Problem(group, shown(value), expects, hint)


def is_packaged(group: str, name: object) -> bool:
    """Whether an installed package offers a data set of this name."""
    return group == "dataset" and name in plugin_names(DATASETS)


def has_no_file(override: Override, groups: Mapping[str, Sequence[str]]) -> bool:
    """Whether a package's data set is chosen for which there is no YAML file."""
    group, value = override.key_or_group, override.value()
    return group == "dataset" and not override.is_delete() and value not in groups[group]


def option_text(option: object) -> str:
    """An option, or a list of them, as the command line has it."""
    if isinstance(option, list):
        return "[" + ",".join(map(str, option)) + "]"
    return "null" if option is None else str(option)


def written(value: object) -> str:
    """Plain data in Hydra's syntax: `[25,10]`, `{name:"cora"}`."""
    if isinstance(value, Mapping):
        return (
            "{" + ",".join(f"{_escaped(key)}:{written(item)}" for key, item in value.items()) + "}"
        )
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(written, value)) + "]"
    if isinstance(value, str):
        return _quoted(value)
    return json.dumps(value)


def _escaped(key: object) -> str:
    """A mapping's keys have no quotes in Hydra's syntax."""
    return re.sub(r"([\\()\[\]{}:=,\s])", r"\\\1", str(key))


def _quoted(text: str) -> str:
    """In Hydra's quotes a backslash is itself, except before a quote and at the end."""
    escaped = re.sub(r'(\\*)"', lambda match: match[1] * 2 + '\\"', text)
    return '"' + re.sub(r"(\\+)$", lambda match: match[1] * 2, escaped) + '"'


def _problem(
    text: str, override: Override | None, groups: Mapping[str, Sequence[str]], *, sweep: bool
) -> Problem | None:
    """What is wrong with the form of an override."""
    if override is None:
        return _syntax_problem(text, groups)
    key, value = sides_of(override)
    if override.is_sweep_override() and not sweep:
        if key in LIST_KEYS and "," in value:
            return Problem(key, value, "a list", f"write {key}=[{value}]; for a sweep add -m")
        return Problem(key, value, "one value", "for a sweep add -m")
    if not key:
        return Problem("", f"={value}", "key=value", "without spaces around the =")
    return None


def _syntax_problem(text: str, groups: Mapping[str, Sequence[str]]) -> Problem:
    key, equals, value = text.partition("=")
    if not equals:
        homes = [group for group, options in groups.items() if text in options]
        hint = f"did you mean {homes[0]}={text}?" if homes else "without spaces around the ="
        return Problem("", text, "key=value", hint)
    if "," in value and "=" in value:
        return Problem(key, value, "one value", "give each key=value as an argument of its own")
    if not _KEY.fullmatch(key):
        return Problem(key, shown(value), "a key such as trainer.lr")
    if max(value.count(left) for left in "[{") > _DEEPEST:
        return Problem(key, shown(value), f"a value nested at most {_DEEPEST} deep")
    if any(value.count(left) != value.count(right) for left, right in ("[]", "{}", "()")):
        return Problem(key, shown(value), "a value that can be read", "a bracket has no partner")
    quoted = "'" + key + "=" + json.dumps(value, ensure_ascii=False) + "'"
    return Problem(key, value, "a value that can be read", f"quote it: {quoted}")
