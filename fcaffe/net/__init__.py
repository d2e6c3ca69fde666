"""Blob, Layer, Net: the graph and what flows through it."""

from fcaffe.net.blob import Array, Blob
from fcaffe.net.context import Context
from fcaffe.net.layer import ALL_BOTTOMS, Half, Layer, Traits
from fcaffe.net.net import Net
from fcaffe.net.registry import layer_types, register

__all__ = ["ALL_BOTTOMS", "Array", "Blob", "Context", "Half", "Layer", "Net", "Traits", "layer_types", "register"]
