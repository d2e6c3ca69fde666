"""With this folder in PYTHONPATH each Python has two GPUs, which stand-ins for CuPy, cuDNN, cuBLAS and NCCL compute."""

from fcaffe.engines.cuda import driver
from tests.engines.cuda import stand_in_cupy, stand_in_engine
from tests.engines.cuda.fake_driver import FakeDriver

stand_in_engine.install(None)
stand_in_cupy.runtime.DEVICES = 2
stand_in_cupy.nccl.module.available = True
driver.open_library = lambda: FakeDriver(("A", "B"))
