"""One rank of the checks of reductions on GPUs: `python -m mpi4py device_ranks.py CHECK ...`.

On a stand-in for CuPy; if GPU=1, on the GPUs that there are, one for each rank, in turns.
"""

from __future__ import annotations

import os
import sys
import zlib
from typing import Any

import numpy as np
from mpi4py import MPI

from fcaffe.engines.cuda.transfers import Copying
from fcaffe.errors import FcaffeError, UsageError
from fcaffe.parallel import waiting
from fcaffe.parallel.compression import compressions, make_compression
from fcaffe.parallel.exchange import ReducingExchange
from fcaffe.parallel.reductions import create_reduction
from fcaffe.parallel.workers import MpiWorkers
from tests.engines.cuda import stand_in_cupy
from tests.parallel.refusals import refused

comm = MPI.COMM_WORLD
if os.environ.get("GPU"):
    import cupy

    cupy.cuda.Device(comm.rank % cupy.cuda.runtime.getDeviceCount()).use()
else:
    cupy = stand_in_cupy.install(None)
    stand_in_cupy.put_off_all_work()
    stand_in_cupy.runtime.DEVICES = comm.size
    stand_in_cupy.nccl.module.available = True
LENGTHS = [0, 1, 3, 1000, 10007]


def write(buffer: Any, values: np.ndarray) -> None:
    """As a backward pass does: on the current stream, some time."""
    if os.environ.get("GPU"):
        buffer.set(values)
        return
    stand_in_cupy.live(buffer)[...] = -7
    stand_in_cupy.put(lambda: np.copyto(stand_in_cupy.live(buffer), values))


def read(buffer: Any) -> np.ndarray:
    return buffer.get()


def check_sums(names: list[str]) -> None:
    for name in names:
        reduction = create_reduction(name, comm, cupy)
        own = reduction.allocate(max(LENGTHS) + 5)
        assert isinstance(own, cupy.ndarray) and own.dtype == np.float32 and not read(own).any()
        for length in LENGTHS:
            for _ in range(2):  # what the first sum left under way must not disturb the second
                values = np.random.default_rng((comm.rank, length)).standard_normal(length, np.float32)
                everybody = np.array(comm.allgather(values), np.float64)
                write(own, np.full(own.size, -1, np.float32))
                bucket = own[3 : 3 + length]
                write(bucket, values)
                reduction.sum(bucket)
                result = read(own)
            inside = result[3 : 3 + length]
            what = f"{reduction.name}, {comm.size} ranks, {length} floats"
            bound = comm.size * 2**-24 * np.abs(everybody).sum(axis=0)
            assert np.all(np.abs(inside - everybody.sum(axis=0)) <= bound), f"{what}: not the sum"
            assert np.all(result[:3] == -1) and np.all(result[3 + length :] == -1), f"{what}: wrote beyond the buffer"
            assert len(set(comm.allgather(zlib.crc32(inside)))) == 1, f"{what}: the ranks have different bits"
        reduction.close()


def sums() -> None:
    stand_in_cupy.runtime.setDevice(comm.rank)
    check_sums(sys.argv[2].split(","))


def exchange() -> None:
    stand_in_cupy.runtime.setDevice(comm.rank)
    for name in sys.argv[2].split(","):
        for overlap in (True, False):
            reduction = create_reduction(name, comm, cupy)
            stand_in_cupy.calls.clear()
            exchange = ReducingExchange(reduction, 4 * 150, overlap)
            found = run_ahead(exchange, exchange.allocate(cupy, 1000))
            if exchange.on_streams:
                assert not any(call[0] == "synchronize" for call in stand_in_cupy.calls), f"{name}: the host waits"
            event = cupy.cuda.Event()
            event.record(cupy.cuda.get_current_stream())
            exchange.wait_for(Copying(event))
            for iteration, (sums, right) in enumerate(found):
                assert np.allclose(sums, right, atol=1e-5), f"{name}, overlap {overlap}, iteration {iteration}"
            assert exchange.on_streams or exchange.summary().startswith("Sums of gradients took")
            reduction.close()


def run_ahead(exchange: ReducingExchange, gradients: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """Iterations whose gradients are written with time, bucket by bucket, and used and overwritten after the sums; for
    each what is going to be found there, and what is right."""
    found = []

    def put_copy(to: Any, source: Any) -> None:
        stand_in_cupy.put(lambda: np.copyto(stand_in_cupy.live(to), stand_in_cupy.live(source)))

    for iteration in range(4):
        values = np.random.default_rng((comm.rank, iteration)).standard_normal(gradients.size, np.float32)
        found.append((np.empty_like(values), np.sum(comm.allgather(values), axis=0)))
        exchange.begin(gradients)
        for start in range(gradients.size - 50, -1, -50):
            put_copy(gradients[start : start + 50], values[start : start + 50])
            exchange.ready(start)
        exchange.finish()
        put_copy(found[-1][0], gradients)
        put_copy(gradients, np.full_like(values, -3))
    return found


def workers() -> None:
    """What workers add up and broadcast may lie on a device."""
    stand_in_cupy.runtime.setDevice(comm.rank)
    ranks = comm.size * (comm.size + 1) // 2
    for name in ("nccl", "staged"):
        reduction = create_reduction(name, comm, cupy)
        workers = MpiWorkers(comm, reduction=reduction)
        assert workers.sums_on_streams == (name == "nccl")
        for dtype in (np.float32, np.float64):
            array = cupy.zeros(6, dtype).reshape(2, 3).T
            stand_in_cupy.put(lambda array=array: stand_in_cupy.live(array).fill(comm.rank + 1))
            stand_in_cupy.calls.clear()
            total = workers.sum_array(array)
            assert isinstance(total, cupy.ndarray) and total.shape == (3, 2)
            assert [call[0] for call in stand_in_cupy.calls].count("allReduce") == (
                name == "nccl" and dtype == np.float32
            )
            assert np.all(read(total) == ranks) and np.all(read(array) == comm.rank + 1)
            everyones = read(workers.gather_array(array))
            assert everyones.shape == (comm.size, 3, 2) and everyones.dtype == dtype
            assert all(np.all(own == rank + 1) for rank, own in enumerate(everyones))
        array = cupy.zeros(4, np.float32)
        write(array, np.arange(4, dtype=np.float32) + comm.rank)
        workers.broadcast(array)
        assert read(array).tolist() == [0, 1, 2, 3]
        assert workers.sum(array[0] + 1) == comm.size
        reduction.close()


def compress() -> None:
    """On a device each scheme sends, and leaves behind, what it does on the host."""
    count = 300
    for scheme in compressions():
        host, device = make_compression(scheme, comm), make_compression(scheme, comm, cupy)
        for reduction in (host, device):
            if reduction.applies_momentum:
                reduction.set_momentum(0.9, -1)
        on_host, on_device = ReducingExchange(host, 4 * 100), ReducingExchange(device, 4 * 100)
        plain, gradients = on_host.allocate(np, count), on_device.allocate(cupy, count)
        for iteration in range(5):
            values = np.random.default_rng((comm.rank, iteration)).standard_normal(count, np.float32)
            plain[...] = values
            on_host.begin(plain)
            on_device.begin(gradients)
            for start in range(count - 60, -1, -60):
                write(gradients[start : start + 60], values[start : start + 60])
                on_host.ready(start)
                on_device.ready(start)
            on_host.finish()
            on_device.finish()
            assert np.array_equal(read(gradients), plain), f"{scheme}, iteration {iteration}"
        assert device.summary() == host.summary() and device.bytes_sent == host.bytes_sent
        assert not on_device.on_streams
        host.close()
        device.close()


def choices() -> None:
    """What is picked, and why."""
    runtime, nccl = stand_in_cupy.runtime, stand_in_cupy.nccl.module
    runtime.setDevice(comm.rank)
    assert create_reduction("auto", comm, cupy).name == "nccl"
    for name, found in {"ring": "staged:ring", "staged": "staged:auto", "shared": "staged:shared"}.items():
        assert create_reduction(name, comm, cupy).name == found
    assert create_reduction("hierarchical:ring", comm, cupy).name == "staged:hierarchical:ring"

    runtime.setDevice(comm.rank // 2)
    assert create_reduction("auto", comm, cupy).name == "staged:auto"
    shared = r"ranks 0 and 1 share one GPU \(0000:19:00.0 of .*\), and NCCL wants one for each; use staged:auto"
    with refused(UsageError, shared):
        create_reduction("nccl", comm, cupy)
    runtime.setDevice(comm.rank)
    nccl.available = comm.rank != 1
    assert create_reduction("auto", comm, cupy).name == "staged:auto"
    with refused(UsageError, r"finds no NCCL on rank 1 .*pip install nvidia-nccl-cu12.*use staged:auto"):
        create_reduction("nccl", comm, cupy)


def errors() -> None:
    for name in ("nccl", "staged", "staged:ring"):
        with refused(UsageError, rf"{name} sums buffers of GPUs, .* use shared, ring or auto"):
            create_reduction(name, comm)
    reduction = create_reduction("nccl", comm, cupy)
    with refused(UsageError, "made for buffers on a GPU, not for a numpy array"):
        reduction.sum(np.zeros(3, np.float32))
    with refused(FcaffeError, "flat, contiguous float32"):
        reduction.sum(reduction.allocate(4)[::2])
    stand_in_cupy.nccl.NcclCommunicator.broken = "unhandled system error"
    stand_in_cupy.calls.clear()
    with refused(FcaffeError, "NCCL failed: unhandled system error; another rank may have ended first"):
        reduction.sum(reduction.allocate(4))
    assert stand_in_cupy.calls[-1] == ("abort",)
    stand_in_cupy.nccl.module.get_unique_id = fail
    with refused(FcaffeError, "NCCL does not start on rank 0: no socket"):
        create_reduction("nccl", comm, cupy)


def fail() -> None:
    raise stand_in_cupy.nccl.NcclError("no socket")


waiting.POLLS = 10  # more ranks than cores: what a rank waits for comes while it sleeps
{
    "sums": sums,
    "choices": choices,
    "errors": errors,
    "compress": compress,
    "exchange": exchange,
    "workers": workers,
}[sys.argv[1]]()
