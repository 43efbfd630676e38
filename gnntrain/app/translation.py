"""From what gnntrain accepts on its command line to what Hydra accepts.

Most overrides go to Hydra as they were typed, so that its records hold what the user wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hydra.core.override_parser.types import Override

from gnntrain.app.composing import Sources, folder_problems, has_no_file, search_path
from gnntrain.app.node import name_problem
from gnntrain.app.overrides import is_choice, is_hydras, is_packaged, parse_override, written
from gnntrain.app.refusals import HydraRefused
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
    problems = [problem for folder in sources.config_dirs for problem in folder_problems(folder)]
    groups = config_groups(sources.config_dirs, sources.config_path)
    files = [text for text in typed if is_config_file(text)]
    parsed = [parse_override(text) for text in typed if text not in files]
    read = [one for one in parsed if one is not None]
    chosen = {override.key_or_group for override, _ in read if is_choice(override, groups)}
    file = read_config_file(files, chosen, groups, problems)
    found = (name_problem(override, groups) for override, _ in read)
    problems.extend(problem for problem in found if problem is not None)
    if problems or None in parsed:
        raise HydraRefused("the configuration has mistakes")
    lines = list(_of_file(file, chosen))
    for override, form in read:
        lines += _of_override(override, form, groups, forced=forced)
    if len(sources.config_dirs) > 1:  # Hydra's option --config-dir takes one
        lines.append(search_path(sources.config_dirs[1:]))
    return list(dict.fromkeys(lines))


def _of_file(file: ConfigFile, chosen: set[str]) -> Iterator[str]:
    """The choices and keys of the user's file."""
    for group, option in file.choices.items():
        if is_packaged(group, option):
            yield from _packaged(str(option))
        else:
            yield f"{group}={_option(option)}"
    for section, keys in file.keys.items():
        if file.is_whole and section not in chosen:
            yield f"~{section}"
        yield f"++{section}={written(keys)}"


def _option(option: object) -> str:
    if isinstance(option, list):
        return "[" + ",".join(map(str, option)) + "]"
    return "null" if option is None else str(option)


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
        is_shipped = override.key_or_group in GROUPS
        return [form.lstrip("+")] if forced and is_shipped else [form]
    if not forced:
        return [form]
    if override.is_delete():  # of a key that is null, Hydra says that it does not exist
        return [f"++{override.key_or_group}=0", form]
    return [f"++{form.lstrip('+')}"]
