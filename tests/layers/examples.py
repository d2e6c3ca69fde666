"""One or more small configurations of every layer type, for the checks that hold for all of them."""

from typing import Any

from tests.layers.example import Example
from tests.layers.examples_of_forks import EXAMPLES_OF_FORKS, FORK_FIELDS

IMAGE = (2, 4, 5, 3)
IMAGES = (IMAGE,)
VOLUME = (2, 3, 3, 2, 4)
MATRIX = (3, 4)

# Types that read from elsewhere, with the tests that they have instead.
TESTED_ELSEWHERE = {
    "AnnotatedData": "test_annotated_sets.py",
    "Data": "test_data_layer.py",
    "DenseImageData": "test_dense_image_data.py",
    "HDF5Data": "test_hdf5_layers.py",
    "HDF5Output": "test_hdf5_layers.py",
    "ImageData": "test_image_data.py",
    "MemoryData": "test_memory_data.py",
    "WindowData": "test_window_data.py",
}

CONVOLUTION = 'weight_filler { type: "gaussian" std: 0.3 } bias_filler { type: "uniform" }'


def convolutions(kernel: int) -> list[Example]:
    """Of Convolution and Deconvolution; with groups, windows are of this size."""
    own = [
        "num_output: 3 kernel_size: 3",
        "num_output: 2 kernel_size: 1 bias_term: false",
        "num_output: 2 kernel_size: 2 dilation: 2 pad: 1",
    ]
    groups = f"num_output: 6 group: 2 kernel_size: {kernel} stride: 2 pad: 1"
    return [
        *(Example(f"convolution_param {{ {fields} {CONVOLUTION} }}", IMAGES) for fields in own),
        Example(f"convolution_param {{ {groups} {CONVOLUTION} }}", (IMAGE, IMAGE), tops=2),
        Example(f"convolution_param {{ num_output: 2 kernel_size: 2 {CONVOLUTION} }}", ((1, 2, 3, 2, 2, 3),)),
    ]


# One stream, whose first step begins a sequence: the gradient of single steps needs passes that do not follow one
# another. See test_recurrent.py for the rest.
SEQUENCE = ((4, 1, 3), (4, 1))
IMAGE_SEQUENCE = ((2, 1, 2, 2, 3), (2, 1))
RECURRENT = 'weight_filler { type: "uniform" min: -0.3 max: 0.3 } bias_filler { type: "uniform" min: -0.3 max: 0.3 }'


def recurrent(states: int) -> list[Example]:
    """Of a layer with so many states."""

    def of(bottoms: tuple[tuple[int, ...], ...], outputs: int = 2, more: str = "", **settings: Any) -> Example:
        text = f"recurrent_param {{ num_output: {outputs} {more} {RECURRENT} }}"
        return Example(text, bottoms, labels={1: 2}, batched=(), **settings)

    exposed, first = (*SEQUENCE, (1, 2), *((1, 1, 2),) * states), range(3, 3 + states)
    return [
        of(SEQUENCE),
        of((*SEQUENCE, (1, 2)), 3),
        of(IMAGE_SEQUENCE),
        # no gradient comes through the last states either
        of(exposed, more="expose_hidden: true", tops=1 + states, constants=tuple(first), smooth=False),
    ]


EXAMPLES: dict[str, list[Example]] = {
    "AbsVal": [Example("", IMAGES)],
    "Accuracy": [Example("", (MATRIX, (3,)), labels={1: 4}, has_gradient=False)],
    "ArgMax": [
        Example("", IMAGES, has_gradient=False),
        Example("argmax_param { out_max_val: true top_k: 3 }", IMAGES, has_gradient=False),
        Example("argmax_param { out_max_val: true top_k: 2 axis: 1 }", IMAGES, has_gradient=False),
        Example("argmax_param { axis: -1 }", (MATRIX,), has_gradient=False),
    ],
    "BNLL": [Example("", IMAGES)],
    "BatchNorm": [
        Example("", IMAGES, in_place=True),
        Example("", ((6, 3),), in_place=True),
        Example("", ((3, 2, 2, 2, 2),), in_place=True),
        Example("", ((7,),)),
        Example("batch_norm_param { use_global_stats: true }", IMAGES, in_place=True),
        Example("", IMAGES, in_place=True, phase="TEST"),
        Example("batch_norm_param { use_global_stats: false }", IMAGES, in_place=True, phase="TEST"),
    ],
    "BatchReindex": [
        Example("", (IMAGE, (5,)), labels={1: 2}, batched=(1,)),
        Example("", ((4, 2), (3,)), labels={1: 4}, batched=(1,)),
    ],
    "Bias": [
        Example('bias_param { filler { type: "uniform" } }', IMAGES, in_place=True),
        Example("bias_param { axis: 2 num_axes: -1 }", IMAGES, in_place=True),
        Example("bias_param { num_axes: 0 }", (MATRIX,), in_place=True),
        Example("bias_param { axis: 1 }", (IMAGE, (4, 5)), batched=(0,)),
    ],
    "Clip": [
        Example("clip_param { min: -1.203 max: 0.504 }", IMAGES),
        Example("clip_param { min: -9 max: 9 }", (MATRIX,), in_place=True),
    ],
    "Concat": [
        Example("", (IMAGE, (2, 1, 5, 3), IMAGE)),
        Example("concat_param { axis: 0 }", (MATRIX, MATRIX)),
        Example("concat_param { axis: -1 }", (IMAGE, (2, 4, 5, 1))),
    ],
    "ContrastiveLoss": [
        Example("contrastive_loss_param { margin: 4 }", (MATRIX, MATRIX, (3,)), labels={2: 2}),
        Example(
            "contrastive_loss_param { margin: 9 legacy_version: true }", ((4, 2, 1, 1),) * 2 + ((4,),), labels={2: 2}
        ),
    ],
    "Convolution": [
        *convolutions(2),
        Example(f"convolution_param {{ num_output: 2 kernel_size: 2 {CONVOLUTION} }}", ((2, 2, 3, 2, 3),)),
    ],
    "Crop": [
        Example("", (IMAGE, (2, 1, 3, 2)), constants=(1,)),
        Example("crop_param { axis: 1 offset: 2 offset: 0 offset: 1 }", (IMAGE, (2, 2, 3, 2)), constants=(1,)),
        Example("crop_param { axis: -1 offset: 1 }", (MATRIX, (3, 2)), constants=(1,)),
    ],
    "Deconvolution": [
        *convolutions(4),
        Example(f"convolution_param {{ num_output: 2 kernel_size: 2 axis: 2 {CONVOLUTION} }}", ((2, 1, 2, 2, 3),)),
    ],
    "Dropout": [
        Example("dropout_param { dropout_ratio: 0.3 }", IMAGES, in_place=True),
        Example("", IMAGES, in_place=True, phase="TEST"),
    ],
    "DummyData": [Example('dummy_data_param { shape { dim: 2 dim: 3 } data_filler { type: "uniform" } }')],
    "ELU": [Example("", IMAGES, in_place=True), Example("elu_param { alpha: 0.3 }", (MATRIX,), in_place=True)],
    "Eltwise": [
        Example("", (IMAGE, IMAGE)),
        Example("eltwise_param { coeff: 1 coeff: -0.5 coeff: 2 }", (MATRIX, MATRIX, MATRIX)),
        Example("eltwise_param { operation: PROD }", (IMAGE, IMAGE)),
        Example("eltwise_param { operation: PROD }", (MATRIX, MATRIX, MATRIX)),
        Example("eltwise_param { operation: PROD stable_prod_grad: false }", (MATRIX, MATRIX), positive=True),
        Example("eltwise_param { operation: MAX }", ((2, 3, 2, 2),) * 3),
    ],
    "Embed": [
        Example('embed_param { num_output: 3 input_dim: 5 weight_filler { type: "uniform" } }', ((6,),), labels={0: 5}),
        Example("embed_param { num_output: 2 input_dim: 4 bias_term: false }", ((2, 3, 2),), labels={0: 4}),
    ],
    "EuclideanLoss": [Example("", (IMAGE, IMAGE)), Example("", ((2, 3, 2, 2), (2, 12)))],
    "Exp": [
        Example("", IMAGES, in_place=True),
        Example("exp_param { base: 2 scale: 0.5 shift: -1 }", (MATRIX,), in_place=True),
    ],
    "Filter": [
        Example("", ((4, 4, 5, 3), (4,)), labels={1: 2}),
        Example("", ((5, 2), (5, 3, 2, 2), (5, 1, 1)), tops=2, labels={2: 2}),
    ],
    "Flatten": [Example("", IMAGES), Example("flatten_param { axis: 1 end_axis: 2 }", ((2, 3, 2, 3, 2),))],
    "HingeLoss": [
        Example("", (MATRIX, (3,)), labels={1: 4}),
        Example("hinge_loss_param { norm: L2 }", ((2, 2, 3, 2), (2, 1)), labels={1: 12}),
    ],
    "Im2col": [
        Example("convolution_param { kernel_size: 3 pad: 1 stride: 2 }", IMAGES),
        Example("convolution_param { kernel_size: 2 dilation: 2 axis: 2 }", ((2, 2, 2, 4, 3),)),
    ],
    "InfogainLoss": [
        Example("", (MATRIX, (3,), (4, 4)), labels={1: 4, 2: 3}, batched=(0, 1)),
        Example(
            "infogain_loss_param { axis: -1 } loss_param { ignore_label: 2 normalization: FULL }",
            (IMAGE, (2, 4, 5), (1, 1, 3, 3)),
            labels={1: 3, 2: 4},
            batched=(0, 1),
        ),
    ],
    "InnerProduct": [
        Example('inner_product_param { num_output: 5 weight_filler { type: "xavier" } }', IMAGES),
        Example(
            'inner_product_param { num_output: 2 axis: 3 transpose: true weight_filler { type: "xavier" } }', IMAGES
        ),
    ],
    "Input": [Example("input_param { shape { dim: 2 dim: 3 } }")],
    "LRN": [
        Example("lrn_param { local_size: 3 alpha: 0.5 k: 2 }", IMAGES),
        Example("lrn_param { local_size: 5 }", IMAGES),
        Example("lrn_param { local_size: 3 norm_region: WITHIN_CHANNEL }", IMAGES),
    ],
    "LSTM": recurrent(2),
    "LSTMUnit": [Example("", ((1, 3, 2), (1, 3, 8), (1, 3)), tops=2, labels={2: 2}, batched=())],
    "Log": [
        Example("log_param { shift: 0.5 }", IMAGES, positive=True),
        Example("log_param { base: 10 scale: 0.5 shift: 0.2 }", (MATRIX,), positive=True),
    ],
    "MVN": [
        Example("", IMAGES, in_place=True),
        Example("mvn_param { across_channels: true }", IMAGES, in_place=True),
        Example("mvn_param { across_channels: true normalize_variance: false }", (MATRIX,)),
    ],
    "MultinomialLogisticLoss": [
        Example("", (MATRIX, (3,)), labels={1: 4}, positive=True),
        Example("", ((2, 2, 3, 2), (2, 1)), labels={1: 12}, positive=True),
    ],
    "PReLU": [
        Example("", IMAGES, in_place=True),
        Example("prelu_param { channel_shared: true }", (MATRIX,), in_place=True),
        Example('prelu_param { filler { type: "uniform" } }', ((2, 3, 2, 2, 2),), in_place=True),
    ],
    "Parameter": [
        Example("parameter_param { shape { dim: 2 dim: 3 } }"),
        Example("parameter_param { shape { dim: 2 dim: 3 dim: 2 dim: 2 } }"),
    ],
    "Pooling": [
        Example("pooling_param { kernel_size: 3 stride: 2 }", IMAGES),
        Example("pooling_param { kernel_size: 2 pad: 1 }", IMAGES, tops=2),
        Example("pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }", IMAGES),
        Example("pooling_param { pool: AVE global_pooling: true }", IMAGES),
        Example("pooling_param { kernel_size: 2 stride: 2 pad: 1 }", (VOLUME,)),
        Example("pooling_param { pool: AVE kernel_size_3d: [2, 1, 3] stride: 2 pad_3d: [1, 0, 1] }", (VOLUME,)),
        Example("pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }", ((2, 3, 6),)),
        Example("pooling_param { pool: STOCHASTIC kernel_size: 2 stride: 2 }", IMAGES, positive=True, smooth=False),
    ],
    "Power": [
        Example("power_param { scale: -3 shift: 2 }", (MATRIX,), in_place=True),
        Example("power_param { power: 2 scale: 0.5 shift: 1 }", IMAGES),
        Example("power_param { power: 3 }", IMAGES),
        Example("power_param { power: 0.5 shift: 0.1 }", IMAGES, positive=True),
        Example("power_param { power: 0 }", ((),), batched=()),
    ],
    "Python": [
        Example(
            'python_param { module: "tests.pycaffe.user_layers" layer: "EuclideanLoss" }',
            (IMAGE, IMAGE),
            empty_batch=False,
        ),
        Example(
            'python_param { module: "tests.pycaffe.user_layers" layer: "Times" param_str: "-3" }',
            IMAGES,
            in_place=True,
            empty_batch=False,
        ),
    ],
    "RNN": recurrent(1),
    "ReLU": [
        Example("", IMAGES, in_place=True),
        Example("relu_param { negative_slope: 0.1 }", IMAGES, in_place=True),
    ],
    "Reduction": [
        Example("", (MATRIX,)),
        Example("reduction_param { operation: ASUM axis: 1 coeff: 2 }", IMAGES),
        Example("reduction_param { operation: SUMSQ axis: -2 }", IMAGES),
        Example("reduction_param { operation: MEAN axis: 1 }", IMAGES),
        Example("reduction_param { operation: MEAN }", (MATRIX,)),
    ],
    "Reshape": [
        Example("reshape_param { shape { dim: 0 dim: -1 } }", IMAGES),
        Example("reshape_param { axis: 2 shape { dim: 1 dim: 5 dim: -1 } }", IMAGES),
        Example("reshape_param { axis: -1 num_axes: 0 shape { dim: 1 } }", (MATRIX,)),
    ],
    "SPP": [
        Example("spp_param { pyramid_height: 1 }", IMAGES),
        Example("spp_param { pyramid_height: 3 }", ((2, 2, 8, 7),)),
        Example("spp_param { pyramid_height: 2 pool: AVE }", IMAGES),
    ],
    "Scale": [
        Example('scale_param { bias_term: true filler { type: "uniform" } }', IMAGES, in_place=True),
        Example("scale_param { axis: 2 num_axes: -1 }", IMAGES, in_place=True),
        Example("scale_param { num_axes: 0 }", (MATRIX,), in_place=True),
        Example("scale_param { axis: 0 }", (IMAGE, (2, 4))),
        Example("scale_param { bias_term: true }", (MATRIX, (4,)), batched=(0,)),
    ],
    "Sigmoid": [Example("", IMAGES, in_place=True)],
    "SigmoidCrossEntropyLoss": [
        Example("", (MATRIX, MATRIX), labels={1: 2}),
        Example("loss_param { ignore_label: 0 normalization: VALID }", (IMAGE, IMAGE), labels={1: 2}),
    ],
    "Silence": [Example("", (IMAGE, MATRIX), tops=0)],
    "Slice": [
        Example("slice_param { slice_point: 1 }", IMAGES, tops=2),
        Example("slice_param { axis: -1 }", IMAGES, tops=3),
    ],
    "Softmax": [
        Example("", (MATRIX,), in_place=True),
        Example("", IMAGES, in_place=True),
        Example("softmax_param { axis: -1 }", IMAGES, in_place=True),
        Example("softmax_param { axis: 0 }", (MATRIX,)),
    ],
    "SoftmaxWithLoss": [
        Example("", (MATRIX, (3,)), labels={1: 4}),
        Example("loss_param { ignore_label: 2 normalization: FULL }", (IMAGE, (2, 1, 5, 3)), labels={1: 4}),
        Example("softmax_param { axis: -1 }", (IMAGE, (2, 4, 5)), labels={1: 3}),
        Example("loss_weight: 1 loss_weight: 0", (MATRIX, (3,)), tops=2, labels={1: 4}, smooth=False),
    ],
    "Split": [Example("", IMAGES, tops=2), Example("", (MATRIX,), tops=3)],
    "Swish": [Example("", IMAGES, in_place=True), Example("swish_param { beta: 0.5 }", (MATRIX,), in_place=True)],
    "TanH": [Example("", IMAGES, in_place=True)],
    "Threshold": [Example("threshold_param { threshold: 0.5 }", IMAGES, in_place=True, has_gradient=False)],
    "Tile": [
        Example("tile_param { tiles: 3 }", IMAGES),
        Example("tile_param { tiles: 2 axis: 0 }", (MATRIX,)),
        Example("tile_param { tiles: 2 axis: -1 }", IMAGES),
    ],
}

EXAMPLES |= EXAMPLES_OF_FORKS
for kind, examples in FORK_FIELDS.items():
    EXAMPLES[kind] += examples
