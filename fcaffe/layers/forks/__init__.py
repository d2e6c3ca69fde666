"""Layers of Caffe's forks, one file a family."""
