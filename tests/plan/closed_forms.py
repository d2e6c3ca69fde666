"""The time of each reduction by the formulas of the literature, where all links are alike.

n bytes, p ranks, alpha seconds a message, beta seconds a byte, gamma seconds a byte that is added.
"""

from __future__ import annotations

import math


def server(n: float, p: int, alpha: float, beta: float, gamma: float) -> float:
    return 2 * p * (alpha + n * beta) + p * n * gamma


def tree(n: float, p: int, alpha: float, beta: float, gamma: float) -> float:
    return math.ceil(math.log2(p)) * (2 * (alpha + n * beta) + n * gamma)


def ring(n: float, p: int, alpha: float, beta: float, gamma: float) -> float:
    return 2 * (p - 1) * alpha + (p - 1) / p * n * (2 * beta + gamma)


def doubling(n: float, p: int, alpha: float, beta: float, gamma: float) -> float:
    return (p.bit_length() - 1) * (alpha + n * beta + n * gamma) + _folding(n, p, alpha, beta, gamma)


def halving(n: float, p: int, alpha: float, beta: float, gamma: float) -> float:
    steps = p.bit_length() - 1
    return 2 * steps * alpha + (1 - 2.0**-steps) * n * (2 * beta + gamma) + _folding(n, p, alpha, beta, gamma)


def _folding(n: float, p: int, alpha: float, beta: float, gamma: float) -> float:
    return 0.0 if p & (p - 1) == 0 else 2 * (alpha + n * beta) + n * gamma


FORMS = {"server": server, "tree": tree, "doubling": doubling, "ring": ring, "halving": halving}
