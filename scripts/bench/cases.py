"""What is measured: the graphs with their fan-outs, the stages, the contestants."""

from __future__ import annotations

from dataclasses import dataclass

OURS = "gnntrain"
BEFORE = "before"
"""Another checkout of gnntrain, with `--before`."""


@dataclass(frozen=True)
class Graph:
    """A data set of gnntrain's, and how it is sampled.

    Attributes:
        dataset: As `dataset=` takes it.
        fan_outs: In-neighbours drawn a node, the hop next to the seed nodes first.
        stages: What is measured on it.
        overrides: Further overrides of the data set.
        hidden: Width of the hidden layers.
        is_typed: Whether it has several node types: R-GCN is trained then, else GraphSAGE.
    """

    dataset: str
    fan_outs: tuple[int, ...]
    stages: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    hidden: int = 256
    is_typed: bool = False


GRAPHS = {
    "reddit": Graph("synthetic_reddit", (25, 10), ("sampling", "gather", "step", "inference")),
    # A peer's way of inference would need more memory here than most machines have.
    "products": Graph("synthetic_products", (15, 10, 5), ("sampling", "gather", "step")),
    "mag": Graph("synthetic_mag", (25, 20), ("sampling", "step"), hidden=64, is_typed=True),
    # To try the benchmark itself.
    "small": Graph(
        "synthetic",
        (10, 5),
        ("sampling", "gather", "step", "inference"),
        ("dataset.num_nodes=20000",),
    ),
}

# Most batches a turn; a slow contestant's turn is cut short by time.
STAGES = {"sampling": 128, "gather": 48, "step": 16, "inference": 8}

PEERS = {
    "pyg": "pyg",
    "pyg-trimmed": "pyg",
    "graphbolt": "graphbolt",
    "graphbolt-sparse": "graphbolt",
}
"""Contestants beside ours, with the script of `peers/` that is run."""

PEER_STAGES = {
    "pyg": ("sampling", "gather", "step", "inference"),
    "pyg-trimmed": ("step",),  # before the step there is nothing to trim
    "graphbolt": ("sampling", "gather", "step"),
}

TYPED_PEER_STAGES = {
    "pyg": ("sampling", "step"),
    "graphbolt": ("sampling", "step"),
    "graphbolt-sparse": ("step",),
}
"""The same on typed graphs."""

BATCH_SIZE = 1024


@dataclass(frozen=True)
class Entry:
    """A contestant in one sitting."""

    name: str
    precision: str
    threads: int

    @property
    def is_ours(self) -> bool:
        return self.name == OURS

    @property
    def label(self) -> str:
        return self.name if self.precision == "fp32" else f"{self.name} {self.precision}"
