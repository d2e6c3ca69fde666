"""Examples of the layer types of Caffe's forks (see examples.py)."""

from tests.layers.example import Example

IMAGES = ((2, 4, 5, 3),)
MATRIX = (3, 4)
CONVOLUTION = 'weight_filler { type: "gaussian" std: 0.3 } bias_filler { type: "uniform" }'

# Shapes, normalisation, resizing, faces.
PLAIN: dict[str, list[Example]] = {
    "BN": [
        Example("", IMAGES, in_place=True),
        Example("bn_param { momentum: 0.7 }", ((6, 3),), in_place=True),
        Example("bn_param { frozen: true }", IMAGES, in_place=True, smooth=False),
        Example("", IMAGES, in_place=True, phase="TEST", smooth=False),
        Example("bn_param { bn_mode: LEARN }", IMAGES, in_place=True),
        Example("bn_param { bn_mode: LEARN }", ((6, 3),), tops=3, smooth=False),
        Example("bn_param { bn_mode: INFERENCE }", IMAGES),
    ],
    "ConvolutionDepthwise": [
        Example(f"convolution_param {{ kernel_size: 3 stride: 2 pad: 1 {CONVOLUTION} }}", IMAGES),
    ],
    "DepthwiseConvolution": [
        Example(f"convolution_param {{ num_output: 4 group: 4 kernel_size: 3 {CONVOLUTION} }}", IMAGES),
    ],
    "Flip": [Example("flip_param { flip_height: true }", IMAGES)],
    "Interp": [
        Example("interp_param { zoom_factor: 3 }", IMAGES),
        Example("interp_param { height: 3 width: 1 pad_beg: -1 }", IMAGES),
    ],
    "Normalize": [
        Example("", IMAGES, in_place=True),
        Example("norm_param { across_spatial: false }", IMAGES, in_place=True),
        Example("norm_param { across_spatial: false channel_shared: false }", (MATRIX,), smooth=False, in_place=True),
        Example("normalize_param { }", IMAGES, in_place=True),
        Example('normalize_param { normalize_type: "L1" }', (MATRIX,), in_place=True),
    ],
    "Permute": [
        Example("permute_param { order: 0 order: 2 order: 3 order: 1 }", IMAGES),
        Example("permute_param { order: 2 order: 1 }", ((2, 3, 2, 3, 2),), batched=()),
    ],
    "ReLU6": [
        Example("", IMAGES, in_place=True),
        Example("relu6_param { negative_slope: 0.2 }", (MATRIX,), in_place=True),
        Example("relu6_param { negative_slope: -0.2 }", (MATRIX,)),
    ],
    "Reorg": [
        Example("reorg_param { stride: 2 }", ((2, 4, 4, 6),), smooth=False),
        Example("reorg_param { stride: 2 reverse: true }", ((2, 8, 2, 3),), smooth=False),
    ],
    "Reverse": [Example("", IMAGES), Example("reverse_param { axis: 1 }", (MATRIX,))],
    "ShuffleChannel": [Example("shuffle_channel_param { group: 2 }", IMAGES)],
    "Transpose": [Example("transpose_param { dim: 2 dim: 0 dim: 1 }", ((2, 3, 4),))],
    "Upsample": [
        Example("", ((2, 3, 2, 3),) * 2, labels={1: 24}),
        Example("upsample_param { scale: 2 }", IMAGES),
    ],
}

# SSD.
BOXES: dict[str, list[Example]] = {}

# Regions of interest, YOLO.
REGIONS: dict[str, list[Example]] = {}

# Fields of forks in layers of BVLC Caffe.
FORK_FIELDS: dict[str, list[Example]] = {
    "BatchNorm": [
        Example("batch_norm_param { scale_bias: true }", IMAGES, in_place=True),
        Example("batch_norm_param { scale_bias: true use_global_stats: true }", IMAGES, in_place=True),
    ],
}

EXAMPLES_OF_FORKS = PLAIN | BOXES | REGIONS
