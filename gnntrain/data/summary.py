"""What was read to make a graph, in words: for consoles, reports, cards and summaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from gnntrain.data.graph import GraphData


class DataSummary(BaseModel):
    """What of a user's files became what; each value is a short phrase without a full stop.

    Attributes:
        ids: Where the nodes' ids come from: "column fips of nodes.csv", "row numbers".
        labels: The column or columns, what they are (classes, their number and names; or the range
            of a quantity), how many nodes have none.
        features: Their number, their names, and what was done to them.
        edges: Number given, the columns of both ends, direction, weight.
        split: Where it comes from, or how it was drawn (ratio, seed, number); sizes of train, val
            and test.
        left_out: Columns that were not used, each with the reason.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    ids: str = ""
    labels: str = ""
    features: str = ""
    edges: str = ""
    split: str = ""
    left_out: Mapping[str, str] = {}


def summary_of(data: GraphData) -> DataSummary:
    """What the arrays of a graph say by themselves, where its builder says nothing."""
    sizes = ", ".join(f"{len(ids):,} {name}" for name, ids in data.splits.items())
    return DataSummary(
        labels=f"{data.num_classes:,} classes" if data.task != "continuous" else "quantities",
        features=f"{data.num_features:,} numbers",
        edges=f"{len(data.src):,} given",
        split=sizes,
    )
