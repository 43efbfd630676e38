"""The whole examination, section by section."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gnntrain.config import Config
from gnntrain.doctor.packages import optional, required
from gnntrain.reporting.text_report import Check


@dataclass(frozen=True)
class Section:
    """What was found about one part of the machine."""

    title: str
    findings: list[Check]


def examine(config: Config) -> Iterator[Section]:
    """Look at everything that a run as `config` says depends on, a section at a time.

    Where a package is missing or broken, nothing else can be looked at.
    """
    packages = Section("packages", required())
    yield packages
    yield Section("optional", optional())
    if any(finding.judgement == "problem" for finding in packages.findings):
        return
    from gnntrain.doctor import choices, disks, machine, ranks  # they need the packages

    yield Section("processor", machine.processor())
    yield Section("memory", machine.memory())
    yield Section("GPUs", machine.gpus(config))
    yield Section("disk", [*disks.folders(config), disks.numba_cache()])
    yield Section("ranks", ranks.two_ranks())
    yield Section("auto", choices.chosen_by_auto(config))
