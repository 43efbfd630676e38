"""What was meant by a wrong key or name of a configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from gnntrain.config.datasets import DatasetConfig
from gnntrain.config.mistakes import UNKNOWN, Place, wrong_value
from gnntrain.config.models import PluginConfig
from gnntrain.config.problems import Problem, nearest, shown
from gnntrain.config.schema import Config, LoggerConfig
from gnntrain.config.types import flattened
from gnntrain.groups import GROUPS
from gnntrain.plugins import MODELS, plugin_names

_NOT_YET = (
    *("task.type=edge_classification", "task.type=edge_regression", "task.type=link_prediction"),
    *("task.type=graph_classification", "sampler.time_attr", "serve"),
)


def not_yet(typed: str) -> str | None:
    """A hint at a key, a value or a command that one would guess and that is not there yet."""
    found = any(typed == name or typed.startswith((f"{name}.", f"{name}=")) for name in _NOT_YET)
    return "not supported yet: docs/faq.md says what is" if found else None


def problems_of(place: Place, config: Config) -> Iterator[Problem]:
    """The problem of a wrong key; of an unknown section, those of each of its keys.

    Args:
        place: Of `Config`.
        config: The rest of the configuration.
    """
    if place.is_known:
        problem = wrong_value(place, Config)
        hint = not_yet(problem.assignment)
        yield replace(problem, **({"hint": hint} if hint else _of_name(place, problem)))
        return
    values = flattened(config.to_dict())
    for key, value in flattened({place.key: place.value}).items():
        yield Problem(key, shown(value), UNKNOWN, not_yet(key) or _meant(key, config, values))


def _of_name(place: Place, problem: Problem) -> dict[str, str]:
    """What to say else of the name of a data set, a model or a device."""
    if problem.key == "model.name" and place.value == PluginConfig().name:
        names = ", ".join(plugin_names(MODELS)) or f"no package offers one (entry points {MODELS})"
        expects = f"the name of an installed plug-in model: {names}"
        return {"expected": expects, "hint": "model=plugin model.name=NAME"}
    if problem.key == "dataset.name" and problem.hint is None:
        return {"hint": f"did you mean dataset=files dataset.name={problem.value}?"}
    if problem.key == "trainer.device" and place.value == "gpu":  # no spelling of xpu
        return {"hint": "leave it out: auto takes the GPUs there are"}
    return {}


def _meant(path: str, config: Config, values: Mapping[str, object]) -> str | None:
    """A hint at the key that was meant: its place, its spelling, or whose key it is."""
    typed, _, key = path.rpartition(".")
    is_known = typed in Config.model_fields or "." in typed
    section = typed if is_known else nearest(typed, Config.model_fields) or ""
    siblings = [known for known in values if known.rpartition(".")[0] == section]
    siblings += [f"logger.{name}" for name in LoggerConfig.model_fields if section == "logger"]
    owners = _owners(section, key)
    if owners and f"{section}.{key}" not in siblings:
        chosen = getattr(config, section)
        option = chosen.option if isinstance(chosen, DatasetConfig) else chosen.name
        few = owners if len(owners) <= 3 else [*owners[:3], "..."]
        return f"a key of {section}={'|'.join(few)}, not of {section}={option}"
    found = [known for known in values if known.endswith(f".{key}")]
    near = nearest(key, (known.rpartition(".")[2] for known in siblings))
    if section and near and (f"{section}.{key}" in siblings or not found):
        found = [f"{section}.{near}"]
    elif not section and not found:
        found = _alike(key, values)
    if not found and section not in ("", typed):
        found = [section]
    return _did_you_mean(values, *found)


def _owners(section: str, key: str) -> list[str]:
    """The names of a section that have the key, where its keys depend on its name."""
    if section not in Config.variants:
        return []
    variants = Config.variants[section]
    classes = {name: variants.choose({"name": name}) for name in variants.names()}
    return [name for name, kind in classes.items() if key in kind.model_fields]


def _alike(key: str, values: Mapping[str, object]) -> list[str]:
    """The group, or the keys, whose name without a section is most like `key`."""
    group = nearest(key, GROUPS)
    if group is not None:
        return [group]
    name = nearest(key, (known.rpartition(".")[2] for known in values), cutoff=0.7)
    return [known for known in values if known.endswith(f".{name}")]


def _did_you_mean(values: Mapping[str, object], *keys: str) -> str | None:
    """A question with each key's present value, if it has one."""
    now = [f"{key} (now {shown(values[key])})" if key in values else key for key in keys[:3]]
    return f"did you mean {' or '.join(now)}?" if now else None
