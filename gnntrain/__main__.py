"""`gnntrain`, and `python -m gnntrain`."""

from typing import NoReturn

from gnntrain.cli import main
from gnntrain.startup import leave, open_closed_streams, set_variables


def run() -> NoReturn:
    """Run the command line, and end the process with its exit code."""
    open_closed_streams()
    set_variables()
    leave(main())


if __name__ == "__main__":
    run()
