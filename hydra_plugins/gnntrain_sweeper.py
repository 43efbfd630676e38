"""The default sweeper of `gnntrain -m`. Hydra accepts plug-ins from the package hydra_plugins only.

Hydra imports this file at each start, to look for plug-ins: what a sweep needs is imported later.
"""

from __future__ import annotations

from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

_BASIC_LAUNCHER = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"


class GnntrainSweeper(Sweeper):
    """All combinations, or a search, with pruning, in processes that stay warm; resumable.

    With a launcher other than Hydra's basic one, the trials are jobs of that launcher.
    """

    def __init__(self) -> None:
        self.launcher = None

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Keep what Hydra gives to every sweeper."""
        self.hydra_context = hydra_context
        self.task_function = task_function
        self.config = config

    def sweep(self, arguments: list[str]) -> Any:
        """Train every trial.

        Args:
            arguments: The task's overrides, as in `model=sage,gcn`.
        """
        assert self.config is not None
        if self.config.hydra.launcher._target_ != _BASIC_LAUNCHER:
            return self._sweep_by_launcher(arguments)
        from gnntrain.sweep import run_sweep

        typed = getattr(self.task_function, "typed", arguments)
        return run_sweep(typed, getattr(self.task_function, "config_dirs", ()))

    def _sweep_by_launcher(self, arguments: list[str]) -> Any:
        from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

        assert self.hydra_context is not None
        assert self.config is not None
        sweeper = BasicSweeper(max_batch_size=None)
        sweeper.setup(
            hydra_context=self.hydra_context, task_function=self.task_function, config=self.config
        )
        return sweeper.sweep(arguments)
