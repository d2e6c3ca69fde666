from typing import Any

from fcaffe import layers as layers
from fcaffe.pycaffe.interface import *  # noqa: F403

__version__: str

def __getattr__(name: str) -> Any: ...
