"""`fcaffe device_query`: prints the properties of GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from fcaffe import log
from fcaffe.cli import streams
from fcaffe.cli.engine import find_devices, parse_devices
from fcaffe.cli.flags import Flags, caffe_flags, command
from fcaffe.engines.cuda import driver
from fcaffe.engines.cuda.driver import Gpu, find_driver


@command(
    example="device_query --gpu all",
    help="Show what NVIDIA's driver knows of the GPUs --gpu ID,... or of all (--gpu all).",
    flags=caffe_flags("gpu"),
)
def device_query(flags: Flags) -> int:
    log.querying_gpus(flags.gpu)
    devices = find_devices()
    if flags.gpu:
        for number in parse_devices(flags.gpu, devices):
            log.gpu_fields(fields(number, find_driver().gpus[number]))
    elif devices.count:
        log.info(f"This host has {devices}: {', '.join(devices.names)}; --gpu all shows their properties")
    else:
        log.warning(f"This host has {devices}")
    return 1 if streams.error_fails() else 0  # standard error is this command's only output


def fields(number: int, gpu: Gpu) -> Iterator[tuple[str, object]]:
    """Yield the properties of a GPU by Caffe's names; sizes in bytes, the clock rate in kHz."""
    values = gpu.attributes
    yield "Device id", number
    yield "Major revision number", values[driver.MAJOR]
    yield "Minor revision number", values[driver.MINOR]
    yield "Name", gpu.name
    yield "Total global memory", gpu.memory
    yield "Total shared memory per block", values[driver.SHARED_MEMORY]
    yield "Total registers per block", values[driver.REGISTERS]
    yield "Warp size", values[driver.WARP]
    yield "Maximum memory pitch", values[driver.PITCH]
    yield "Maximum threads per block", values[driver.MAX_THREADS]
    yield "Maximum dimension of block", "{}, {}, {}".format(*gpu.three(driver.BLOCK_X))
    yield "Maximum dimension of grid", "{}, {}, {}".format(*gpu.three(driver.GRID_X))
    yield "Clock rate", values[driver.CLOCK]
    yield "Total constant memory", values[driver.CONSTANT_MEMORY]
    yield "Texture alignment", values[driver.TEXTURE_ALIGNMENT]
    yield "Concurrent copy and execution", "Yes" if values[driver.OVERLAP] else "No"
    yield "Number of multiprocessors", values[driver.MULTIPROCESSORS]
    yield "Kernel execution timeout", "Yes" if values[driver.TIMEOUT] else "No"
