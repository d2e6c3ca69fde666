"""Random numbers: Caffe's streams, bit for bit, and a counter-based stream that does not depend on the workers."""

from fcaffe.rng.caffe_random import CaffeRandom

__all__ = ["CaffeRandom"]
