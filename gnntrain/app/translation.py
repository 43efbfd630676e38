"""From what gnntrain accepts on its command line to what Hydra accepts.

Most overrides go to Hydra as they were typed, so that its records hold what the user wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hydra.core.override_parser.types import ChoiceSweep, Override

from gnntrain.app.node import name_problem
from gnntrain.app.overrides import (
    LIST_KEYS,
    choice_problem,
    chosen_options,
    has_no_file,
    is_choice,
    is_hydras,
    is_packaged,
    option_text,
    parse_override,
    parse_overrides,
    written,
)
from gnntrain.app.refusals import HydraRefused
from gnntrain.app.sources import Sources, search_path, source_problems
from gnntrain.config.whole import ConfigFile, is_config_file, read_config_file
from gnntrain.groups import GROUPS, config_groups


def translate(typed: Sequence[str], sources: Sources, *, forced: bool = False) -> list[str]:
    """The overrides for Hydra.

    Args:
        typed: As for `compose_config`; a key may have several values.
        sources: Where the YAML files are.
        forced: Whether to set keys that stand in no YAML file, as those of a plug-in model.
            Otherwise Hydra refuses them.

    Raises:
        HydraRefused: There are mistakes; `compose_config` tells them.
    """
    problems = [*source_problems(sources)]
    groups = config_groups(sources.config_dirs, sources.config_path)
    files = [text for text in typed if is_config_file(text)]
    parsed = [parse_override(text) for text in typed if text not in files]
    read = [one for one in parsed if one is not None]
    typed_options = chosen_options((override for override, _ in read), groups)
    file = read_config_file(files, typed_options, groups, problems)
    found = [name_problem(override, groups) for override, _ in read]
    # Hydra would read any file of the disk as an option: `dataset: ../../mine`.
    lines = [f"{group}={option_text(option)}" for group, option in file.choices.items()]
    found += [choice_problem(one, groups) for one in parse_overrides(lines, groups, problems)]
    problems.extend(problem for problem in found if problem is not None)
    if problems or None in parsed:
        raise HydraRefused("the configuration has mistakes")
    lines = list(_of_file(file))
    for override, form in read:
        lines += _of_override(override, form, groups, forced=forced)
    if len(sources.config_dirs) > 1:  # Hydra's option --config-dir takes one
        lines.append(search_path(sources.own_dirs[1:]))
    return list(dict.fromkeys(lines))


def _of_file(file: ConfigFile) -> Iterator[str]:
    """The choices and keys of the user's file."""
    for group, option in file.choices.items():
        if is_packaged(group, option):
            yield from _packaged(str(option))
        else:
            yield f"{group}={option_text(option)}"
    for section, keys in file.whole.items():  # in place of the default option's keys
        yield f"{section}=[]" if section in LIST_KEYS else f"~{section}"
        yield f"++{section}={written(keys)}"
    for section, keys in file.keys.items():
        yield from (
            f"{section}.{key}=null"
            for key, value in (keys.items() if isinstance(keys, Mapping) else ())
            if f"{section}.{key}" in LIST_KEYS and isinstance(value, Mapping)
        )
        yield f"++{section}={written(keys)}"


def _packaged(name: str) -> list[str]:
    """The data set of an installed package, which has no YAML file."""
    return ["dataset=_published", f"++dataset.name={written(name)}"]


def _of_override(
    override: Override, form: str, groups: Mapping[str, Sequence[str]], *, forced: bool
) -> list[str]:
    if is_hydras(override):
        return [form]
    if is_choice(override, groups):
        if has_no_file(override, groups) and is_packaged("dataset", override.value()):
            return _packaged(str(override.value()))
        if forced and override.is_delete() and override.key_or_group in LIST_KEYS:
            return []  # Hydra removes no list of options
        if override.key_or_group == "experiment" and override.value() is None:
            return ["experiment=none"]  # Hydra cannot leave an option out
        is_shipped = override.key_or_group in GROUPS
        return [form.lstrip("+")] if forced and is_shipped else [form]
    if override.key_or_group in LIST_KEYS and _has_mapping(override):
        # Hydra merges no mapping with a list.
        return [f"{override.key_or_group}=null", form]
    if not forced:
        return [form]
    if override.is_delete():  # of a key that is null, Hydra says that it does not exist
        return [f"++{override.key_or_group}=0", form]
    return [f"++{form.lstrip('+')}"]


def _has_mapping(override: Override) -> bool:
    """Whether a mapping is the value, or one of the values of a sweep."""
    value = override.value()
    values = value.list if isinstance(value, ChoiceSweep) else [value]
    return any(isinstance(one, dict) for one in values)
