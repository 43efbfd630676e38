"""What a run has reached: metrics, predictions, the model itself, a page."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnntrain.commands.parsing import command, option, say
from gnntrain.errors import UserError
from gnntrain.paths import expanded

if TYPE_CHECKING:
    from gnntrain.config import Config

# How a graph is prepared for a model; another graph is prepared alike.
_PREPARATION = ("to_undirected", "add_self_loops", "normalize_features", "feature_dtype")
_UNREAD = ("labels", "split")


@command("RUN", least=1)
def evaluate(arguments: Namespace) -> int:
    """exact metrics of a run's best checkpoint, on all splits

    RUN is a run directory, a name under runs/, or `latest`.

    examples:
      gnntrain evaluate latest
    """
    from gnntrain.reporting.text import format_metric, shown_path
    from gnntrain.run import evaluate

    result = evaluate(arguments.words[0])
    run = shown_path(result["run"])
    say(f"{run}, best epoch {result['epoch']}, chosen by val {result['metric']}")
    if result["positive_class"] is not None:
        say(f"positive class {result['positive_class']}")
    if result["estimated"]:
        say(f"estimated: {result['estimated']}")
    for split, metrics in result["metrics"].items():
        figures = "  ".join(f"{name} {format_metric(value)}" for name, value in metrics.items())
        say(f"  {split:5}  {figures or 'no labelled node'}")
    return 0


@command(
    "RUN --out FILE [--what WHAT] [--nodes NODES] [--strict] [group.key=value] ...",
    option("--out", "FILE", "the new .csv, .parquet, .npz or .npy", required=True),
    option("--what", "WHAT", "class (default), probabilities, logits, value or embeddings"),
    option(
        "--nodes", "NODES", "all (default), train, val, test, or a file of node ids", default="all"
    ),
    option("--strict", "", "refuse another graph that is unlike the run's: no mere warning"),
    least=1,
)
def predict(arguments: Namespace) -> int:
    """what a run's best model predicts, node by node, in a file

    RUN is a run directory, a name under runs/, or `latest`. The file's ending says its format. It
    is computed over all neighbours. With dataset=... or dataset.key=..., for another graph with the
    same features, prepared as the run's was unless keys say otherwise; of dataset=files, labels are
    not needed.

    examples:
      gnntrain predict latest --out predictions.csv
      gnntrain predict latest --out test.parquet --what probabilities --nodes test
      gnntrain predict latest --out new.npz dataset.seed=1
    """
    from gnntrain.reporting.rundir import RunDirectory

    run, overrides = arguments.words[0], arguments.overrides
    config = None
    if overrides:
        config = predicting_config(RunDirectory.open(run).config(), overrides)
    from gnntrain.results.prediction import predict

    done = predict(
        run,
        arguments.out,
        what=arguments.what,
        nodes=arguments.nodes,
        config=config,
        reread=any(map(_is_about_graph, overrides)),
        strict=arguments.strict,
    )
    say(f"{done.path}: {done.what} of {done.num_rows:,} nodes of {done.dataset}")
    say(f"by {done.run}, best epoch {done.epoch}")
    return 0


def _is_about_graph(override: str) -> bool:
    return override.lstrip("+~").startswith(("dataset=", "dataset."))


def predicting_config(saved: Mapping[str, Any], overrides: Sequence[str]) -> Config:
    """The configuration of a run with the graph that it is to predict for.

    Another graph is prepared as the run's was (`to_undirected` and the like) unless `overrides`
    say otherwise; of the same kind, as files, it is also read alike.

    Raises:
        ConfigError: With every mistake.
    """
    from gnntrain.app import compose_config, recompose_config
    from gnntrain.app.overrides import written
    from gnntrain.config import FilesConfig

    about_graph = list(filter(_is_about_graph, overrides))
    others = [o for o in overrides if o not in about_graph]
    config = recompose_config(saved, others, for_here=False)  # one process predicts
    if not about_graph:
        return config
    begun = config.dataset
    choice = next((o for o in about_graph if o.startswith("dataset=")), f"dataset={begun.option}")
    rest = [o for o in about_graph if not o.startswith("dataset=")]
    typed = {o.lstrip("+~").partition("=")[0].partition(".")[2] for o in rest}
    # Both graphs are one file, a schema's, or several files.
    source = next((key for key in ("data", "schema", "edges", "features") if key in typed), None)
    source = "edges" if source == "features" else source
    has_same_files = source is None or getattr(begun, source, None) is not None
    is_same_kind = choice == f"dataset={begun.option}" and has_same_files
    kept = [key for key in type(begun).model_fields if is_same_kind or key in _PREPARATION]
    values = {key: getattr(begun, key) for key in kept if key not in _UNREAD}
    if is_same_kind and isinstance(begun, FilesConfig):
        # The paths are absolute; where another root is given, files of the same names lie there.
        root = values.pop("root")
        for key in ("data", "edges", "features") if root and "root" in typed else ():
            path = values[key]
            if path is not None and Path(path).is_relative_to(root):
                values[key] = str(Path(path).relative_to(root))
    own = [f"dataset.{key}={written(value)}" for key, value in values.items()]
    dataset = compose_config([choice, *own, *rest]).dataset
    if is_same_kind and isinstance(begun, FilesConfig):
        # They are not read; but with files of their own, no column of the features holds them.
        dataset = dataset.model_copy(update={key: getattr(begun, key) for key in _UNREAD})
    dataset = dataset.for_target(begun.target, quantities=begun.quantities)
    return config.model_copy(update={"dataset": dataset})


@command(
    "RUN [--out DIR]",
    option("--out", "DIR", "where to; must not be there yet, or empty"),
    least=1,
)
def export(arguments: Namespace) -> int:
    """a run's best model as one of torch and PyG alone, with a model card

    RUN is a run directory, a name under runs/, or `latest`. The folder (RUN/export unless --out
    says otherwise) holds the weights and a Python file that loads them with torch and PyG alone.

    examples:
      gnntrain export latest
    """
    from gnntrain.reporting.text import shown_path
    from gnntrain.results.export import export

    done = export(arguments.words[0], arguments.out)
    say(f"{shown_path(done.path)}: the best model of {done.run} as {done.made_with}")
    say("README.md there says how to use it without gnntrain")
    return 0


@command(
    "RUN [RUN ...]",
    option("--out", "FILE", "the report; its suffix is the format", type=expanded),
    option("--format", "FORMAT", "html (default) or csv (a row a run)"),
    option("--figures", "DIR", "a folder for the page's figures, a PNG file each", type=expanded),
    least=1,
    most=sys.maxsize,
)
def report(arguments: Namespace) -> int:
    """one page about a run, or a comparison of several

    RUN is a run directory, a name under runs/, `latest`, or a folder of runs, such as a sweep's.
    The page is one HTML file that needs no network. It goes to RUN/report.html; of several
    arguments to report.html here.

    examples:
      gnntrain report latest
      gnntrain report runs/a runs/b --out comparison.html
      gnntrain report latest --format csv
    """
    from gnntrain.report.writing import write_report
    from gnntrain.reporting.text import shown_path

    out = arguments.out
    if out == Path("-"):
        raise UserError("a report is a file, and --out=- names none", "As in `--out report.csv`.")
    path = write_report(arguments.words, out, arguments.format, say, arguments.figures)
    say(shown_path(path))
    return 0
