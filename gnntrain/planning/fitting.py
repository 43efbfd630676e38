"""Whether a planned run fits into this machine, and which key to change where it does not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import torch

from gnntrain.config import Config
from gnntrain.data.graph import Graph
from gnntrain.planning.measured import RankMeasure
from gnntrain.planning.memory import GPUMemory, HostMemory, Matrix, checkpoint_bytes
from gnntrain.reporting.run_lookup import RUNS
from gnntrain.reporting.text import format_bytes
from gnntrain.reporting.text_report import Check

# Beyond this share of what is available other programs will be felt.
_TIGHT = 0.85


def judge(
    config: Config,
    store: Graph,
    ranks: Sequence[RankMeasure],
    host: HostMemory,
    gpu: GPUMemory,
    moments: Sequence[Sequence[Matrix]],
) -> list[Check]:
    """Everything that a run may lack here: memory, page cache, shared memory, disk, GPU memory."""
    return [
        _memory(config, ranks, host, moments),
        *_page_cache(store, host),
        *_shared_memory(moments, len(ranks)),
        _disk(config, ranks[0], host),
        *_gpu(config, gpu),
    ]


def _memory(
    config: Config,
    ranks: Sequence[RankMeasure],
    host: HostMemory,
    moments: Sequence[Sequence[Matrix]],
) -> Check:
    available = psutil.virtual_memory().available + _own_now(ranks)
    text = f"{format_bytes(host.needed)} of {format_bytes(available)} available"
    if host.needed <= _TIGHT * available:
        return Check("ok", "memory", text)
    in_evaluation = host.evaluation + host.shared > host.training
    layers = max(
        (sum(m.num_bytes for m in moment if m.place != "disk") for moment in moments), default=0
    )
    if in_evaluation and host.needed - layers <= _TIGHT * available:
        hint = _smaller_layers(moments)
    else:
        hint = _smaller_steps(config, ranks, host, available)
    return Check("problem" if host.needed > available else "note", "memory", text, hint)


def _own_now(ranks: Sequence[RankMeasure]) -> int:
    """What this process holds itself already, where it is the one rank."""
    return ranks[0].own_after if len(ranks) == 1 else 0


def _smaller_layers(moments: Sequence[Sequence[Matrix]]) -> str:
    largest = max(matrix.num_bytes for moment in moments for matrix in moment)
    limit = max(0.01, 0.9 * largest / 2**30)
    return (
        f"Set evaluation.memory_limit={limit:.2g}: the widest layers then go to disk; "
        "or evaluation=sampled."
    )


def _smaller_steps(
    config: Config, ranks: Sequence[RankMeasure], host: HostMemory, available: int
) -> str:
    base = ranks[0].own_after
    a_step = max(1, host.a_rank - base)
    room = available * _TIGHT / len(ranks) - base
    batch_size = config.trainer.batch_size
    if config.sampler.name == "full":
        return "Set sampler=neighbor: mini-batches take a bounded part of the graph."
    if room > a_step / 64:
        smaller = 1 << max(0, int(batch_size * room / a_step).bit_length() - 1)
        return f"Set trainer.batch_size={min(smaller, max(1, batch_size // 2))}."
    fitting = int(available * _TIGHT / host.a_rank)
    if len(ranks) > 1 and fitting >= 1:
        return f"Set distributed.num_processes={fitting}."
    return "End other programs, or lower model.hidden_channels and sampler.fan_outs."


def _page_cache(store: Graph, host: HostMemory) -> Iterator[Check]:
    left = psutil.virtual_memory().total - host.needed
    text = f"{format_bytes(host.store)} of the store are read, {format_bytes(max(0, left))} left"
    if host.store <= left:
        yield Check("ok", "page cache", text)
        return
    hint = "Rows will be read from disk again and again."
    if store.feature_dtype == "float32":
        hint += " Set dataset.feature_dtype=bfloat16 to halve the features."
    yield Check("note", "page cache", text, hint)


def _shared_memory(moments: Sequence[Sequence[Matrix]], world_size: int) -> Iterator[Check]:
    if world_size == 1 or not moments:
        return
    folder = Path("/dev/shm")
    free = shutil.disk_usage(folder).free if folder.is_dir() else 0
    most = max(sum(m.num_bytes for m in moment if m.place != "disk") for moment in moments)
    on_disk = [m for moment in moments for m in moment if m.place == "disk"]
    text = f"{format_bytes(most)} of {format_bytes(free)} free"
    if not on_disk:
        yield Check("ok", "/dev/shm", text)
        return
    largest = max(matrix.num_bytes for matrix in on_disk)
    hint = (
        f"Layers of {format_bytes(largest)} go to disk, which is slower. With "
        f"{format_bytes(2 * largest)} of shared memory (Docker: --shm-size) and "
        f"evaluation.memory_limit={largest / 2**30:.2g} they stay in memory."
    )
    yield Check("note", "/dev/shm", text, hint)


def _disk(config: Config, rank: RankMeasure, host: HostMemory) -> Check:
    run_dir = config.run.dir
    folder = (Path(run_dir) if run_dir is not None else RUNS).absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    needed = host.on_disk + checkpoint_bytes(rank)
    text = f"{format_bytes(needed)} of {format_bytes(free)} free"
    if host.on_disk:
        text += f" ({format_bytes(host.on_disk)} of it during evaluation)"
    if needed <= free:
        return Check("ok", "disk", text)
    hint = "Set run.dir=DIR to a folder on a larger disk"
    hint += ", or evaluation=sampled." if host.on_disk else "."
    return Check("problem", "disk", text, hint)


def _gpu(config: Config, gpu: GPUMemory) -> Iterator[Check]:
    if config.trainer.gpus == 0 or not torch.cuda.is_available():
        return
    free = min(torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count()))
    text = f"about {format_bytes(gpu.total)} beside the graph, of {format_bytes(free)} free"
    if gpu.total <= _TIGHT * free:
        yield Check("ok", "GPU memory", text)
        return
    if gpu.evaluation > gpu.batch:
        hint = "Set evaluation=sampled, or lower model.hidden_channels."
    else:
        smaller = max(1, int(config.trainer.batch_size * _TIGHT * free / gpu.total))
        hint = f"Set trainer.batch_size={1 << (smaller.bit_length() - 1)}."
    yield Check("problem" if gpu.total > free else "note", "GPU memory", text, hint)
