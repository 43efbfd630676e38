"""Which keys a run may change when it goes on from a checkpoint."""

from __future__ import annotations

from gnntrain.config.problems import Problem, shown
from gnntrain.config.schema import Config

# Where, how fast and how long; not what is computed. `batch_size` is judged with the ranks.
_FREE_SECTIONS = ("run", "sweep", "logger", "checkpoint", "distributed", "features", "compute")
_FREE_KEYS = (
    *("dataset.root", "dataset.store_dir"),
    *("sampler.threads", "sampler.prefetch", "sampler.topology"),
    *("trainer.epochs", "trainer.patience", "trainer.eval_every", "trainer.log_every"),
    *("trainer.batch_size", "trainer.device", "trainer.gpus", "trainer.compile"),
    *("trainer.cuda_graph", "trainer.matmul_precision"),
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
