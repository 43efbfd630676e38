"""The file of a failure's traceback."""

from __future__ import annotations

import traceback
from pathlib import Path


def keep_traceback(error: BaseException, run_dir: str | Path | None) -> Path | None:
    """Write the traceback to `logs/error.log` of the run directory and return the file; None: there
    is no such directory, or it cannot be written."""
    from gnntrain.reporting.rundir import link_out  # imported only for a failed run

    if run_dir is None or not Path(run_dir).is_dir() or link_out(Path(run_dir)) is not None:
        return None
    path = Path(run_dir) / "logs" / "error.log"
    try:
        path.parent.mkdir(exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(traceback.format_exception(error))
    except OSError:
        return None
    return path
