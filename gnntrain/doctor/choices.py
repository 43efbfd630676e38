"""What a configuration leaves open, and what is chosen for it on this machine."""

from __future__ import annotations

from importlib.util import find_spec

import psutil

from gnntrain.config import Config
from gnntrain.distributed.launch import LaunchPlan
from gnntrain.loading.build import num_loader_threads
from gnntrain.reporting.text import counted, format_bytes
from gnntrain.reporting.text_report import Check

_GRAPH = (
    "edges and features in GPU memory where half of it has room, else cached, pinned, or in the "
    "store: `gnntrain plan dataset=NAME` says where and why"
)


def chosen_by_auto(config: Config) -> list[Check]:
    """Ranks, threads, sampler, where the graph lies, and the memory that evaluation may take."""
    plan = LaunchPlan.of(config)
    kind = "GPU" if plan.use_gpus else "CPU"
    threads = num_loader_threads(config.sampler, plan.threads, on_gpu=plan.use_gpus)
    chosen = [
        ("ranks", counted(plan.world_size, f"{kind} rank")),
        ("threads", f"{counted(plan.threads, 'compute thread')} a rank"),
        ("sampler", _sampler(config, on_gpu=plan.use_gpus)),
        ("loader", f"{counted(threads, 'background thread')} a rank"),
    ]
    if plan.use_gpus and config.sampler.name != "full":
        chosen.append(("graph", _GRAPH))
    if config.evaluation.name == "layerwise":
        given = config.evaluation.memory_limit
        limit = psutil.virtual_memory().total // 4 if given is None else given * 2**30
        text = f"a layer's activations stay in memory up to {format_bytes(limit)}"
        chosen.append(("evaluation", f"exact; {text}"))
    return [Check("ok", name, text) for name, text in chosen]


def _sampler(config: Config, *, on_gpu: bool) -> str:
    sampler = config.sampler
    if sampler.name == "full":
        return "full graph"
    backend: str = sampler.backend
    if backend == "auto":
        triton = on_gpu and find_spec("triton") is not None
        backend = "triton, or numba where the edges have no room" if triton else "numba"
    return f"neighbor {list(sampler.fan_outs)} ({backend})"
