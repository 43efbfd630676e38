"""What a run's best model predicts, in a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnntrain.commands.base import Arguments, Command, option, say, switch

if TYPE_CHECKING:
    from gnntrain.config import Config, DatasetConfig

# How a graph is prepared for a model; another graph is prepared alike.
_PREPARATION = ("to_undirected", "add_self_loops", "normalize_features", "feature_dtype")
_UNREAD = ("labels", "split")


def _predict(arguments: Arguments) -> int:
    from gnntrain.run import saved_config

    config = None
    if arguments.overrides:
        config = predicting_config(saved_config(arguments.positionals[0]), arguments.overrides)
    from gnntrain.results.prediction import predict

    given = {"what": arguments.what, "nodes": arguments.nodes}
    done = predict(
        arguments.positionals[0],
        arguments.out,
        config=config,
        reread=any(map(_is_about_graph, arguments.overrides)),
        strict=arguments.strict,
        spreadsheet_safe=arguments.spreadsheet_safe,
        **{key: value for key, value in given.items() if value is not None},
    )
    say(f"{done.path}: {done.what} of {done.num_rows:,} nodes of {done.dataset}")
    say(f"by {done.run}, best epoch {done.epoch}")
    return 0


def predicting_config(saved: Mapping[str, Any], overrides: Sequence[str]) -> Config:
    """The configuration of a run with the graph that it is to predict for.

    Another graph is prepared as the run's was (`to_undirected` and the like) unless `overrides`
    say otherwise; of the same kind, as files, it is also read alike.

    Raises:
        ConfigError: With every mistake.
    """
    from gnntrain.app import compose_config, recompose_config
    from gnntrain.app.overrides import written
    from gnntrain.config import FilesConfig, from_dict

    about_graph = list(filter(_is_about_graph, overrides))
    others = [o for o in overrides if o not in about_graph]
    config = from_dict(saved, saved=True)
    if others:  # one process predicts, on what is here
        config = recompose_config(saved, others, for_here=False)
    if not about_graph:
        return config
    begun = config.dataset
    choice = next((o for o in about_graph if o.startswith("dataset=")), f"dataset={begun.option}")
    rest = [o for o in about_graph if not o.startswith("dataset=")]
    is_same_kind = choice == f"dataset={begun.option}" and _has_same_files(begun, rest)
    kept = set(type(begun).model_fields) - {*_UNREAD} if is_same_kind else _PREPARATION
    values = {key: getattr(begun, key) for key in sorted(kept)}
    if is_same_kind and isinstance(begun, FilesConfig):
        _move(values, has_moved=any(o.startswith("dataset.root=") for o in about_graph))
    own = [f"dataset.{key}={written(value)}" for key, value in values.items()]
    dataset = compose_config([choice, *own, *rest]).config.dataset
    if is_same_kind and isinstance(begun, FilesConfig):
        # They are not read; but with files of their own, no column of the features holds them.
        dataset = dataset.model_copy(update={key: getattr(begun, key) for key in _UNREAD})
    dataset = dataset.for_target(begun.target, quantities=begun.quantities)
    return config.model_copy(update={"dataset": dataset})


def _is_about_graph(override: str) -> bool:
    return override.lstrip("+~").startswith(("dataset=", "dataset."))


def _has_same_files(begun: DatasetConfig, overrides: Sequence[str]) -> bool:
    """Whether a run's graph and that of `overrides` are both one file, a schema's, or several."""
    typed = {o.lstrip("+~").partition("=")[0].partition(".")[2] for o in overrides}
    for key in ("data", "schema"):
        if key in typed:
            return getattr(begun, key, None) is not None
    return not typed & {"edges", "features"} or getattr(begun, "edges", None) is not None


def _move(values: dict[str, Any], *, has_moved: bool) -> None:
    """Leave out the root of a run's files, whose paths are absolute; where another root is given,
    files of the same names lie there."""
    root = values.pop("root")
    for key in ("data", "edges", "features"):
        path = values[key]
        if has_moved and root is not None and path is not None and Path(path).is_relative_to(root):
            values[key] = str(Path(path).relative_to(root))


COMMAND = Command(
    "RUN --out FILE [--what WHAT] [--nodes NODES] [--strict] [group.key=value] ...",
    "what a run's best model predicts, node by node, in a file",
    "RUN is a run directory, a name under runs/, or `latest`. The file's ending says its format: "
    "csv, parquet, npz or npy; the nodes have the ids, classes and quantities the names that your "
    "files gave them. It is computed over all neighbours, and written piece by piece: it need not "
    "fit in memory. With dataset=... or dataset.key=..., for another graph with the same features, "
    "prepared as the run's was unless keys say otherwise; of dataset=files, labels are not needed.",
    [
        "gnntrain predict latest --out predictions.csv",
        "gnntrain predict latest --out test.parquet --what probabilities --nodes test",
        "gnntrain predict latest --out new.npz dataset.seed=1",
    ],
    _predict,
    positionals=["run directory"],
    changes_keys=True,
    options=[
        option("--out", "FILE", "the new .csv, .parquet, .npz or .npy", required=True),
        option("--what", "WHAT", "class (default), probabilities, logits, value or embeddings"),
        option("--nodes", "NODES", "all (default), train, val, test, or a file of node ids"),
        switch("--spreadsheet-safe", "an apostrophe before texts of a csv that begin with = + - @"),
        switch("--strict", "refuse another graph that is unlike the run's: no mere warning"),
    ],
)
