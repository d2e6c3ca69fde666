"""Examples of the layer types of Caffe's forks (see examples.py)."""

from tests.layers.example import Example

# Shapes, normalisation, resizing, faces.
PLAIN: dict[str, list[Example]] = {}

# SSD.
BOXES: dict[str, list[Example]] = {}

# Regions of interest, YOLO.
REGIONS: dict[str, list[Example]] = {}

EXAMPLES_OF_FORKS = PLAIN | BOXES | REGIONS
