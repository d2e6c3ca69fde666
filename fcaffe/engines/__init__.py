"""Where arrays live and what computes on them."""

from fcaffe.engines.engine import Engine, NumpyEngine

__all__ = ["Engine", "NumpyEngine"]
