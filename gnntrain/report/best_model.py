"""A run's graph, and the predictions of its best model."""

from __future__ import annotations

from dataclasses import dataclass, field

from gnntrain.compute.features import LazyFeatures
from gnntrain.config import from_dict
from gnntrain.data.graph import Graph
from gnntrain.devices import alone_in_process
from gnntrain.errors import GnntrainError
from gnntrain.inference import load_best
from gnntrain.models import PlainModel
from gnntrain.report.classification import SCORED_SPLITS, ClassFindings
from gnntrain.report.regression import ValueFindings
from gnntrain.report.runs import ReportedRun
from gnntrain.run_store import open_run_store


@dataclass
class Outcome:
    """A run's graph and the findings of its best model.

    Attributes:
        graph: The graph; None where it is gone.
        findings: The predictions against the truth; None where the checkpoint is gone.
        notes: Missing parts and the reason, in sentences.
    """

    graph: Graph | None = None
    findings: ClassFindings | ValueFindings | None = None
    notes: list[str] = field(default_factory=list)


def outcome_of(run: ReportedRun) -> Outcome:
    """Compute the predictions of a run's best model for every node of its graph.

    Where the graph or the checkpoint is gone, the outcome's notes name the missing parts.
    """
    outcome = Outcome()
    missing = "Degrees, scores and embeddings are missing"
    try:
        config = from_dict(run.run.config(), saved=True)
        outcome.graph = open_run_store(run.run, config.dataset).store
        missing = "Scores and embeddings are missing"
        findings = outcome.findings = _findings(run)
    except GnntrainError as error:
        text = " ".join(error.message.split()).rstrip(".")
        outcome.notes.append(f"{missing}: {text}. {error.hint or ''}".rstrip())
        return outcome
    unlabelled = [split for split in SCORED_SPLITS if split not in findings.scored_splits]
    outcome.notes += [f"No node of the {split} split has a label." for split in unlabelled]
    if findings.projection is None:
        outcome.notes.append("Embeddings are missing: too few labelled nodes, or no finite values.")
    return outcome


@alone_in_process()
def _findings(run: ReportedRun) -> ClassFindings | ValueFindings:
    best = load_best(run.run.path)
    found = best.infer(embed=not isinstance(best.model, PlainModel))
    rows = found.embeddings
    # The input of a single layer are the features.
    hidden = None if rows is None or isinstance(rows, LazyFeatures) else rows.numpy()
    if best.graph.task != "continuous":
        return ClassFindings.of(best.graph, found.outputs.numpy(), hidden, best.positive_class)
    return ValueFindings.of(best.graph, best.task, found.outputs, hidden)
