"""The default sweeper of `gnntrain -m`. Hydra accepts plug-ins from the package hydra_plugins only.

Hydra imports this file at each start, to look for plug-ins: what a sweep needs is imported later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

if TYPE_CHECKING:
    from gnntrain.app.hydra_main import TrainTask
    from gnntrain.reporting.trials import Trial
    from gnntrain.sweep.folder import TrialName
    from gnntrain.sweep.launching import JobLauncher

_BASIC_LAUNCHER = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
_HYDRAS_NAME = "${hydra.job.num}"
_HYDRAS_KEY = re.compile("[+~]*hydra[./@]")
_KEPT = ("hydra/launcher", "hydra.launcher", "hydra.sweep.subdir")


class GnntrainSweeper(Sweeper):
    """A grid, or a search with pruning, in processes that stay warm; resumable.

    With a launcher other than Hydra's basic one, the trials are jobs of that launcher.

    Args:
        resume: Whether to go on with the sweep in `hydra.sweep.dir`.
        params: Overrides by key, for those that the command line does not set.
    """

    task_function: TrainTask
    hydra_context: HydraContext
    config: DictConfig

    def __init__(self, resume: bool, params: Mapping[str, Any] | None = None) -> None:
        self._resume = resume
        self._params = params or {}

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Keep what Hydra gives to every sweeper."""
        self.hydra_context = hydra_context
        self.task_function = task_function  # type: ignore[assignment]
        self.config = config

    def sweep(self, arguments: list[str]) -> list[list[JobReturn]]:  # noqa: ARG002
        """Train every trial.

        Args:
            arguments: The task's overrides, translated; `TrainTask.typed` has them as typed.

        Returns:
            One batch with the validation metric of each trial.
        """
        from gnntrain.sweep import HydraOptions, SweepFolder, resume_sweep, run_sweep

        task = self.task_function
        typed = [text for text in task.typed if not _HYDRAS_KEY.match(text)]
        basic = self.config.hydra.launcher._target_ == _BASIC_LAUNCHER
        launcher = None if basic else self._job_launcher
        if self._resume:
            folder = SweepFolder(self._path().absolute(), self._trial_names())
            keys = [text for text in typed if text.lstrip("+").startswith("sweep.")]
            results = resume_sweep(folder, keys, launcher and launcher(folder.path))
        else:
            hydras = self.config.hydra.overrides.hydra
            kept = [text for text in hydras if text.lstrip("+").startswith(_KEPT)]
            options = HydraOptions(self._path, self._trial_names(), launcher, kept)
            results = run_sweep([*self._unset_params(typed), *typed], task.sources, options)
        return [[_job_return(trial) for trial in results.trials]]

    def _path(self) -> Path:
        return Path(self.config.hydra.sweep.dir)

    def _unset_params(self, typed: Sequence[str]) -> list[str]:
        """`hydra.sweeper.params` as overrides, except keys that were typed."""
        keys = {text.partition("=")[0].lstrip("+~") for text in typed}
        return [f"{key}={value}" for key, value in self._params.items() if key not in keys]

    def _trial_names(self) -> TrialName | None:
        """Names by `hydra.sweep.subdir`; None: nobody has set it."""
        sweep: Any = OmegaConf.to_container(self.config.hydra.sweep, resolve=False)
        return None if sweep["subdir"] == _HYDRAS_NAME else self._trial_name

    def _trial_name(self, number: int, overrides: Sequence[str]) -> str:
        """The folder of a trial by `hydra.sweep.subdir`."""
        config = self.hydra_context.config_loader.load_sweep_config(
            self.config, self._hydra_overrides(overrides)
        )
        with open_dict(config):
            config.hydra.job.num = config.hydra.job.id = number
        return str(config.hydra.sweep.subdir)

    def _job_launcher(self, folder: Path) -> JobLauncher:
        from hydra.core.plugins import Plugins

        from gnntrain.sweep.launching import JobLauncher, TrialJob

        num_jobs = OmegaConf.select(self.config, "hydra.launcher.n_jobs")
        # Jobs of joblib share the terminal; submitit has log files of its own.
        log = None if num_jobs is None else folder / "workers.log"
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=self.hydra_context,
            task_function=TrialJob(self.task_function, log),
            config=self.config,
        )
        return JobLauncher(launcher, num_jobs, self._hydra_overrides)

    def _hydra_overrides(self, overrides: Sequence[str]) -> list[str]:
        from gnntrain.app.overrides import translate

        return translate(overrides, self.task_function.sources.groups)


def _job_return(trial: Trial) -> JobReturn:
    job = JobReturn(trial.overrides, working_dir=trial.run_dir, status=JobStatus.COMPLETED)
    job.return_value = trial.val
    return job
