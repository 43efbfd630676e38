"""Overrides as they are typed, in Hydra's syntax: read, judged by group and form, put for Hydra."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.errors import HydraException

from gnntrain.config.problems import ConfigError, Problem, did_you_mean, shown
from gnntrain.config.whole import ConfigFile, is_config_file, read_config_file
from gnntrain.groups import GROUPS
from gnntrain.plugins import DATASETS, MODELS, plugin_names

_DEEPEST = 20
_NO_SPACES = "without spaces around the ="
TEXT_KEYS = ("task.positive_class",)  # +5 and 1E1 are texts, as in the files
LIST_KEYS = ("logger", "sampler.fan_outs", "evaluation.fan_outs")

Groups = Mapping[str, Sequence[str]]
"""The options of every group."""


def parse_overrides(
    overrides: Iterable[str], groups: Groups, problems: list[Problem], *, sweep: bool = False
) -> Iterator[Override]:
    """The overrides that can be read; one that cannot is added to `problems`.

    Args:
        overrides: As typed.
        groups: The options of every group.
        problems: What is wrong is added.
        sweep: Whether a key may have several values.
    """
    for text in overrides:
        parsed = parse_override(text)
        if parsed is None:
            problems.append(_syntax_problem(text, groups))
            continue
        key, value = sides_of(parsed[0])
        if parsed[0].is_sweep_override() and not sweep:
            is_list = key in LIST_KEYS and "," in value
            hint = f"write {key}=[{value}]; " if is_list else ""
            problems.append(Problem(key, value, "one value", f"{hint}for a sweep add -m"))
        elif not key:
            problems.append(Problem("", text, "key=value", _NO_SPACES))
        else:
            yield parsed[0]


@functools.lru_cache(4096)
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


def _syntax_problem(text: str, groups: Groups) -> Problem:
    key, equals, value = text.partition("=")
    if not equals:
        homes = [group for group, options in groups.items() if text in options]
        hint = f"did you mean {homes[0]}={text}?" if homes else _NO_SPACES
        return Problem("", text, "key=value", hint)
    if "," in value and "=" in value:
        return Problem(key, value, "one value", "give each key=value as an argument of its own")
    expects = f"a key such as trainer.lr and a value, nested at most {_DEEPEST} deep"
    quoted = "'" + key + "=" + json.dumps(shown(value), ensure_ascii=False) + "'"
    return Problem(key, shown(value), expects, f"close each bracket, or quote a text: {quoted}")


def sides_of(override: Override) -> tuple[str, str]:
    """Key and value as typed, without + and ~."""
    key, _, value = str(override.input_line).partition("=")
    return key.strip().lstrip("+~"), value.strip()


def is_hydras(override: Override) -> bool:
    """Whether it sets one of Hydra's own keys."""
    return re.match(r"hydra([./@]|$)", override.key_or_group) is not None


def is_choice(override: Override, groups: Groups) -> bool:
    """Whether it chooses an option of one of our groups."""
    return override.key_or_group in groups and not isinstance(override.value(), dict)


def choice_problem(override: Override, groups: Groups) -> Problem | None:
    """What is wrong with the choice of a group's option."""
    group, value = override.key_or_group, override.value()
    options, several = groups[group], group in LIST_KEYS
    if override.is_delete() or (group == "experiment" and value is None):
        return None
    chosen = value if several and isinstance(value, list) else [value]
    wrong = [name for name in chosen if str(name) not in options or isinstance(name, bool | None)]
    if not wrong or _is_packaged(override):
        return None
    expects = ("a list of some of " if several else "one of ") + ", ".join(options)
    hint = did_you_mean(str(wrong[0]), options)
    if group == "model" and wrong[0] in plugin_names(MODELS):
        hint = f"write model=plugin model.name={wrong[0]}"
    elif hint is None and len(options) == 1:
        hint = f"to set a key write {group}.KEY=VALUE"
    return Problem(group, shown(value), expects, hint)


def _is_packaged(override: Override) -> bool:
    """Whether it chooses the data set of an installed package."""
    return override.key_or_group == "dataset" and override.value() in plugin_names(DATASETS)


def read_file(
    typed: Sequence[str], choices: Iterable[Override], groups: Groups, problems: list[Problem]
) -> tuple[ConfigFile, list[Override]]:
    """The user's file among what was typed, and the choices in it that are right.

    A choice is judged before Hydra sees it: of `dataset: ../../mine` it would read that file.

    Args:
        typed: As typed.
        choices: The typed ones; they win over those of the file.
        groups: The options of every group.
        problems: What is wrong with the file is added.
    """
    chosen = {o.key_or_group: None if o.is_delete() else o.value() for o in choices}
    file = read_config_file([*filter(is_config_file, typed)], chosen, groups, problems)
    texts = [f"{group}={_option_text(option)}" for group, option in file.choices.items()]
    in_file = [*parse_overrides(texts, groups, problems)]
    wrong = [problem for one in in_file if (problem := choice_problem(one, groups)) is not None]
    problems += wrong
    unsure = {problem.key for problem in wrong}
    return file, [one for one in in_file if one.key_or_group not in unsure]


def file_lines(file: ConfigFile) -> Iterator[tuple[str, str]]:
    """(section, override for Hydra) of each section of the user's file."""
    for section, keys in file.keys.items():
        for key, value in keys.items() if isinstance(keys, Mapping) else ():
            if f"{section}.{key}" in LIST_KEYS and isinstance(value, Mapping):
                yield section, f"{section}.{key}=null"  # Hydra merges no mapping with a list
        yield section, f"++{section}={written(keys)}"


def hydra_lines(override: Override, form: str, groups: Groups, *, forced: bool) -> list[str]:
    """An override of ours for Hydra.

    Args:
        override: As parsed.
        form: The text that Hydra's parser takes.
        groups: The options of every group.
        forced: Whether to set keys that stand in no YAML file, as those of a plug-in model.
    """
    key = override.key_or_group
    if is_choice(override, groups):
        if _is_packaged(override) and override.value() not in groups[key]:
            return ["dataset=_published", f"++dataset.name={written(override.value())}"]
        if forced and override.is_delete() and key in LIST_KEYS:
            return []  # Hydra removes no list of options
        if key == "experiment" and override.value() is None:
            return ["experiment=none"]  # Hydra cannot leave an option out
        return [form.lstrip("+")] if forced and key in GROUPS else [form]
    value = override.value()
    values = value.list if isinstance(value, ChoiceSweep) else [value]
    if key in LIST_KEYS and any(isinstance(one, dict) for one in values):
        return [f"{key}=null", form]
    if not forced:
        return [form]
    # Of a key that is null, Hydra says that it does not exist.
    return [f"++{key}=0", form] if override.is_delete() else [f"++{form.lstrip('+')}"]


def choice_lines(choice: Override, groups: Groups) -> list[str]:
    """The choice of a group's option, for Hydra."""
    return hydra_lines(choice, str(choice.input_line), groups, forced=True)


def translate(typed: Sequence[str], groups: Groups, *, forced: bool = False) -> list[str]:
    """From what gnntrain accepts on its command line to what Hydra accepts.

    Most overrides go to Hydra as they were typed, so that its records hold what the user wrote.

    Args:
        typed: The overrides, and a YAML file to begin with; a key may have several values.
        groups: The options of every group.
        forced: As for `hydra_lines`.

    Raises:
        ConfigError: With mistakes in form or in the file; there may be more, also of keys.
    """
    problems: list[Problem] = []
    texts = [text for text in typed if not is_config_file(text)]
    read = [*parse_overrides(texts, groups, problems, sweep=True)]
    file, in_file = read_file(typed, (o for o in read if is_choice(o, groups)), groups, problems)
    # Hydra's own section would name code to call; a file may come from anybody.
    if problems or not file.keys.keys() <= {*groups}:
        raise ConfigError(problems)
    lines = [line for one in in_file for line in choice_lines(one, groups)]
    lines += [line for _, line in file_lines(file)]
    for text in texts:
        parsed = parse_override(text)
        if parsed is not None:
            is_ours = not is_hydras(parsed[0])
            lines += hydra_lines(*parsed, groups, forced=forced) if is_ours else [parsed[1]]
    return list(dict.fromkeys(lines))


def _option_text(option: object) -> str:
    if isinstance(option, list):
        return "[" + ",".join(map(str, option)) + "]"
    return "null" if option is None else str(option)


def written(value: object) -> str:
    """Plain data in Hydra's syntax: `[25,10]`, `{name:"cora"}`."""
    if isinstance(value, Mapping):  # its keys have no quotes
        pairs = ((re.sub(r"([\\()\[\]{}:=,\s])", r"\\\1", str(k)), v) for k, v in value.items())
        return "{" + ",".join(f"{key}:{written(item)}" for key, item in pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(written, value)) + "]"
    if not isinstance(value, str):
        return json.dumps(value)
    # In Hydra's quotes a backslash is itself, except before a quote and at the end.
    escaped = re.sub(r'(\\*)"', lambda match: match[1] * 2 + '\\"', value)
    return '"' + re.sub(r"(\\+)$", lambda match: match[1] * 2, escaped) + '"'
