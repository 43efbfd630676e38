"""The loopback interface: the store over which the processes of one machine find each other."""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not in __all__

from gnntrain.errors import RunError

_HOST = "127.0.0.1"
_CHECK_SECONDS = 10.0


def check_loopback() -> None:
    """Check that processes can connect at 127.0.0.1; otherwise ranks would retry for minutes.

    Raises:
        RunError: They cannot.
    """
    try:
        with socket.create_server((_HOST, 0)) as listener:
            socket.create_connection(listener.getsockname(), _CHECK_SECONDS).close()
    except OSError as error:
        raise RunError(
            "Several ranks talk over the loopback interface, and 127.0.0.1 cannot be reached: "
            f"{error.strerror or error}.",
            "Bring it up (`ip link set lo up`; containers often leave it down), or train with one "
            "rank.",
        ) from error


def serve_store(world_size: int, timeout: float) -> TCPStore:
    """A store that this process serves, on a port that the system chooses."""
    with socket.create_server((_HOST, 0), backlog=2 * world_size) as listener:
        port = listener.getsockname()[1]
        # TCPStore takes the listening socket over, so that no other process can take the port. A
        # socket that TCPStore opens itself would listen on all interfaces.
        return TCPStore(
            _HOST,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=timeout),
            master_listen_fd=listener.detach(),
        )


def connect_store(port: int, timeout: float) -> TCPStore:
    """A new client of the store that another process serves at `port`."""
    return TCPStore(_HOST, port, is_master=False, timeout=timedelta(seconds=timeout))
