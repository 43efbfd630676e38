"""Host memory, GPU memory and disk that a run will take, from what a calibration measured."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from gnntrain.config import Config, LayeredConfig
from gnntrain.data.graph import Graph
from gnntrain.planning.measured import BatchSize, RankMeasure

Place = Literal["memory", "shared memory", "disk"]

_SHARED_MEMORY = Path("/dev/shm")
_FLOAT = 4
# Weights, and Adam's two averages of the same size; three checkpoints are kept.
_STATE_COPIES = 3
_CHECKPOINTS = 3
# Of a node that is judged, beside its row of logits twice: class numbers and what counts them.
_JUDGED_BYTES = 48
_CUDA_CONTEXT = 500 * 2**20


@dataclass(frozen=True, slots=True)
class Matrix:
    """One whole layer of exact evaluation: all nodes' rows."""

    name: str
    num_bytes: int
    place: Place


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Host memory; all ranks together but where said otherwise.

    Attributes:
        training: Of the ranks' own, in a step.
        evaluation: Of the ranks' own, in evaluation, with layers that a rank keeps for itself.
        a_rank: Of one rank's own, the most.
        shared: Layers in shared memory.
        on_disk: Layers in files that are mapped.
        libraries: Pages of libraries, a rank.
        store: Pages of the graph store: the page cache's, once a machine; they can be dropped.
        needed: What cannot be dropped, at the worst moment.
        peak_rss: What `summary.json` will call `peak_rss_bytes`: a page that several ranks map
            counts in each.
    """

    training: int
    evaluation: int
    a_rank: int
    shared: int
    on_disk: int
    libraries: int
    store: int
    needed: int
    peak_rss: int


@dataclass(frozen=True, slots=True)
class GPUMemory:
    """An estimate, by formula, of what one GPU has to hold beside the graph.

    Attributes:
        state: Weights, gradients and the optimiser's state.
        batch: The largest mini-batch with all that is kept for the backward pass.
        evaluation: The widest layer of exact evaluation.
        total: At the worst moment, with CUDA's own.
    """

    state: int
    batch: int
    evaluation: int
    total: int


def layer_matrices(
    config: Config, store: Graph, widths: Sequence[int], world_size: int
) -> list[list[Matrix]]:
    """Which matrices exact evaluation holds at once, layer by layer, then while metrics are
    computed; none where it is sampled.

    Args:
        config: The run's.
        store: Its graph.
        widths: `EvaluationCost.widths`.
        world_size: Ranks.
    """
    model = config.model
    if not widths or not isinstance(model, LayeredConfig):
        return []
    limit = config.evaluation.memory_limit
    limit_bytes = psutil.virtual_memory().total // 4 if limit is None else int(limit * 2**30)

    def matrix(name: str, width: int) -> Matrix:
        num_bytes = _FLOAT * width * store.num_nodes
        return Matrix(name, num_bytes, _place(num_bytes, limit_bytes, world_size))

    held: dict[str, Matrix] = {}
    moments = []
    for i, width in enumerate(widths):
        is_last = i == len(widths) - 1
        name = "logits" if is_last else f"h{i % 2}"
        held[name] = matrix(name, store.num_outputs if is_last else model.hidden_channels)
        moments.append([*held.values(), *([matrix("z", width)] if width else [])])
    return [*moments, list(held.values())]


def _place(num_bytes: int, limit: int, world_size: int) -> Place:
    """Where `SharedBuffers` puts a matrix."""
    fits = num_bytes <= limit
    if world_size == 1 and fits:
        return "memory"
    roomy = _SHARED_MEMORY.is_dir() and shutil.disk_usage(_SHARED_MEMORY).free > 2 * num_bytes
    return "shared memory" if fits and roomy else "disk"


def host_memory(
    config: Config,
    store: Graph,
    ranks: Sequence[RankMeasure],
    moments: Sequence[Sequence[Matrix]],
) -> HostMemory:
    """Host memory, from the ranks' measures and the layers of exact evaluation."""
    saved = _STATE_COPIES * _FLOAT * ranks[0].num_parameters  # a copy, on rank 0, while it is saved
    judged = _judged_bytes(store)
    sums = [
        {place: _sum(moment, place) for place in ("memory", "shared memory", "disk")}
        for moment in (moments or [[]])
    ]
    # Metrics are computed on rank 0, when the last layer is there.
    extra = [rank.evaluation.extra_bytes for rank in ranks]
    last = sums[-1]
    on_main = max(
        max(moment["memory"] for moment in sums) + extra[0], last["memory"] + judged + saved
    )
    own_evaluation = [
        rank.own_after + (on_main if number == 0 else extra[number])
        for number, rank in enumerate(ranks)
    ]
    own_training = [
        rank.own_peak + (saved if number == 0 else 0) for number, rank in enumerate(ranks)
    ]
    shared = max(moment["shared memory"] for moment in sums)
    on_disk = max(moment["disk"] for moment in sums)
    exact = bool(moments)
    seen = 1.0 if exact else _share_seen(config, store, ranks)
    store_bytes = round(seen * ranks[0].store_bytes)
    in_training = round(_share_seen(config, store, ranks) * ranks[0].store_bytes)
    peaks = [
        rank.library_bytes
        + max(training + in_training, evaluation + store_bytes + shared + on_disk)
        for rank, training, evaluation in zip(ranks, own_training, own_evaluation, strict=True)
    ]
    return HostMemory(
        training=sum(own_training),
        evaluation=sum(own_evaluation),
        a_rank=max(*own_training, *own_evaluation),
        shared=shared,
        on_disk=on_disk,
        libraries=max(rank.library_bytes for rank in ranks),
        store=store_bytes,
        needed=max(sum(own_training), sum(own_evaluation) + shared),
        peak_rss=sum(peaks),
    )


def _sum(moment: Sequence[Matrix], place: str) -> int:
    return sum(matrix.num_bytes for matrix in moment if matrix.place == place)


def _judged_bytes(store: Graph) -> int:
    """What the metrics of the largest split take beside the layers."""
    most = max(len(store.split(name)) for name in ("train", "val", "test"))
    return most * (2 * _FLOAT * store.num_outputs + _JUDGED_BYTES)


def _share_seen(config: Config, store: Graph, ranks: Sequence[RankMeasure]) -> float:
    """The share of the store that one rank's mini-batches read in all epochs, about."""
    batches = ranks[0].batches
    share = sum(batch.num_nodes for batch in batches) / len(batches) / store.num_nodes
    steps = config.trainer.epochs * ranks[0].steps_per_epoch
    if config.trainer.max_steps is not None:
        steps = min(steps, config.trainer.max_steps)
    return float(1 - (1 - min(1.0, share)) ** steps)


def gpu_memory(
    config: Config, store: Graph, rank: RankMeasure, moments: Sequence[Sequence[Matrix]]
) -> GPUMemory:
    """GPU memory of a rank, by formula; where torch has measured a step, its figure counts."""
    model = config.model
    hidden = model.hidden_channels if isinstance(model, LayeredConfig) else 0
    state = 4 * _FLOAT * rank.num_parameters
    batch = max(_batch_bytes(size, store, hidden) for size in rank.batches)
    evaluation = 2 * max((m.num_bytes for moment in moments for m in moment), default=0)
    peak = max(rank.gpu_peak, state + batch)
    return GPUMemory(state, batch, evaluation, _CUDA_CONTEXT + max(peak, state + evaluation))


def _batch_bytes(size: BatchSize, store: Graph, hidden: int) -> int:
    features = _FLOAT * size.num_nodes * store.num_features
    edges = sum(2 * 8 * number for number in size.num_edges)  # both directions of each block
    # A layer keeps what it aggregated, its output, and the gradients of both.
    first = _FLOAT * size.num_dst[0] * 2 * store.num_features if size.num_dst else 0
    rows = sum(4 * _FLOAT * number * hidden for number in size.num_dst)
    return 2 * features + edges + first + rows  # the next batch's features come meanwhile


def checkpoint_bytes(rank: RankMeasure) -> int:
    """Disk that a run's checkpoints take."""
    return _CHECKPOINTS * _STATE_COPIES * _FLOAT * rank.num_parameters
