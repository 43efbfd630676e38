"""What a calibration measured: plain records that travel between processes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchSize:
    """What one mini-batch of a rank held.

    Attributes:
        num_seeds: Seed nodes.
        num_nodes: All its nodes.
        num_dst: Destinations of each layer, the innermost first.
        num_edges: Edges of each layer, the innermost first.
        rows_read: Feature rows that are read for it.
    """

    num_seeds: int
    num_nodes: int
    num_dst: tuple[int, ...]
    num_edges: tuple[int, ...]
    rows_read: int


@dataclass(frozen=True, slots=True)
class EvaluationCost:
    """What evaluating all nodes once will take on one rank, scaled up from a part.

    Attributes:
        seconds: Of each layer, or of each split where mini-batches are evaluated; then the metrics.
        extra_bytes: Memory of its own beside the layers' whole matrices.
        widths: Of what each layer aggregates where that is a matrix of its own, else 0.
    """

    seconds: tuple[float, ...]
    extra_bytes: int
    widths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RankMeasure:
    """What one rank measured.

    Attributes:
        num_parameters: Trainable parameters.
        steps_per_epoch: Steps of a whole epoch.
        step_seconds: Mean over the steps that were timed, with the wait for the batch.
        num_timed: How many those were.
        batches: The mini-batches' sizes.
        own_peak: Most memory of its own in the steps.
        own_after: Memory of its own after them.
        library_bytes: Resident pages of files that are not the store's.
        store_bytes: Bytes of the store's arrays that this model reads.
        gpu_peak: Most memory that torch held on the GPU; 0 without one.
        evaluation: What evaluation will take.
        placement: Where a GPU would read the graph, and why; empty where none trains.
    """

    num_parameters: int
    steps_per_epoch: int
    step_seconds: float
    num_timed: int
    batches: tuple[BatchSize, ...]
    own_peak: int
    own_after: int
    library_bytes: int
    store_bytes: int
    gpu_peak: int
    evaluation: EvaluationCost
    placement: tuple[str, ...] = ()
