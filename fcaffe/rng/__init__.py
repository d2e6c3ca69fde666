"""Random numbers: Caffe's own streams, bit for bit, and one that does not see how many workers share a batch."""

from fcaffe.rng.caffe_random import CaffeRandom

__all__ = ["CaffeRandom"]
