"""Time of each layer of a net: as Caffe logs it, or as a profile that compares it with the machine's peak rates."""

from __future__ import annotations

import time
from collections.abc import Callable

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


def profile(net: Net, iterations: int) -> tuple[list[tuple[str, ...]], str]:
    """Compare the mean times of each layer with the machine's peak rates.

    Returns the rows of a table with COLUMNS, the slowest layer first, and two lines: the peaks, and a whole pass.
    """
    engine = net.context.engine
    with log.quiet():
        times = benchmark(net, iterations)
    with net.whole_passes():
        for passes in (1, iterations):  # the first one is a warm-up
            whole = _seconds(engine, lambda: [(net.forward(), net.backward()) for _ in range(passes)])  # noqa: B023
    pass_seconds = whole / iterations
    gflops_peak, gbytes_peak = gemm_gflops(engine), memory_gbytes(engine)
    rows: list[tuple[str, ...]] = []
    total, all_flops = sum(map(sum, times)) or 1.0, 0.0
    for node, forward, backward in sorted(zip(net.nodes, *times, strict=True), key=lambda row: -row[1] - row[2]):
        flops, moved = map(sum, zip(*work_of_passes(node), strict=True))
        moved += (1 + 2 * node.needs_backward) * 4 * sum(blob.count for blob in node.layer.blobs)
        all_flops += flops
        seconds = forward + backward or 1e-9
        gflops, gbytes = flops / seconds / 1e9, moved / seconds / 1e9
        best = max(gflops / gflops_peak, gbytes / gbytes_peak)
        parts = (f"{1000 * forward:.3f}", f"{1000 * backward:.3f}", f"{seconds / total:.1%}")
        share = f"{best:.0%}" if best <= 1 else "cached"
        rows.append((node.name, node.layer.type, *parts, f"{gflops:.1f}", f"{gbytes:.1f}", share))
    return rows, (
        f"This machine: {gflops_peak:.0f} GFLOP/s in matrix products, {gbytes_peak:.0f} GB/s in copies. "
        f"Of peak: the better of the two; cached: above that, since the layer's data stays in the caches.\n"
        f"A pass forward and backward: {1000 * pass_seconds:.2f} ms, {all_flops / pass_seconds / 1e9:.0f} GFLOP/s"
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


def _best(engine: Engine, work: Callable[[], object]) -> float:
    return min(_seconds(engine, work) for _ in range(REPEATS))


def _seconds(engine: Engine, work: Callable[[], object]) -> float:
    engine.synchronize()
    began = time.perf_counter()
    work()
    engine.synchronize()
    return time.perf_counter() - began


Seconds = list[float]  # one for each layer


def benchmark(net: Net, iterations: int) -> tuple[Seconds, Seconds]:
    """Time forward and backward of every layer, after a warm-up of one pass, and log the averages as Caffe does.

    As in Caffe, every layer runs backward, also layers that training would skip, and the forward time of a data layer
    includes reading. Returns the average seconds of each layer forward and backward.
    """
    forward, backward, total = [0.0] * len(net.nodes), [0.0] * len(net.nodes), 0.0
    log.performing_forward()
    log.initial_loss(time_forward(net, forward.copy()))
    log.performing_backward()
    time_backward(net, backward.copy())
    log.benchmark_begins(iterations)
    for iteration in range(iterations):
        started = time.perf_counter()
        time_forward(net, forward)
        time_backward(net, backward)
        both = time.perf_counter() - started
        total += both
        log.forward_backward_time(iteration + 1, 1000 * both)
    log.times_per_layer()
    forward, backward = ([seconds / iterations for seconds in way] for way in (forward, backward))
    for node, ahead, back in zip(net.nodes, forward, backward, strict=True):
        log.layer_times(node.name, 1000 * ahead, 1000 * back)
    log.benchmark_ends(1000 * sum(forward), 1000 * sum(backward), 1000 * total / iterations, 1000 * total)
    return forward, backward


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
