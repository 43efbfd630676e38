"""From plain data to the schema, with every mistake at once; and which keys of a run may change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gnntrain.config.checks import contradictions, machine_problems, missing_files
from gnntrain.config.problems import ConfigError, Problem, shown
from gnntrain.config.schema import Config
from gnntrain.config.section import Section, in_words, judged, key_schema

# Where, how fast and how long; not what is computed. `batch_size` is judged with the ranks.
_FREE_SECTIONS = ("run", "sweep", "logger", "checkpoint", "distributed", "features", "compute")
_FREE_KEYS = (
    *("dataset.root", "dataset.store_dir"),
    *("sampler.threads", "sampler.prefetch", "sampler.topology"),
    *("trainer.epochs", "trainer.patience", "trainer.eval_every", "trainer.log_every"),
    *("trainer.batch_size", "trainer.device", "trainer.gpus", "trainer.compile"),
    "trainer.cuda_graph",
    *("trainer.on_nonfinite", "trainer.max_restarts"),
    *("evaluation.ranks", "evaluation.memory_limit"),
)

# Backends that draw the same in-neighbours in the same order.
_SAME_DRAWS = {"auto", "numba", "triton"}


def from_dict(
    raw: Mapping[str, Any],
    *,
    saved: bool = False,
    found: Sequence[Problem] = (),
    gpus: Callable[[], Mapping[str, int]] | None = None,
) -> Config:
    """The configuration that `raw` (plain data, possibly in part) asks for.

    Args:
        raw: Sections by name, each a mapping of keys; what is left out has its default.
        saved: Read back from a run directory: raw files and plug-ins may have gone since, and
            are not looked for.
        found: Mistakes already known; what they touch is not compared with other keys.
        gpus: Counts this machine's GPUs by their type; None: what the machine lacks is no mistake.

    Raises:
        ConfigError: With every mistake: unknown keys and names, wrong types and ranges, keys that
            contradict each other, files that are not there.
    """
    config, wrong = judged(Config, raw, saved=saved)
    known = {problem.key for problem in found}
    problems = [*found, *(one for one in wrong if one.key not in known)]

    def is_sound(*keys: str) -> bool:
        """Whether no mistake so far touches these keys, so that they may be compared."""
        touched = [f"{problem.key.removesuffix('.name')}." for problem in problems]
        return not any(f"{key}.".startswith(bad) for key in keys for bad in touched)

    problems += [problem for keys, problem in contradictions(config) if is_sound(*keys)]
    problems += [one for one in (() if saved else missing_files(config)) if is_sound(one.key)]
    if gpus is not None:
        problems += [one for one in machine_problems(config, gpus) if is_sound(one.key)]
    if problems:
        raise ConfigError(problems)
    return config


def changed_meaning(begun: Config, asked: Config) -> list[Problem]:
    """The keys that would make another run of it, each with the value it was begun with.

    Args:
        begun: The configuration of the run so far.
        asked: The one it is to go on with.
    """
    before, after = begun.to_dict(), asked.to_dict()
    problems = []
    for section in (one for one in after if one not in _FREE_SECTIONS):
        old, new = before[section], after[section]
        is_other_kind = old.get("name") != new.get("name")  # its name alone is told
        for key in ("name",) if is_other_kind else new:
            path, values = f"{section}.{key}", (old.get(key), new[key])
            is_same = path == "sampler.backend" and {*values} <= _SAME_DRAWS
            if values[0] != values[1] and path not in _FREE_KEYS and not is_same:
                expects = f"{shown(values[0])}, with which the run was begun"
                hint = "leave it out, or train a new run with it"
                problems.append(Problem(path, shown(values[1]), expects, hint))
    return problems


def takes_integers(config: Config, key: str) -> bool:
    """Whether a dotted key takes whole numbers alone."""
    section, _, name = key.rpartition(".")
    owner = getattr(config, section, config)
    is_key = isinstance(owner, Section) and name in type(owner).model_fields
    return is_key and "an integer" in in_words(key_schema(type(owner), name))
