"""Overrides as they are typed, in Hydra's syntax: read, judged by group and form, put for Hydra."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, Quote, QuotedString
from hydra.errors import HydraException

from gnntrain.config import DatasetConfig, FilesConfig, RunConfig
from gnntrain.config.problems import ConfigError, Problem, did_you_mean, shown
from gnntrain.config.section import UNKNOWN
from gnntrain.config.yaml_files import read_yaml
from gnntrain.paths import expanded
from gnntrain.plugins import DATASETS, MODELS, plugin_names

_DEEPEST = 20
TEXT_KEYS = ("task.positive_class",)  # +5 and 1E1 are texts, as in the files
LIST_KEYS = ("logger", "sampler.fan_outs", "evaluation.fan_outs")
# An installed package's names are options too: of our file, and the entry points that offer them.
_OF_PACKAGES = {"dataset": ("_published", DATASETS), "model": ("plugin", MODELS)}

Groups = Mapping[str, Sequence[str]]
"""The options of every group."""


def parse_overrides(
    overrides: Iterable[str], groups: Groups, problems: list[Problem], *, sweep: bool = False
) -> Iterator[Override]:
    """The overrides that can be read; of another its mistake is added to `problems`. With `sweep`
    a key may have several values, and no option of a group is judged."""
    for text in overrides:
        key, equals, value = text.partition("=")
        one, _ = parse_override(text) or (None, "")
        if (
            one is None
            or not one.key_or_group
            or (one.package and not is_hydras(one) and one.key_or_group not in groups)
        ):
            expects = "key=value without spaces; a list is [a,b], other texts are quoted"
            homes = [group for group, options in groups.items() if text in options]
            hint = f"did you mean {homes[0]}={text}?" if homes else None
            sides = (key, shown(value)) if equals else ("", text)
            problems.append(Problem(*sides, expects, hint))
        elif one.is_sweep_override() and not sweep:
            hint = "a list is written [a,b]; for a sweep add -m"
            problems.append(Problem(*sides_of(one), "one value", hint))
        elif sweep or (problem := choice_problem(one, groups)) is None:
            yield one
        else:
            problems.append(problem)


@lru_cache(4096)
def parse_override(text: str) -> tuple[Override, str] | None:
    """The override, and the text that Hydra's parser takes; None where it takes none.

    Hydra wants values such as `~/data` or `a=b.csv` quoted. Where nothing else can be meant, they
    are taken as they are.
    """
    key, _, value = text.partition("=")
    depths = accumulate((sign in "[{") - (sign in "]}") for sign in value)
    if max(depths, default=0) > _DEEPEST:
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


def is_choice(override: Override, groups: Groups) -> bool:
    """Whether it chooses an option of one of our groups."""
    return override.key_or_group in groups and not isinstance(override.value(), dict)


def choice_problem(override: Override, groups: Groups) -> Problem | None:
    """What is wrong with the choice of a group's option; None too where it is no choice."""
    if not is_choice(override, groups) or override.is_delete():
        return None
    group, value = override.key_or_group, override.value()
    options, several = [*groups[group]], group in LIST_KEYS
    if group in _OF_PACKAGES:
        options += plugin_names(_OF_PACKAGES[group][1])
    chosen = value if several and isinstance(value, list) else [value]
    wrong = [str(name) for name in chosen if str(name) not in options]
    if not wrong:
        return None
    expects = ("a list of some of " if several else "one of ") + ", ".join(options)
    return Problem(group, shown(value), expects, did_you_mean(wrong[0], options))


def is_config_file(text: str) -> bool:
    """Whether an argument of the command line is a YAML file to begin with."""
    return "=" not in text and Path(text).suffix in (".yaml", ".yml")


def with_file(typed: Sequence[str], groups: Groups, problems: list[Problem]) -> list[str]:
    """The overrides as typed, but first those that say what a YAML file among them does; what is
    wrong with the file is added to `problems`.

    The file is data: by section its keys, or an option of its group: `model: gat`. Its keys stay
    set whatever option is typed, except those of a section that names another one.
    """
    files = [text for text in typed if is_config_file(text)]
    texts = [text for text in typed if text not in files]
    if not files:
        return texts
    try:
        raw = read_yaml(expanded(files[0]).read_text(encoding="utf-8"))
        if len(files) > 1 or not isinstance(raw, dict):
            raise ValueError("there are several, or there are no keys in it")
    except (OSError, ValueError) as error:
        expects = f"one configuration that can be read: {' '.join(str(error).split())}"
        problems.append(Problem("", " ".join(files), expects))
        return texts
    parsed = [one[0] for text in texts if (one := parse_override(text)) is not None]
    typed_options = {one.key_or_group: one.value() for one in parsed if is_choice(one, groups)}
    run = raw.get("run")
    if isinstance(run, dict) and RunConfig.model_fields.keys() <= run.keys():
        # Where a run went is no part of what it was, nor which sweep it was in.
        raw = {key: raw[key] for key in raw if key not in ("run", "sweep")}
    choices, values = list[str](), list[str]()
    for group, section in ((str(key), section) for key, section in raw.items()):
        if group not in groups:  # Hydra's own section would name code to call
            hint = did_you_mean(group, groups)
            if group == "defaults":
                hint = "write `dataset: cora`, or begin with the file by --config-dir --config-name"
            problems.append(Problem(group, shown(section), UNKNOWN, hint))
            continue
        keys, option, chosen = section, section, typed_options.get(group)
        if not isinstance(section, dict):
            keys = {}
        elif group == "logger":
            option = [*section]
            names = chosen if isinstance(chosen, list) else [chosen]
            keys = {key: section[key] for key in section if chosen is None or key in names}
        else:
            name = option = section.get("name")
            if group == "dataset" and DatasetConfig.class_for(section) is FilesConfig:
                option = "files"
            packaged = plugin_names(_OF_PACKAGES[group][1]) if group in _OF_PACKAGES else ()
            if option not in (*groups[group], *packaged):  # a wrong name is told as a key
                option = None
            if chosen not in (None, option) and name is not None:
                keys = {}
        if (option is not None or group == "logger") and group not in typed_options:
            choices.append(f"{group}={written(option)}")
        for key, value in keys.items():
            if re.fullmatch(r"[\w-]+", str(key)):
                values.append(f"++{group}.{key}={written(value)}")
            else:  # it would be read as something else
                problems.append(Problem(f"{group}.{key}", shown(value), UNKNOWN))
    return [*choices, *values, *texts]


def hydra_lines(override: Override, groups: Groups) -> list[str]:
    """An override for Hydra, as it was typed where that will do: its records hold it."""
    key, value = override.key_or_group, override.value()
    _, form = parse_override(str(override.input_line)) or (override, "")
    if is_choice(override, groups):
        if key in _OF_PACKAGES and isinstance(value, str) and value not in groups[key]:
            return [f"{key}={_OF_PACKAGES[key][0]}", f"++{key}.name={written(value)}"]
        return [form]
    values = value.list if isinstance(value, ChoiceSweep) else [value]
    if key in LIST_KEYS and any(isinstance(one, dict) for one in values):
        return [f"{key}=null", form]
    # Keys that no YAML file may have: in a mapping, and those of another package's model or logger.
    is_open = (
        isinstance(value, dict) or key.startswith(("model.options.", "logger.")) or form[0] == "+"
    )
    is_ours = not (is_hydras(override) or override.is_delete())
    return ["++" + form.lstrip("+")] if is_ours and is_open else [form]


def translate(typed: Sequence[str], groups: Groups) -> list[str]:
    """From what gnntrain accepts on its command line to what Hydra accepts; see `hydra_lines`.

    Raises:
        ConfigError: With mistakes in form or in the file; there may be more, also of keys.
    """
    problems: list[Problem] = []
    lines: list[str] = []
    texts = with_file(typed, groups, problems)
    overrides = [*parse_overrides(texts, groups, problems, sweep=True)]
    last = {one.key_or_group: one for one in overrides}
    for override in overrides:
        # Of `dataset: ../../mine` in a file Hydra would read that file.
        if not override.is_sweep_override() and (problem := choice_problem(override, groups)):
            problems.append(problem)
        if last[override.key_or_group] is override or not is_choice(override, groups):
            lines += hydra_lines(override, groups)
    if problems:
        raise ConfigError(problems)
    return lines


def written(value: object) -> str:
    """Plain data in Hydra's syntax: `[25,10]`, `{name:"cora"}`."""
    if isinstance(value, Mapping):  # its keys have no quotes
        pairs = ((re.sub(r"([\\()\[\]{}:=,\s])", r"\\\1", str(k)), v) for k, v in value.items())
        return "{" + ",".join(f"{key}:{written(item)}" for key, item in pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(written, value)) + "]"
    if isinstance(value, str):
        return QuotedString(value, Quote.double).with_quotes()
    return json.dumps(value, default=str)  # a YAML file may hold a date
