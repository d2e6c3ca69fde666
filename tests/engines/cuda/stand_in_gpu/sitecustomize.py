"""With this folder in PYTHONPATH each Python has a GPU, which stand-ins for CuPy, cuDNN and cuBLAS compute."""

from tests.engines.cuda import stand_in_engine

stand_in_engine.install(None)
