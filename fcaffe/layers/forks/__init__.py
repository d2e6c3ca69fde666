"""Layers of Caffe's forks, one file a family."""

from fcaffe.layers.forks import annotated_data  # noqa: F401
