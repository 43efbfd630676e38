"""Processor, memory and GPUs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import psutil
import torch

from gnntrain.config import Config
from gnntrain.cores import available_cores
from gnntrain.reporting.environment import cpu_model, visible_gpus
from gnntrain.reporting.text import format_bytes
from gnntrain.reporting.text_report import Check

_CGROUP = Path("/sys/fs/cgroup")
_SHARED_MEMORY = Path("/dev/shm")
_LITTLE_MEMORY = 2 * 2**30
_LITTLE_SHARED_MEMORY = 2**30


def processor() -> list[Check]:
    """The processor: its name, the cores that may be used, the instructions that matter."""
    cores, all_cores = available_cores(), os.cpu_count() or 1
    found = [Check("ok", "model", cpu_model()), _instructions()]
    of = "" if cores == all_cores else f" of {all_cores}"
    found.append(Check("ok", "cores", f"{cores}{of} available"))
    quota = _cpu_quota()
    if quota is not None and quota < cores:
        hint = f"Set distributed.threads={max(1, int(quota))}: more threads only wait."
        found.append(Check("note", "quota", f"a container allows {quota:g} cores' time", hint))
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads is not None:
        text = f"OMP_NUM_THREADS={threads} is set; ranks set their own threads"
        found.append(Check("ok", "variables", text))
    return found


def _instructions() -> Check:
    flags = _cpu_flags()
    if not flags:
        return Check("note", "vectors", "this system does not list the processor's flags")
    widest = next((name for name in ("avx512f", "avx2", "asimd") if name in flags), None)
    bf16 = [name for name in ("amx_bf16", "avx512_bf16", "bf16") if name in flags]
    if widest is None:
        hint = "Training on this processor will be slow."
        return Check("note", "vectors", "neither AVX2 nor AVX-512", hint)
    if bf16:
        return Check("ok", "vectors", f"{widest}, {bf16[0]}: bf16 in hardware")
    return Check("ok", "vectors", f"{widest}, no bf16: keep trainer.precision=fp32")


def _cpu_flags() -> set[str]:
    """The processor's flags as Linux lists them."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    lines = (line.partition(":") for line in text.splitlines())
    return next((set(v.split()) for k, _, v in lines if k.strip() in ("flags", "Features")), set())


def _cpu_quota() -> float | None:
    """Cores' worth of time that a container may use; None where it is not limited."""
    try:
        quota, period = (_CGROUP / "cpu.max").read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):  # no such file, or "max"
        return None


def memory() -> list[Check]:
    """Memory of the machine, of the container, and what is shared between processes."""
    now = psutil.virtual_memory()
    text = f"{format_bytes(now.available)} available of {format_bytes(now.total)}"
    found = [Check("ok", "RAM", text)]
    if now.available < _LITTLE_MEMORY:
        hint = "End other programs; `gnntrain plan` says what a run needs."
        found = [Check("note", "RAM", text, hint)]
    limit = _memory_limit()
    if limit is not None and limit < now.total:
        hint = "A run beyond it is killed; `gnntrain plan` says what one needs."
        text = f"a container allows {format_bytes(limit)}"
        found.append(Check("note", "limit", text, hint))
    return [*found, _shared_memory()]


def _memory_limit() -> int | None:
    try:
        return int((_CGROUP / "memory.max").read_text())
    except (OSError, ValueError):
        return None


def _shared_memory() -> Check:
    if not _SHARED_MEMORY.is_dir():
        text = "none; evaluation with several ranks uses the run's folder"
        return Check("note", "/dev/shm", text)
    usage = shutil.disk_usage(_SHARED_MEMORY)
    text = f"{format_bytes(usage.free)} free of {format_bytes(usage.total)}"
    if usage.free < _LITTLE_SHARED_MEMORY:
        hint = (
            "Evaluation with several ranks puts large layers on disk instead, which is slower; "
            "in Docker use --shm-size=8g."
        )
        return Check("note", "/dev/shm", text, hint)
    return Check("ok", "/dev/shm", text)


def gpus(config: Config) -> list[Check]:
    """The GPUs, each tried, with driver, CUDA and NCCL."""
    listed = visible_gpus()
    num_usable = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found = [_gpu(number) for number in range(num_usable)]
    if num_usable:
        nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
        driver = listed[0]["driver"] if listed else "unknown"
        text = f"driver {driver}, CUDA {torch.version.cuda}, NCCL {nccl}"
        return [*found, Check("ok", "versions", text)]
    if not listed:
        return [Check("note", "none", "no NVIDIA GPU is visible: runs go to the CPU")]
    names = ", ".join(gpu["name"] for gpu in listed)
    if config.trainer.gpus == 0:
        return [Check("ok", "unused", f"{names}: trainer.gpus=0 leaves them alone")]
    if torch.version.cuda is None:
        text = f"{names}: but torch {torch.__version__} is a build for the CPU"
        hint = "Install a CUDA build: https://pytorch.org/get-started/locally"
    else:
        text = f"{names}: but torch for CUDA {torch.version.cuda} cannot use them"
        hint = f"The driver {listed[0]['driver']} may be too old, or CUDA_VISIBLE_DEVICES hides it."
    return [Check("problem", "unusable", text, hint)]


def _gpu(number: int) -> Check:
    """One GPU, after a small product on it."""
    name = f"GPU {number}"
    try:
        properties = torch.cuda.get_device_properties(number)
        free, total = torch.cuda.mem_get_info(number)
        ones = torch.ones(64, 64, device=f"cuda:{number}")
        assert float((ones @ ones).sum()) == 64**3
    except Exception as error:  # CUDA raises many things; all of them mean that it cannot be used
        reason = " ".join(str(error).split())
        hint = "See `nvidia-smi`; leave it out with CUDA_VISIBLE_DEVICES, or set trainer.gpus=0."
        return Check("problem", name, f"does not compute: {reason}", hint)
    text = (
        f"{properties.name}, {format_bytes(free)} free of {format_bytes(total)}, "
        f"sm_{properties.major}{properties.minor}"
    )
    return Check("ok", name, text)
