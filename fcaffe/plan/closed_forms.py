"""The time of each reduction by the formulas of the literature, where all links are alike.

n bytes, p ranks, alpha seconds a message, beta seconds a byte, gamma seconds a byte that is added (Thakur, Rabenseifner
and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005). Forms for whole buffers; the server is
a process of its own, as in FireCaffe's equation (3) in both directions, and the tree its equation (4).
"""

from __future__ import annotations

import math
from collections.abc import Callable


def server(n: float, p: int, alpha: float, beta: float, gamma: float) -> float:
    """2 p (alpha + n beta) + p n gamma; fcaffe's rank 0 serves itself: p - 1 in place of p."""
    return 2 * p * (alpha + n * beta) + p * n * gamma


def tree(n: float, p: int, alpha: float, beta: float, gamma: float) -> float:
    """2 ceil(log2 p) (alpha + n beta) + ceil(log2 p) n gamma."""
    levels = math.ceil(math.log2(p))
    return 2 * levels * (alpha + n * beta) + levels * n * gamma


def ring(n: float, p: int, alpha: float, beta: float, gamma: float) -> float:
    """2 (p-1) alpha + 2 (p-1)/p n beta + (p-1)/p n gamma."""
    return 2 * (p - 1) * alpha + 2 * (p - 1) / p * n * beta + (p - 1) / p * n * gamma


def doubling(n: float, p: int, alpha: float, beta: float, gamma: float) -> float:
    """floor(log2 p) (alpha + n beta + n gamma), + 2 (alpha + n beta) + n gamma if p is no power of 2."""
    return (p.bit_length() - 1) * (alpha + n * beta + n * gamma) + _folding(n, p, alpha, beta, gamma)


def halving(n: float, p: int, alpha: float, beta: float, gamma: float) -> float:
    """2 L alpha + (1 - 2^-L) n (2 beta + gamma) with L = floor(log2 p), + 2 (alpha + n beta) + n gamma if p is no power
    of 2."""
    steps = p.bit_length() - 1
    part = 1 - 2.0**-steps
    return 2 * steps * alpha + 2 * part * n * beta + part * n * gamma + _folding(n, p, alpha, beta, gamma)


def _folding(n: float, p: int, alpha: float, beta: float, gamma: float) -> float:
    return 0.0 if p & (p - 1) == 0 else 2 * (alpha + n * beta) + n * gamma


FORMS: dict[str, Callable[[float, int, float, float, float], float]] = {
    "server": server,
    "sharded-server": ring,
    "tree": tree,
    "doubling": doubling,
    "ring": ring,
    "halving": halving,
}
