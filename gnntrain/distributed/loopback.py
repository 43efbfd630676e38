"""The interface over which the ranks of one machine talk."""

from __future__ import annotations

import socket

from gnntrain.errors import RunError

_SECONDS = 10.0


def check_loopback() -> None:
    """See that a process reaches another one at 127.0.0.1; else ranks would try for minutes.

    Raises:
        RunError: It does not.
    """
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            socket.create_connection(listener.getsockname(), _SECONDS).close()
    except OSError as error:
        raise RunError(
            "Several ranks talk over the loopback interface, and 127.0.0.1 cannot be reached: "
            f"{error.strerror or error}.",
            "Bring it up (`ip link set lo up`; containers often leave it down), or train with one "
            "rank.",
        ) from error
