"""Examples of the layer types of Caffe's forks (see examples.py)."""

from tests.layers.example import Example

# Shapes, normalisation, resizing, faces.
PLAIN: dict[str, list[Example]] = {}

# SSD.
BOXES: dict[str, list[Example]] = {
    "PriorBox": [
        Example(
            "prior_box_param { min_size: 4 max_size: 9 aspect_ratio: 2 }",
            ((2, 3, 2, 3), (2, 3, 9, 12)),
            constants=(0, 1),
            batched=(),
        ),
    ],
}

# Regions of interest, YOLO.
REGIONS: dict[str, list[Example]] = {}

EXAMPLES_OF_FORKS = PLAIN | BOXES | REGIONS
