"""Which keys a run may change when it goes on from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from gnntrain.config.problems import Problem, shown
from gnntrain.config.schema import Config
from gnntrain.config.types import JSON

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


def changed_meaning(begun: Config, asked: Config) -> list[Problem]:
    """The keys that would make another run of it, each with the value it was begun with.

    Args:
        begun: The configuration of the run so far.
        asked: The one it is to go on with.
    """
    before, after = begun.to_dict(), asked.to_dict()
    changed = [
        (key, old, new)
        for section in after
        if section not in _FREE_SECTIONS
        for key, old, new in _changed(section, before[section], after[section])
        if key not in _FREE_KEYS
        if not (key == "sampler.backend" and {old, new} <= _SAME_DRAWS)
    ]
    return [
        Problem(
            key,
            shown(new),
            f"{shown(old)}, with which the run was begun",
            "leave it out, or train a new run with it",
        )
        for key, old, new in changed
    ]


def _changed(section: str, before: JSON, after: JSON) -> Iterator[tuple[str, object, object]]:
    """(key, old value, new value); of another kind of section its name alone."""
    if before.get("name") != after.get("name"):
        yield f"{section}.name", before.get("name"), after.get("name")
        return
    for key, new in after.items():
        if before.get(key) != new:
            yield f"{section}.{key}", before.get(key), new
