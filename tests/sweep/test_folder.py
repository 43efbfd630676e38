"""The files of a sweep's folder are written whole, and outlive a crash of the machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from gnntrain.cli import main
from gnntrain.reporting.trials import Trial
from gnntrain.sweep.folder import SweepFolder


def test_a_grid_that_was_moved_or_copied_goes_on_where_it_is(here: Path) -> None:
    keys = ["trainer.gpus=0", "dataset.num_nodes=200", "model.hidden_channels=4"]
    grid = [*keys, "trainer.epochs=1", "trainer.lr=0.01,0.02", "run.dir=grid"]
    assert main(["-m", *grid]) == 0
    trials = json.loads(Path("grid/sweep.json").read_text())
    shutil.rmtree(here / "grid" / trials[1]["run_dir"])
    trials[1]["status"] = "waiting"
    Path("grid/sweep.json").write_text(json.dumps(trials))
    shutil.copytree("grid", "copy")
    Path("grid").rename("moved")

    def runs(folder: str) -> int:
        return len(list(Path(folder).glob("*/summary.json")))

    assert main(["resume", "copy"]) == 0
    assert (runs("copy"), runs("moved"), Path("grid").exists()) == (2, 1, False)
    assert main(["resume", "moved"]) == 0
    assert (runs("moved"), Path("grid").exists()) == (2, False)


def test_trials_with_the_same_name_have_folders_of_their_own(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path, lambda *_: "same")
    first = folder.trial_dir(0, 2, [], [], [])
    second = folder.trial_dir(1, 2, [], [], [Trial(0, [], str(first))])
    assert (first, second) == (tmp_path / "same", tmp_path / "same-1")
