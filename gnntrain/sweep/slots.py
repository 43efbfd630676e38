"""How the trials of a sweep share the machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

from gnntrain.config import Config, ConfigError, Problem
from gnntrain.limits import available_cores


@dataclass(frozen=True)
class Slots:
    """Places for trials that are trained at the same time."""

    devices: Sequence[str | None]  # the GPUs of each, as `variable` has them; None: all there are
    num_gpus: int | None = None  # of each; None: as the trial asks
    threads: int | None = None  # compute threads a rank; None: as the trial asks
    variable: str = "CUDA_VISIBLE_DEVICES"  # which names the GPUs that a process sees

    @property
    def environments(self) -> list[dict[str, str] | None]:
        """The environment variables of each place's process; None: it may see all GPUs."""
        return [None if gpus is None else {self.variable: gpus} for gpus in self.devices]

    def ranks(self, config: Config) -> Config:
        """A trial's configuration with as many GPUs as its place has."""
        trainer = config.trainer
        if self.num_gpus is None or trainer.gpus != "auto" or trainer.device == "cpu":
            return config
        trainer = trainer.model_copy(update={"gpus": self.num_gpus})
        return config.model_copy(update={"trainer": trainer})

    def share(self, config: Config) -> Config:
        """The configuration of a trial that keeps to its place."""
        config = self.ranks(config)
        if self.threads is None or config.distributed.threads is not None:
            return config
        distributed = config.distributed.model_copy(update={"threads": self.threads})
        return config.model_copy(update={"distributed": distributed})


def plan_slots(config: Config, num_trials: int, gpus: Sequence[str] | None = None) -> Slots:
    """Share the machine out.

    A trial on the CPU uses all cores well, and two need twice the memory: `auto` trains them one
    after another there. A GPU is rarely shared well, and more of them in one trial would make its
    global batch larger: `auto` gives each trial one (or as many as `trainer.gpus` says). `gpus` as
    the environment names them; None: looked for.

    Raises:
        ConfigError: There are not the cores for so many trials at once.
    """
    asked, wanted = config.sweep.jobs, config.trainer.gpus
    variable, found = "CUDA_VISIBLE_DEVICES", list(gpus or ())
    if wanted == 0 or config.trainer.device == "cpu":
        found = []
    elif gpus is None:
        variable, found = visible_gpus()
    if not found:
        ranks, cores = config.distributed.num_processes, available_cores()
        count = 1 if asked == "auto" else min(asked, num_trials)
        if count > 1 and count * ranks > cores:
            expects = f"at most {max(1, cores // ranks)}: there are {cores} cores"
            expects += f", and a trial takes {ranks}" if ranks > 1 else ""
            raise ConfigError([Problem("sweep.jobs", str(asked), expects)])
        return Slots([None] * count, threads=cores // (count * ranks) if count > 1 else None)
    if asked == "auto":
        each = 1 if wanted == "auto" else wanted
        count = min(num_trials, max(1, len(found) // each))
    else:
        count = min(num_trials, asked)
        each = max(1, len(found) // count) if wanted == "auto" else wanted
    places = [
        ",".join(found[(place * each + i) % len(found)] for i in range(each))
        for place in range(count)
    ]
    threads = max(1, available_cores() // (count * each)) if count > 1 else None
    return Slots(places, each, threads, variable)


def visible_gpus() -> tuple[str, list[str]]:
    """The environment variable that names GPUs, and those that torch sees, as it names them."""
    if metadata.version("torch").endswith("+cpu"):
        return "", []  # and seconds are saved
    from gnntrain.devices import gpus_here, visibility

    kind, count = next(iter(gpus_here().items()), ("cpu", 0))
    variable = visibility(kind)
    named = os.environ.get(variable, "").split(",")
    if named == [""]:
        return variable, list(map(str, range(count)))
    return variable, [name.strip() for name in named[:count]]
