"""Overrides as they are typed, in Hydra's syntax: read, judged by group and form, put for Hydra.

One of them may be a YAML file to begin with, which stands for overrides that say the same: a whole
configuration, as a run directory has it (a mapping of keys for each section), or a composition of
the user's own, which also chooses options of groups as Hydra's users write it: `dataset: cora`, or
a list `defaults`.
"""

from __future__ import annotations

import functools
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, Quote, QuotedString
from hydra.errors import HydraException

from gnntrain.config import Config, FilesConfig, PluginConfig, RunConfig
from gnntrain.config.problems import ConfigError, Problem, did_you_mean, shown
from gnntrain.config.section import UNKNOWN, section_class
from gnntrain.config.types import flattened
from gnntrain.config.yaml_files import bracket_depth, key_lines, read_yaml
from gnntrain.groups import GROUPS
from gnntrain.plugins import DATASETS, MODELS, plugin_names

_DEEPEST = 20
# A configuration may be composed several times.
_say_once = functools.cache(logging.getLogger("gnntrain").warning)
TEXT_KEYS = ("task.positive_class",)  # +5 and 1E1 are texts, as in the files
LIST_KEYS = ("logger", "sampler.fan_outs", "evaluation.fan_outs")

Groups = Mapping[str, Sequence[str]]
"""The options of every group."""


def parse_overrides(
    overrides: Iterable[str], groups: Groups, problems: list[Problem], *, sweep: bool = False
) -> Iterator[Override]:
    """The overrides that can be read; of another its mistake is added to `problems`. With `sweep`
    a key may have several values, and no option of a group is judged."""
    for text in overrides:
        parsed = parse_override(text)
        key, equals, value = text.partition("=")
        if parsed is None and equals:
            expects = f"a key such as trainer.lr and a value, nested at most {_DEEPEST} deep"
            quoted = f"{key}={json.dumps(shown(value), ensure_ascii=False)}"
            hint: str | None = f"close each bracket, or quote a text: '{quoted}'"
            if {",", "="} <= set(value) and not set(value) & set("[]{}()'\""):
                hint = "give each key=value as an argument of its own"
            elif parse_override(quoted) is None:  # it is the key
                hint = None
            problems.append(Problem(key, shown(value), expects, hint))
            continue
        one = None if parsed is None else parsed[0]
        if (
            one is None
            or not one.key_or_group
            or (one.package and not is_hydras(one) and one.key_or_group not in groups)
        ):
            homes = [group for group, options in groups.items() if text in options]
            hint = f"did you mean {homes[0]}={text}?" if homes else "without spaces around the ="
            problems.append(Problem("", text, "key=value", hint))
        elif one.is_sweep_override() and not sweep:
            hint = "a list is written [a,b]; for a sweep add -m"
            problems.append(Problem(*sides_of(one), "one value", hint))
        elif sweep or (problem := choice_problem(one, groups)) is None:
            yield one
        else:
            problems.append(problem)


@functools.lru_cache(4096)
def parse_override(text: str) -> tuple[Override, str] | None:
    """The override, and the text that Hydra's parser takes; None where it takes none.

    Hydra wants values such as `~/data` or `a=b.csv` quoted. Where nothing else can be meant, they
    are taken as they are.
    """
    key, _, value = text.partition("=")
    if bracket_depth(value) > _DEEPEST:
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
    options, several = groups[group], group in LIST_KEYS
    chosen = value if several and isinstance(value, list) else [value]
    wrong = [str(name) for name in chosen if str(name) not in options]
    if not wrong or _is_packaged(override) or (group, value) == ("experiment", None):
        return None
    hint = did_you_mean(wrong[0], options)
    if group == "model" and wrong[0] in plugin_names(MODELS):
        hint = f"write model=plugin model.name={wrong[0]}"
    expects = ("a list of some of " if several else "one of ") + ", ".join(options)
    return Problem(group, shown(value), expects, hint)


def _is_packaged(override: Override) -> bool:
    """Whether it chooses the data set of an installed package."""
    return override.key_or_group == "dataset" and override.value() in plugin_names(DATASETS)


def is_config_file(text: str) -> bool:
    """Whether an argument of the command line is a YAML file to begin with."""
    return "=" not in text and Path(text).suffix in (".yaml", ".yml")


def with_file(
    typed: Sequence[str], groups: Groups, problems: list[Problem]
) -> tuple[list[str], dict[str, str]]:
    """The overrides as typed, but first those that a file among them stands for; and where its keys
    stand, by name. What is wrong with the file is added to `problems`.

    A section of the file stays set whatever option is chosen, unless it is another option's: it
    names one, or has every key, as in a file that a run has written.
    """
    files = [text for text in typed if is_config_file(text)]
    texts = [text for text in typed if text not in files]
    if not files:
        return texts, {}
    name = files[0]
    if len(files) > 1:
        problems.append(Problem("", files[1], "one file of a whole configuration"))
    try:
        content = Path(name).expanduser().read_text(encoding="utf-8")
        raw = read_yaml(content)
        if not isinstance(raw, dict):
            raise ValueError("there are no keys in it")
    except (OSError, ValueError) as error:
        reason = " ".join((getattr(error, "strerror", None) or str(error)).split())
        problems.append(Problem("", name, f"a configuration that can be read: {reason}"))
        return texts, {}
    parsed = [one[0] for text in texts if (one := parse_override(text)) is not None]
    new = {o.key_or_group: not o.is_delete() and o.value() for o in parsed if is_choice(o, groups)}

    # The options that the file chooses: in its list `defaults`, or by a group's name alone.
    raw = {str(key): section for key, section in raw.items()}
    is_whole, chosen = "defaults" not in raw, dict[str, object]()
    entries = raw.pop("defaults", [])
    for entry in entries if isinstance(entries, list) else [entries]:
        for key, option in entry.items() if isinstance(entry, dict) else [(entry, None)]:
            group = str(key).removeprefix("override ").strip().removeprefix("/")
            if group in groups:
                chosen[group] = option
            elif group != "_self_":
                expects = "a group and its option, as in `- dataset: cora`"
                problems.append(Problem("defaults", shown(entry), expects))
    direct = [key for key in raw if key in groups and isinstance(raw[key], str | list)]
    chosen |= {key: raw.pop(key) for key in direct}
    is_whole = is_whole and not direct
    if is_whole and "experiment" in new:
        expects = "no experiment beside a whole configuration"
        problems.append(Problem("", name, expects, "leave one of them out"))
    run = raw.get("run")
    if is_whole and isinstance(run, dict) and RunConfig.model_fields.keys() <= run.keys():
        # Where a run went is no part of what it was, nor which sweep it was in.
        raw = {key: raw[key] for key in raw if key not in ("run", "sweep")}

    values: list[str] = []
    for group, section in raw.items():
        if group not in groups:  # Hydra's own section would name code to call
            hint = did_you_mean(group, groups)
            wrong = flattened({group: section}).items()
            problems += (Problem(key, shown(value), UNKNOWN, hint) for key, value in wrong)
            continue
        if not isinstance(section, dict):
            values.append(f"++{group}={written(section)}")
            continue
        # The option that the section is of (None: it does not say), and what of it is kept.
        option, kind, kept = section.get("name"), section_class(Config, group, section), section
        is_complete = kind is not None and kind.model_fields.keys() <= section.keys()
        if group == "logger":
            option = [key for key in section if key in groups[group]] if is_whole else None
        elif kind is FilesConfig:
            option = "files"
        elif kind is PluginConfig and option in plugin_names(MODELS):
            option = "plugin"
        elif option not in (*groups[group], *(plugin_names(DATASETS) * (group == "dataset"))):
            option = None
        typed_option = new.get(group)
        if group not in new:
            if option is not None:
                chosen.setdefault(group, option)
        elif group == "logger":
            names = typed_option if isinstance(typed_option, list) else [typed_option]
            kept = {key: section[key] for key in section if key in names}
        elif option != typed_option and ("name" in section or is_complete):
            kept = {}
        if kept != section and isinstance(typed_option, str | list):
            there = shown({key: section[key] for key in section if key not in kept})
            place = f"{group}={shown(typed_option)} takes the place of {group}={there}"
            _say_once("%s: %s", name, place)
        for key, value in kept.items():
            if re.fullmatch(r"[\w-]+", str(key)):
                values.append(f"++{group}.{key}={written(value)}")
            else:  # it would be read as something else
                problems.append(Problem(f"{group}.{key}", shown(value), UNKNOWN))
    choices = [f"{group}={written(option)}" for group, option in chosen.items() if group not in new]
    last = {override.key_or_group for override in parsed}
    lines = key_lines(content).items()
    places = {key: f"{name}, line {line}" for key, line in lines if key not in last}
    return [*choices, *values, *texts], places


def hydra_lines(override: Override, groups: Groups) -> list[str]:
    """An override for Hydra, as it was typed where that will do: its records hold it."""
    key, value = override.key_or_group, override.value()
    _, form = parse_override(str(override.input_line)) or (override, "")
    if is_choice(override, groups):
        if _is_packaged(override) and value not in groups[key]:
            return ["dataset=_published", f"++dataset.name={written(value)}"]
        if override.is_delete() and key in LIST_KEYS:
            return []  # Hydra removes no list of options
        if key == "experiment" and value is None:
            return ["experiment=none"]  # Hydra cannot leave an option out
        return [form.lstrip("+")] if key in GROUPS else [form]
    values = value.list if isinstance(value, ChoiceSweep) else [value]
    if key in LIST_KEYS and any(isinstance(one, dict) for one in values):
        return [f"{key}=null", form]
    if is_hydras(override):
        return [form]
    if override.is_delete():  # of a key that is null, Hydra says that it does not exist
        return [f"{key}=0", f"~{key}"]
    # Keys that no YAML file may have: in a mapping, and those of another package's model.
    is_open = form[0] == "+" or isinstance(value, dict) or key.startswith("model.options.")
    return ["++" + form.lstrip("+")] if is_open else [form]


def translate(typed: Sequence[str], groups: Groups) -> list[str]:
    """From what gnntrain accepts on its command line to what Hydra accepts; see `hydra_lines`.

    Raises:
        ConfigError: With mistakes in form or in the file; there may be more, also of keys.
    """
    problems: list[Problem] = []
    texts, _ = with_file(typed, groups, problems)
    lines: list[str] = []
    for override in parse_overrides(texts, groups, problems, sweep=True):
        # Of `dataset: ../../mine` in a file Hydra would read that file.
        if not override.is_sweep_override() and (problem := choice_problem(override, groups)):
            problems.append(problem)
        lines += hydra_lines(override, groups)
    if problems:
        raise ConfigError(problems)
    return list(dict.fromkeys(lines))


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
