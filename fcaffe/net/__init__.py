"""Blob, Layer, Net: the graph and what flows through it."""

from fcaffe.net.blob import Blob
from fcaffe.net.context import Context
from fcaffe.net.layer import Layer, layer_types, register
from fcaffe.net.net import Net

__all__ = ["Blob", "Context", "Layer", "Net", "layer_types", "register"]
