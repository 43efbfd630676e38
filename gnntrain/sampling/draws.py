"""The random numbers of neighbour sampling: pure functions of a key, with no state between draws.

Every sampler, on whatever device, must use exactly these functions, so that one key names one set
of edges everywhere. They need only 64-bit unsigned multiplications, additions, exclusive-ors and
shifts, all modulo 2^64:

1. `mix64`, the finaliser of SplitMix64 (Steele, Lea & Flood 2014; constants of D. Stafford's
   variant 13), a bijection in which every input bit flips every output bit with probability ~1/2;
2. `hop_key = f(f(f(f(0, seed), epoch), step), hop)` with `f(h, x) = mix64((h ^ x) + GOLDEN)`;
3. `node_key = mix64(hop_key ^ (node * GOLDEN))`, `node` the global number of the destination;
4. draw `i` (0, 1, …) of that node is `mix64(node_key + (i + 1) * GOLDEN)`: the SplitMix64 stream
   that starts at `node_key`;
5. `bounded(draw, r) = floor(draw * r / 2^64)` for 1 ≤ r < 2^32, computed in two halves. Some
   values are drawn more often than others by a factor of at most 1 + r / 2^64, below 1 + 2^-32.

How draws become neighbours, for a destination of degree d and a fan-out k (positions are relative
to the destination's first in-edge, in CSC order):

- k = −1, or d ≤ k without replacement: 0, 1, …, d − 1, no draw is made;
- with replacement, d > 0: position i is `bounded(draw i, d)` for i = 0 … k − 1;
- without, d > k: Floyd's algorithm (Bentley & Floyd 1987). For i = 0 … k − 1 let
  m = d − k + i and t = `bounded(draw i, m + 1)`; position i is t, or m if t is taken already.
"""

from __future__ import annotations

import numpy as np

from gnntrain.jit import jit

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
LOW_32 = np.uint64(0xFFFFFFFF)
SHIFT_27 = np.uint64(27)
SHIFT_30 = np.uint64(30)
SHIFT_31 = np.uint64(31)
SHIFT_32 = np.uint64(32)


@jit
def mix64(x: np.uint64) -> np.uint64:
    """Scramble 64 bits; `mix64(0) == 0`."""
    x = (x ^ (x >> SHIFT_30)) * MULTIPLIER_1
    x = (x ^ (x >> SHIFT_27)) * MULTIPLIER_2
    return x ^ (x >> SHIFT_31)


@jit
def hop_key(seed: np.uint64, epoch: np.uint64, step: np.uint64, hop: np.uint64) -> np.uint64:
    """The key that all destinations of one hop (0: next to the seeds) of one batch share."""
    key = mix64(seed + GOLDEN)
    key = mix64((key ^ epoch) + GOLDEN)
    key = mix64((key ^ step) + GOLDEN)
    return mix64((key ^ hop) + GOLDEN)


@jit
def node_key(hop_key: np.uint64, node: np.uint64) -> np.uint64:
    """Where the stream of draws of one destination node starts."""
    return mix64(hop_key ^ (node * GOLDEN))


@jit
def draw(node_key: np.uint64, index: np.uint64) -> np.uint64:
    """Draw number `index` of a destination: uniform on all 64-bit numbers."""
    return mix64(node_key + (index + np.uint64(1)) * GOLDEN)


@jit
def bounded(draw: np.uint64, num_values: np.uint64) -> np.uint64:
    """Map a draw to 0 … num_values − 1, for 1 ≤ num_values < 2^32."""
    high = (draw >> SHIFT_32) * num_values
    low = ((draw & LOW_32) * num_values) >> SHIFT_32
    return (high + low) >> SHIFT_32
