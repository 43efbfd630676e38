"""A slow, obvious sampler in plain Python integers: what `gnntrain.sampling` must agree with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gnntrain.sampling.base import SampleKey

MODULUS = 2**64


def mix64(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % MODULUS
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % MODULUS
    return x ^ (x >> 31)


def hop_key(key: SampleKey, hop: int) -> int:
    h = 0
    for part in (key.seed, key.epoch, key.step, hop):
        h = mix64(((h ^ (part % MODULUS)) + 0x9E3779B97F4A7C15) % MODULUS)
    return h


def draw(key: SampleKey, hop: int, node: int, index: int, num_values: int, number: int = 0) -> int:
    """Draw `index` of a destination, mapped to 0 … num_values − 1; `number` is that of its type."""
    of_type = hop_key(key, hop) ^ mix64(number)
    start = mix64(of_type ^ (node * 0x9E3779B97F4A7C15 % MODULUS))
    bits = mix64((start + (index + 1) * 0x9E3779B97F4A7C15) % MODULUS)
    return bits * num_values // MODULUS


def draw_positions(
    key: SampleKey,
    hop: int,
    node: int,
    degree: int,
    fan_out: int,
    replace: bool,
    number: int = 0,
) -> list[int]:
    """Which of the in-edges 0 … degree − 1 of `node` are taken, in order."""
    if fan_out == -1 or degree == 0:
        return list(range(degree))
    if replace:
        return [draw(key, hop, node, i, degree, number) for i in range(fan_out)]
    if degree <= fan_out:
        return list(range(degree))
    taken: list[int] = []
    for i in range(fan_out):
        last = degree - fan_out + i
        position = draw(key, hop, node, i, last + 1, number)
        taken.append(last if position in taken else position)
    return taken


@dataclass
class OracleSample:
    """`edges[h]` holds, for each destination of hop h, its (source number, edge id) pairs."""

    nodes: list[int]
    edges: list[list[list[tuple[int, int]]]] = field(default_factory=list)
    num_known: list[int] = field(default_factory=list)


def sample(
    indptr: Sequence[int],
    indices: Sequence[int],
    seeds: Sequence[int],
    fan_outs: Sequence[int],
    key: SampleKey,
    *,
    replace: bool = False,
) -> OracleSample:
    """Walk hop by hop; in each one all nodes found so far draw again."""
    result = OracleSample(list(seeds), [], [len(seeds)])
    for hop, fan_out in enumerate(fan_outs):
        edges = []
        for destination in range(result.num_known[-1]):
            node = result.nodes[destination]
            begin, end = indptr[node], indptr[node + 1]
            drawn = []
            for position in draw_positions(key, hop, node, end - begin, fan_out, replace):
                source = indices[begin + position]
                if source not in result.nodes:
                    result.nodes.append(source)
                drawn.append((result.nodes.index(source), begin + position))
            edges.append(drawn)
        result.edges.append(edges)
        result.num_known.append(len(result.nodes))
    return result
