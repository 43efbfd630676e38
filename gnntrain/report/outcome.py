"""What a run's best model says of the graph it was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gnntrain.compute.features import LazyFeatures
from gnntrain.config import from_dict
from gnntrain.data.graph import Graph
from gnntrain.data.summary import DataSummary
from gnntrain.errors import GnntrainError
from gnntrain.inference import load_best
from gnntrain.models import PlainModel
from gnntrain.report.classes import ClassFindings
from gnntrain.report.findings import Findings
from gnntrain.report.runs import ReportedRun
from gnntrain.report.shape import Degrees, degrees_of
from gnntrain.report.values import ValueFindings
from gnntrain.run_store import open_run_store
from gnntrain.training.evaluation import SPLITS

_OUTPUTS = {"multilabel": "labels", "continuous": "targets"}


@dataclass(frozen=True)
class GraphSummary:
    """What the graph of a run is.

    Attributes:
        num_nodes, num_edges, num_features: Its sizes.
        num_outputs, outputs: How many classes, labels or targets there are, and which of the three.
        split_sizes: Nodes of train, val and test.
        degrees: Its in-degrees.
        data: What was read to make it; None where its store does not say.
    """

    num_nodes: int
    num_edges: int
    num_features: int
    num_outputs: int
    outputs: str
    split_sizes: Mapping[str, int]
    degrees: Degrees
    data: DataSummary | None = None


@dataclass
class Outcome:
    """What there is to say of a run's graph and best model; what is missing is in `notes`.

    Attributes:
        graph: The graph; None where it is gone.
        findings: What the model says; None where it is gone.
        notes: What was left out and why, in sentences.
    """

    graph: GraphSummary | None = None
    findings: Findings | None = None
    notes: list[str] = field(default_factory=list)


def outcome_of(run: ReportedRun) -> Outcome:
    """Compute what a run's best model says of every node of its graph.

    A graph or a checkpoint that is gone is no error: the outcome's notes say what is left out.
    """
    outcome = Outcome()
    try:
        store = open_run_store(run.run, from_dict(run.run.config(), saved=True).dataset).store
    except GnntrainError as error:
        left_out = "Degrees, scores and the embeddings are left out"
        outcome.notes.append(f"{left_out}: {_sentence(error)}")
        return outcome
    outcome.graph = graph_of(store)
    try:
        outcome.findings = _findings(run)
    except GnntrainError as error:
        left_out = "Scores and the embeddings are left out"
        outcome.notes.append(f"{left_out}: {_sentence(error)}")
        return outcome
    outcome.notes += outcome.findings.notes
    if outcome.findings.projection is None:
        outcome.notes.append("The embeddings are left out: they are too few or not finite.")
    return outcome


def graph_of(store: Graph) -> GraphSummary:
    """The facts of a graph."""
    return GraphSummary(
        num_nodes=store.num_nodes,
        num_edges=store.num_edges,
        num_features=store.num_features,
        num_outputs=store.num_classes,
        outputs=_OUTPUTS.get(store.task, "classes"),
        split_sizes={name: len(store.split(name)) for name in SPLITS},
        degrees=degrees_of(store.indptr),
        data=store.summary,
    )


def _sentence(error: GnntrainError) -> str:
    text = " ".join(error.message.split()).rstrip(".")
    return f"{text}. {error.hint}" if error.hint else f"{text}."


def _findings(run: ReportedRun) -> Findings:
    """What the run's best model says of every node."""
    best = load_best(run.run.path)
    found = best.infer(embed=not isinstance(best.model, PlainModel))
    rows = found.embeddings
    # A single layer's rows are the features.
    hidden = None if rows is None or isinstance(rows, LazyFeatures) else rows.numpy()
    if best.graph.task != "continuous":
        return ClassFindings.of(best.graph, found.logits.numpy(), hidden)
    return ValueFindings.of(best.graph, best.task, found.logits, hidden)
