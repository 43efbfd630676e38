"""What a report says of a model's predictions; the one thing in it that depends on the task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gnntrain.report.content import Section
from gnntrain.report.shape import Projection

SCORED_SPLITS = ("val", "test")


class Findings(Protocol):
    """What a model says of the nodes of its graph: `ClassFindings`, or `ValueFindings`."""

    @property
    def projection(self) -> Projection | None:
        """Some labelled nodes in the plane; None where they could not be placed."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What is missing and why, in sentences."""
        ...

    def sections(self, epoch: int | None) -> list[Section]:
        """The parts of a report about them.

        Args:
            epoch: The model's best epoch.
        """
        ...


def unlabelled_note(split: str) -> str:
    """What to say of a split without a label."""
    return f"No node of the {split} split has a label."


def projection_caption(projection: Projection) -> str:
    """What was placed in the plane."""
    shown, of_all = len(projection.nodes), projection.num_labelled
    of = f"{shown:,} of {of_all:,}" if shown < of_all else f"all {shown:,}"
    return (
        f"t-SNE of {projection.source}, {of} labelled nodes. "
        "Distances between clusters mean little."
    )
