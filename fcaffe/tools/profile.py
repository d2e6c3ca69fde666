"""Time of each layer of a net: as Caffe logs it, or as a profile that compares it with the machine's peak rates."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fcaffe import log
from fcaffe.engines import Engine
from fcaffe.engines.memory import aligned_zeros
from fcaffe.net import Net
from fcaffe.tools.summary import work_of_passes

COLUMNS = ("layer", "type", "fwd ms", "bwd ms", "share", "GFLOP/s", "GB/s", "of peak")

# Of the measured peaks.
SIDE = 2048  # of the square matrices
FLOATS = 1 << 26  # per copy: larger than any cache
REPEATS = 5


@dataclass
class Row:
    """One layer, per pass over a batch: milliseconds, floating-point operations, and the least bytes to move."""

    name: str
    type: str
    forward_ms: float
    backward_ms: float
    flops: float
    bytes: float

    @property
    def ms(self) -> float:
        return self.forward_ms + self.backward_ms


@dataclass
class Profile:
    """All layers; the machine's peaks in GFLOP/s and GB/s; the milliseconds of a whole pass forward and backward."""

    rows: list[Row]
    gflops_peak: float
    gbytes_peak: float
    pass_ms: float


def profile(net: Net, iterations: int) -> Profile:
    """Mean over this many passes, after a warm-up of one."""
    engine = net.context.engine
    net.forward()
    net.backward()
    forwards, backwards = [0.0] * len(net.nodes), [0.0] * len(net.nodes)
    for _ in range(iterations):
        time_forward(net, forwards)
        time_backward(net, backwards)
    rows = []
    for node, forward, backward in zip(net.nodes, forwards, backwards, strict=True):
        flops, moved = map(sum, zip(*work_of_passes(node), strict=True))
        moved += (1 + 2 * node.needs_backward) * 4 * sum(blob.count for blob in node.layer.blobs)
        times = 1000 * forward / iterations, 1000 * backward / iterations
        rows.append(Row(node.name, node.layer.type, *times, flops, moved))
    with net.whole_passes():
        net.forward()
        net.backward()
        engine.synchronize()
        began = time.perf_counter()
        for _ in range(iterations):
            net.forward()
            net.backward()
        engine.synchronize()
        whole = time.perf_counter() - began
    return Profile(rows, gemm_gflops(engine), memory_gbytes(engine), 1000 * whole / iterations)


def rows_of(found: Profile) -> list[tuple[str, ...]]:
    """The texts of a table with COLUMNS, the slowest layer first."""
    total = sum(row.ms for row in found.rows) or 1.0
    rows: list[tuple[str, ...]] = []
    for row in sorted(found.rows, key=lambda row: -row.ms):
        seconds = row.ms / 1000 or 1e-9
        gflops, gbytes = row.flops / seconds / 1e9, row.bytes / seconds / 1e9
        best = max(gflops / found.gflops_peak, gbytes / found.gbytes_peak)
        times = (f"{row.forward_ms:.3f}", f"{row.backward_ms:.3f}", f"{row.ms / total:.1%}")
        share = f"{best:.0%}" if best <= 1 else "cached"
        rows.append((row.name, row.type, *times, f"{gflops:.1f}", f"{gbytes:.1f}", share))
    return rows


def totals(found: Profile) -> str:
    """Two lines: the machine's peaks, and a whole pass."""
    flops = sum(row.flops for row in found.rows)
    return (
        f"This machine: {found.gflops_peak:.0f} GFLOP/s in matrix products, {found.gbytes_peak:.0f} GB/s in copies. "
        f"Of peak: the better of the two; cached: above that, since the layer's data stays in the caches.\n"
        f"A pass forward and backward: {found.pass_ms:.2f} ms, {flops / found.pass_ms / 1e6:.0f} GFLOP/s"
    )


def gemm_gflops(engine: Engine) -> float:
    """GFLOP/s of the engine's product of large square matrices, the best of REPEATS."""
    a, b, c = (aligned_zeros(engine.xp, SIDE * SIDE).reshape(SIDE, SIDE) for _ in range(3))
    a[...], b[...] = engine.from_numpy(np.random.default_rng(1).standard_normal((2, SIDE, SIDE), np.float32))
    return 2 * SIDE**3 / _best(engine, lambda: engine.inner_product_forward(a, b, None, c, False)) / 1e9


def memory_gbytes(engine: Engine) -> float:
    """GB/s that a copy of a large array reads and writes, the best of REPEATS."""
    a, b = (aligned_zeros(engine.xp, FLOATS).reshape(1 << 10, -1) for _ in range(2))
    a[...], b[...] = 1, 1  # allocates all pages
    return 2 * a.nbytes / _best(engine, lambda: engine.copy(a, b)) / 1e9


def _best(engine: Engine, work: Callable[[], None]) -> float:
    seconds = []
    for _ in range(REPEATS):
        engine.synchronize()
        began = time.perf_counter()
        work()
        engine.synchronize()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


Seconds = list[float]  # one for each layer


def benchmark(net: Net, iterations: int) -> None:
    """Time forward and backward of every layer, after a warm-up of one pass, and log the averages as Caffe does.

    As in Caffe, every layer runs backward, also layers that training would skip, and the forward time of a data layer
    includes reading.
    """
    nothing = [0.0] * len(net.nodes)
    log.performing_forward()
    log.initial_loss(time_forward(net, nothing.copy()))
    log.performing_backward()
    time_backward(net, nothing.copy())
    log.benchmark_begins(iterations)
    forward, backward, total = nothing.copy(), nothing.copy(), 0.0
    for iteration in range(iterations):
        started = time.perf_counter()
        time_forward(net, forward)
        time_backward(net, backward)
        both = time.perf_counter() - started
        total += both
        log.forward_backward_time(iteration + 1, 1000 * both)
    log.times_per_layer()
    average = 1000 / iterations
    for node, ahead, back in zip(net.nodes, forward, backward, strict=True):
        log.layer_times(node.name, average * ahead, average * back)
    log.benchmark_ends(average * sum(forward), average * sum(backward), average * total, 1000 * total)


def time_forward(net: Net, seconds: Seconds) -> float:
    """Run all layers forward, add the seconds of each to `seconds`, and return the loss."""
    loss, engine = 0.0, net.context.engine
    engine.synchronize()
    for index in range(len(net.nodes)):
        started = time.perf_counter()
        loss += net.forward(index, index)
        engine.synchronize()
        seconds[index] += time.perf_counter() - started
    return loss


def time_backward(net: Net, seconds: Seconds) -> None:
    """Run all layers backward, and add the seconds of each to `seconds`."""
    engine = net.context.engine
    engine.synchronize()
    for index, node in reversed(list(enumerate(net.nodes))):
        started = time.perf_counter()
        node.backward()
        engine.synchronize()
        seconds[index] += time.perf_counter() - started
