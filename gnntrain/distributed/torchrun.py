"""What torchrun tells of a rank that failed."""

from __future__ import annotations

import contextlib
import json
import os
import time
import traceback
from pathlib import Path

from gnntrain.errors import GnntrainError


def record_for_torchrun(error: Exception) -> None:
    """Have torchrun's summary show the sentence of an error, as its own `@record` does with an
    exception that leaves `main`."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    is_ours = isinstance(error, GnntrainError)
    trace = str(error) if is_ours else "".join(traceback.format_exception(error))
    details = {"py_callstack": trace, "timestamp": str(int(time.time()))}
    told = error.message if isinstance(error, GnntrainError) else f"{type(error).__name__}: {error}"
    with contextlib.suppress(OSError):  # the same is on stderr
        Path(path).write_text(json.dumps({"message": {"message": told, "extraInfo": details}}))
