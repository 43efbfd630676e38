"""Exchanges of several ranks in one process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.exchange import Exchange

TOKEN = b"t" * 32


@contextmanager
def exchanges(
    machines: Sequence[int], owners: Sequence[Sequence[int]], timeout: float = 30.0
) -> Iterator[list[Exchange]]:
    """The exchange of each rank; `machines` has the machine of each."""
    with ExitStack() as stack:
        made = []
        for rank in range(len(machines)):
            context = DistributedContext(rank, len(machines), machines=tuple(machines))
            made.append(stack.enter_context(closing(Exchange(context, owners, TOKEN, timeout))))
        addresses = [exchange.listen() for exchange in made]
        for exchange in made:
            exchange.connect(addresses, 3)
        for exchange in made:
            exchange.close_port()
        yield made
