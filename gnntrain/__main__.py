"""`gnntrain`, and `python -m gnntrain`."""

import os
import sys
from typing import NoReturn

from gnntrain.cli import main


def run() -> NoReturn:
    """Run the command line, and end the process with its exit code."""
    # The null device for each standard stream that the shell has closed, as in `>&-`: otherwise the
    # next pipe or file gets its number, and ranks take that for their output.
    for stream in range(3):
        try:
            os.fstat(stream)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.exit(main())


if __name__ == "__main__":
    run()
