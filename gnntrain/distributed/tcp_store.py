"""`TCPStore`s that listen on one address alone: the loopback interface, or a launcher's address."""

from __future__ import annotations

import ipaddress
import socket
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psutil
from torch.distributed import (  # type: ignore[attr-defined]  # public, but not in __all__
    PrefixStore,
    TCPStore,
)

from gnntrain.errors import RunError, UserError

LOOPBACK = "127.0.0.1"
_CHECK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where a store is served.

    Attributes:
        host: The address.
        port: The port.
        prefix: Of the keys: those of other prefixes are not seen.
    """

    host: str
    port: int
    prefix: str = ""

    def connect(self, timeout: float) -> Any:
        """A new client of the store, a `torch.distributed.Store`.

        Raises:
            torch.distributed.DistError: It cannot be reached within `timeout` seconds.
        """
        store = TCPStore(self.host, self.port, is_master=False, timeout=timedelta(seconds=timeout))
        return PrefixStore(self.prefix, store) if self.prefix else store


def check_loopback() -> None:
    """Check that processes can connect at 127.0.0.1; otherwise ranks would retry for minutes.

    Raises:
        RunError: They cannot.
    """
    try:
        with socket.create_server((LOOPBACK, 0)) as listener:
            socket.create_connection(listener.getsockname(), _CHECK_SECONDS).close()
    except OSError as error:
        raise RunError(
            "Several ranks talk over the loopback interface, and 127.0.0.1 cannot be reached: "
            f"{error.strerror or error}.",
            "Bring it up (`ip link set lo up`; containers often leave it down), or train with one "
            "rank.",
        ) from error


def serve_store(world_size: int, timeout: float, host: str = LOOPBACK, port: int = 0) -> TCPStore:
    """A store that this process serves at one of its addresses.

    Args:
        world_size: Number of processes that may connect at once.
        timeout: Seconds that a client waits for a key.
        host: The address.
        port: The port; 0: the system chooses one.

    Raises:
        OSError: The address is not this machine's, or the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family, backlog=2 * world_size) as listener:
        port = listener.getsockname()[1]
        # TCPStore takes the listening socket over, so that no other process can take the port. A
        # socket that TCPStore opens itself would listen on all interfaces.
        return TCPStore(
            host,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=timeout),
            master_listen_fd=listener.detach(),
        )


def interface_of(host: str) -> str:
    """The name of the network interface that has this address.

    Raises:
        UserError: None has.
    """
    if host == LOOPBACK:
        return "lo0" if sys.platform == "darwin" else "lo"
    wanted = ipaddress.ip_address(host)
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            if address.family in (socket.AF_INET, socket.AF_INET6):
                found = ipaddress.ip_address(address.address.partition("%")[0])
                if found == wanted:
                    return str(name)
    raise UserError(f"No network interface of this machine has the address {host}.")


def addresses_of(host: str) -> list[str]:
    """The addresses of a host name, IPv4 first, as gloo prefers.

    Raises:
        OSError: The name is not known.
    """
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    families = sorted(found, key=lambda one: one[0] != socket.AF_INET)
    return list(dict.fromkeys(str(one[4][0]) for one in families))


def own_address(towards: str) -> str:
    """The address of this machine from which it reaches `towards`. Nothing is sent.

    Raises:
        OSError: There is no way there.
    """
    family = socket.AF_INET6 if ":" in towards else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((towards, 9))
        return str(probe.getsockname()[0])
