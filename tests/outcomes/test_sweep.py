"""A search that is killed goes on with the trials it had, and ends as one that was not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from gnntrain.cli import main
from gnntrain.reporting.rundir import is_running
from tests.processes import started, wait_until

SEARCH = [
    *(
        "sweep=optuna",
        "sweep.trials=4",
        "sweep.pruner=none",
        "trainer.lr=tag(log,interval(1e-3,1e-1))",
    ),
    *("dataset.num_nodes=300", "model.hidden_channels=8", "trainer.gpus=0", "trainer.epochs=40"),
]


def trials(folder: str) -> list[dict[str, Any]]:
    """What a sweep says of its trials, but for the time they took, and its own folder."""
    found: list[dict[str, Any]] = json.loads(Path(folder, "sweep.json").read_text())
    return [trial | {"seconds": None, "overrides": trial["varied"]} for trial in found]


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_a_search_that_was_killed_goes_on_with_the_trials_it_had() -> None:
    assert main(["-m", *SEARCH, "run.dir=whole"]) == 0
    killed = started("-m", "gnntrain", "-m", *SEARCH, "run.dir=killed")
    # Until the third trial has saved an epoch.
    wait_until(lambda: list(Path("killed").glob("2_*/checkpoints/last.pt")))
    killed.kill()
    killed.communicate()
    before = trials("killed")
    assert [trial["status"] for trial in before] == ["completed", "completed", "running"]
    # Its process saves, and ends.
    wait_until(lambda: not is_running(Path("killed") / before[2]["run_dir"]))
    assert main(["resume", "killed"]) == 0
    assert trials("killed") == trials("whole")
    storage = JournalStorage(JournalFileBackend("killed/optuna.journal"))
    study = optuna.load_study(study_name="gnntrain", storage=storage)
    assert [trial.value for trial in study.trials] == [trial["val"] for trial in trials("whole")]
