from typing import Any

from fcaffe import layers as layers
from fcaffe.pycaffe.interface import *  # noqa: F403
from fcaffe.tools.predictor import Predictor as Predictor

__version__: str

def __getattr__(name: str) -> Any: ...
