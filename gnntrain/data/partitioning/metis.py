"""Parts by METIS (Karypis & Kumar 1998), through pymetis: the fewest cut edges, in memory."""

from __future__ import annotations

from contextlib import suppress
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection

import numpy as np

from gnntrain.data.graph import Graph
from gnntrain.data.partitioning.kernels import PartIndex
from gnntrain.data.partitioning.streaming import stream
from gnntrain.errors import RunError, UserError
from gnntrain.limits import available_memory

_BYTES_AN_EDGE = 130  # measured on graphs with edges both ways
_BYTES_A_NODE = 200


def refuse_metis(graph: Graph) -> None:
    """Raise a UserError where pymetis is not installed, or the graph is too large for memory."""
    if find_spec("pymetis") is None:
        raise UserError(
            "--method metis needs the package pymetis, which is not installed",
            "Run `pip install 'gnntrain[partition]'`, or leave --method out.",
        )
    needed = graph.num_edges * _BYTES_AN_EDGE + graph.num_nodes * _BYTES_A_NODE
    available = available_memory()
    if needed > available:
        raise UserError(
            f"METIS needs about {needed / 2**30:,.1f} GiB of memory for {graph.dataset}; "
            f"{available / 2**30:,.1f} GiB are free",
            "Leave --method out: the streaming partitioner needs little memory.",
        )


def metis(graph: Graph, num_parts: int) -> PartIndex:
    """The part of each node: uint8 `[num_nodes]`.

    METIS balances the in-edges; pymetis has no place for more than one weight a node. Then nodes
    are moved until the other loads are balanced too.

    METIS runs in a process of its own: it holds Python's lock and catches SIGTERM, so that a
    signal would end nothing before METIS itself ends.

    Raises:
        RunError: METIS failed, or the system has killed it.
    """
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_parts, args=(graph, num_parts, sender), daemon=True)
    process.start()
    sender.close()
    try:
        start = np.frombuffer(receiver.recv_bytes(), np.uint8)
    except EOFError:
        process.join()
        raise RunError(
            f"METIS ended without a result (exit code {process.exitcode}); "
            "perhaps the memory was not enough",
            "Leave --method out: the streaming partitioner needs little memory.",
        ) from None
    finally:
        process.kill()
        process.join()
    return stream(graph, num_parts, start)


def _send_parts(graph: Graph, num_parts: int, sender: Connection) -> None:
    with suppress(MemoryError):  # the parent notices that nothing was sent
        sender.send_bytes(_part_graph(graph, num_parts).tobytes())


def _part_graph(graph: Graph, num_parts: int) -> PartIndex:
    import pymetis
    from scipy.sparse import csr_array

    ones = np.ones(graph.num_edges, np.int64)
    shape = graph.num_nodes, graph.num_nodes
    edges = csr_array((ones, graph.indices, graph.indptr), shape=shape)
    both_ways = (edges + edges.T).tocsr()  # an edge in both directions weighs 2
    both_ways.setdiag(0)
    both_ways.eliminate_zeros()
    ends, sources = both_ways.indptr.astype(np.int64), both_ways.indices.astype(np.int64)
    found = pymetis.part_graph(
        num_parts,
        pymetis.CSRAdjacency(ends, sources),
        vweights=np.maximum(1, np.diff(graph.indptr)),
        eweights=both_ways.data,
        recursive=False,
        options=pymetis.Options(seed=0),
    )
    return np.asarray(found.vertex_part).astype(np.uint8)
