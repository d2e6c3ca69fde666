"""The GPU engine: CuPy's arrays, cuDNN, cuBLAS and kernels of its own on one stream of one device."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from fcaffe.engines.cuda import libraries
from fcaffe.engines.cuda.convolution import Convolution, Plans
from fcaffe.engines.cuda.cublas import Cublas
from fcaffe.engines.cuda.elementwise import Elementwise
from fcaffe.engines.cuda.graphs import Graphs
from fcaffe.engines.cuda.inner_product import InnerProduct
from fcaffe.engines.cuda.kernels import Kernels
from fcaffe.engines.cuda.normalization import Normalization
from fcaffe.engines.cuda.pooling import Pooling
from fcaffe.engines.cuda.transfers import Transfers
from fcaffe.engines.cuda.update import Update
from fcaffe.engines.engine import Engine

HALF = {"fp16": "float16", "bf16": "bfloat16"}


class CudaEngine(Convolution, Pooling, Normalization, InnerProduct, Elementwise, Update, Transfers, Engine):
    """Computes on one NVIDIA GPU and one stream, which become current in each thread that uses the engine.

    Args:
        device: Number of the GPU.
        math: 'fp32'; 'tf32': convolutions and inner products round their factors to TF32; 'fp16' and 'bf16': factors,
            activations and their gradients have 16 bits, parameters and sums 32.
        deterministic: Refuse algorithms of cuDNN whose last bits differ from run to run.
        graphs: Run repeated steps as CUDA graphs.
        loss_scale: A fixed scale of the loss for 'fp16'. None: adapted during the training.

    Raises:
        UsageError: The driver, a package or a capability of the GPU is missing.
    """

    parameter_step = 4  # 16 bytes, as cuDNN requires of weights
    weights_channels_last = True
    asynchronous = True

    def __init__(
        self,
        device: int,
        math: str = "fp32",
        deterministic: bool = True,
        graphs: bool = True,
        loss_scale: float | None = None,
    ) -> None:
        cupy, cudnn = libraries.load(device, math)
        super().__init__(cupy)
        self.math = math
        self.half_dtype = np.dtype(HALF[math]) if math in HALF else None  # ml_dtypes, which is loaded, has bfloat16
        self.device = cupy.cuda.Device(device)
        self.device.use()
        current = cupy.cuda.get_current_stream()  # of an earlier engine of the process, if there is one
        self.stream = current if current.ptr else cupy.cuda.Stream(non_blocking=True)
        self.make_current()
        cupy.cuda.runtime.deviceSynchronize()  # before the earlier engine and its memory are freed
        self.kernels = Kernels(cupy)
        self.cublas = Cublas(cupy, self.stream)
        self.plans = Plans(cupy, cudnn, self.stream, math, deterministic)
        self.graphs = Graphs(cupy, self.stream) if graphs else None
        self.counters = cupy.zeros(4, np.uint64)  # see set_counters
        self.step = cupy.zeros(2, np.float32)  # rate, factor of the gradients
        self.overflow = cupy.zeros(1, np.int32)  # 1 after a gradient that is not finite: the update does nothing
        if math == "fp16":
            self.begin_loss_scale(loss_scale)
        self.name = f"CUDA GPU {device}, {libraries.find_gpu(device).name} ({math})"

    def make_current(self) -> None:
        """Make the device and the stream current in the calling thread, for which CuPy has both.

        `Stream.use` would not last. CuPy's `ndarray.get` contains a `with stream`, whose end returns to the stream of
        the outer `with`: without one, the default stream.
        """
        if self.xp.cuda.get_current_stream().ptr != self.stream.ptr:
            self.device.use()
            self.stream.__enter__()

    def from_numpy(self, array: np.ndarray) -> Any:
        self.make_current()
        return super().from_numpy(array)

    def to_numpy(self, array: Any) -> np.ndarray:
        self.make_current()
        return array if isinstance(array, np.ndarray) else array.get()

    def is_finite(self, values: Any) -> bool:
        self.make_current()
        return super().is_finite(values)

    def synchronize(self) -> None:
        self.stream.synchronize()

    def repeat(self, owner: Any, name: str, signature: Hashable, work: Callable[[], None]) -> None:
        if self.graphs is None:
            work()
        else:
            self.graphs.run(owner, name, signature, work)

    def set_counters(self, *counters: int) -> None:
        self.write_small(self.counters, np.array(counters, np.uint64))

    def set_step(self, rate: float, gradient_scale: float) -> None:
        self.write_small(self.step, np.array([rate, gradient_scale], np.float32))
