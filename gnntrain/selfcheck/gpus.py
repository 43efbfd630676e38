"""The kinds of GPUs of this machine, without starting CUDA here."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import NamedTuple

from gnntrain.errors import RunError
from gnntrain.reporting.environment import visible_gpus

INTERPRETER = "Triton's interpreter"
_SECONDS = 60.0
_CODE = (
    "import sys; sys.path[:] = sys.argv[1:]; import json, torch; cuda = torch.cuda; "
    "print(json.dumps([cuda.get_device_name(i) for i in range(cuda.device_count())]))"
)


class GPU(NamedTuple):
    """One GPU of a kind.

    Attributes:
        name: What its maker calls it.
        driver: The driver's version, if known.
        device: torch's name of the first one.
    """

    name: str
    driver: str
    device: str


def kinds_of_gpus(device_type: str) -> list[GPU]:
    """The GPUs that torch sees, one of each kind.

    Raises:
        RunError: The GPUs do not tell their names.
    """
    if device_type == "cpu":
        return [GPU(INTERPRETER, "", "cpu")]
    listed = visible_gpus()
    drivers = {str(gpu["driver"]) for gpu in listed}
    driver = drivers.pop() if len(drivers) == 1 else ""
    names = list(dict.fromkeys(str(gpu["name"]) for gpu in listed))
    if len(names) != 1:  # torch counts in another order, or no tool lists them
        names = _names_from_torch()
    firsts = {name: names.index(name) for name in names}
    return [GPU(name, driver, f"{device_type}:{number}") for name, number in firsts.items()]


def _names_from_torch() -> list[str]:
    """The names of all GPUs, from a process that starts CUDA for that."""
    command = [sys.executable, "-c", _CODE, *sys.path]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except subprocess.SubprocessError as error:
        raise RunError(
            f"torch cannot use this machine's GPUs: {error}.", "See `gnntrain doctor`."
        ) from error
    names: list[str] = json.loads(done.stdout.splitlines()[-1])
    return names
