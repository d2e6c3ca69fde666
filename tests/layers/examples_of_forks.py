"""Examples of the layer types of Caffe's forks (see examples.py)."""

from tests.layers.example import Example

IMAGES = ((2, 4, 5, 3),)
MATRIX = (3, 4)

# Shapes, normalisation, resizing, faces.
PLAIN: dict[str, list[Example]] = {
    "Flip": [Example("flip_param { flip_height: true }", IMAGES)],
    "Permute": [
        Example("permute_param { order: 0 order: 2 order: 3 order: 1 }", IMAGES),
        Example("permute_param { order: 2 order: 1 }", ((2, 3, 2, 3, 2),), batched=()),
    ],
    "Reorg": [
        Example("reorg_param { stride: 2 }", ((2, 4, 4, 6),), smooth=False),
        Example("reorg_param { stride: 2 reverse: true }", ((2, 8, 2, 3),), smooth=False),
    ],
    "Reverse": [Example("", IMAGES), Example("reverse_param { axis: 1 }", (MATRIX,))],
    "ShuffleChannel": [Example("shuffle_channel_param { group: 2 }", IMAGES)],
    "Transpose": [Example("transpose_param { dim: 2 dim: 0 dim: 1 }", ((2, 3, 4),))],
}

# SSD.
BOXES: dict[str, list[Example]] = {}

# Regions of interest, YOLO.
REGIONS: dict[str, list[Example]] = {}

EXAMPLES_OF_FORKS = PLAIN | BOXES | REGIONS
