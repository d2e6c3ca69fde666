"""Profile of a net: the time of each layer, compared with the peak rates of the machine."""

from __future__ import annotations

import time
from dataclasses import dataclass

from fcaffe.net import Net
from fcaffe.tools.peaks import gemm_gflops, memory_gbytes
from fcaffe.tools.summary import work_of_passes
from fcaffe.tools.timing import time_backward, time_forward

COLUMNS = ("layer", "type", "fwd ms", "bwd ms", "share", "GFLOP/s", "GB/s", "of peak")


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
        rows.append((row.name, row.type, *times, f"{gflops:.1f}", f"{gbytes:.1f}", f"{best:.0%}"))
    return rows


def totals(found: Profile) -> str:
    """Two lines: the machine's peaks, and a whole pass."""
    flops = sum(row.flops for row in found.rows)
    return (
        f"This machine: {found.gflops_peak:.0f} GFLOP/s in matrix products, {found.gbytes_peak:.0f} GB/s in copies. "
        f"Of peak: the better of the two.\n"
        f"A pass forward and backward: {found.pass_ms:.2f} ms, {flops / found.pass_ms / 1e6:.0f} GFLOP/s"
    )
