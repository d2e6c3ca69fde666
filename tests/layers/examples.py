"""One or more small configurations of every layer type, for the checks that hold for all of them."""

from dataclasses import dataclass, field


@dataclass
class Example:
    """A layer's own parameters as prototxt, the shapes of its bottoms, and what can be asked of it."""

    text: str = ""
    bottoms: tuple[tuple[int, ...], ...] = ()
    tops: int = 1
    labels: dict[int, int] = field(default_factory=dict)  # bottom that holds class numbers -> how many classes
    positive: bool = False  # its bottoms must be above 0
    in_place: bool = False
    has_gradient: bool = True
    smooth: bool = True  # its gradient is that of small steps
    batched: tuple[int, ...] | None = None  # bottoms whose first axis may change from pass to pass (None: all)
    phase: str = "TRAIN"


IMAGE = (2, 4, 5, 3)
IMAGES = (IMAGE,)
MATRIX = (3, 4)

# Types that read from elsewhere, with the tests that they have instead.
TESTED_ELSEWHERE = {"Data": "test_data_layer.py", "MemoryData": "test_memory_data.py"}

CONVOLUTION = 'weight_filler { type: "gaussian" std: 0.3 } bias_filler { type: "uniform" }'

EXAMPLES: dict[str, list[Example]] = {
    "Accuracy": [Example("", (MATRIX, (3,)), labels={1: 4}, has_gradient=False)],
    "BatchNorm": [
        Example("", IMAGES, in_place=True),
        Example("", ((6, 3),), in_place=True),
        Example("", ((3, 2, 2, 2, 2),), in_place=True),
        Example("", ((7,),)),
        Example("batch_norm_param { use_global_stats: true }", IMAGES, in_place=True),
        Example("", IMAGES, in_place=True, phase="TEST"),
    ],
    "Bias": [
        Example('bias_param { filler { type: "uniform" } }', IMAGES, in_place=True),
        Example("bias_param { axis: 2 num_axes: -1 }", IMAGES, in_place=True),
        Example("bias_param { num_axes: 0 }", (MATRIX,), in_place=True),
        Example("bias_param { axis: 1 }", (IMAGE, (4, 5)), batched=(0,)),
    ],
    "Concat": [
        Example("", (IMAGE, (2, 1, 5, 3), IMAGE)),
        Example("concat_param { axis: 0 }", (MATRIX, MATRIX)),
        Example("concat_param { axis: -1 }", (IMAGE, (2, 4, 5, 1))),
    ],
    "Convolution": [
        Example(f"convolution_param {{ num_output: 3 kernel_size: 3 {CONVOLUTION} }}", IMAGES),
        Example(
            f"convolution_param {{ num_output: 6 group: 2 kernel_size: 2 stride: 2 pad: 1 {CONVOLUTION} }}",
            (IMAGE, IMAGE),
            tops=2,
        ),
        Example(f"convolution_param {{ num_output: 2 kernel_size: 1 bias_term: false {CONVOLUTION} }}", IMAGES),
        Example(f"convolution_param {{ num_output: 2 kernel_size: 2 dilation: 2 pad: 1 {CONVOLUTION} }}", IMAGES),
        Example(f"convolution_param {{ num_output: 2 kernel_size: 2 {CONVOLUTION} }}", ((2, 2, 3, 2, 3),)),
    ],
    "Dropout": [
        Example("dropout_param { dropout_ratio: 0.3 }", IMAGES, in_place=True),
        Example("", IMAGES, in_place=True, phase="TEST"),
    ],
    "DummyData": [Example('dummy_data_param { shape { dim: 2 dim: 3 } data_filler { type: "uniform" } }')],
    "Eltwise": [
        Example("", (IMAGE, IMAGE)),
        Example("eltwise_param { coeff: 1 coeff: -0.5 coeff: 2 }", (MATRIX, MATRIX, MATRIX)),
        Example("eltwise_param { operation: PROD }", (IMAGE, IMAGE)),
        Example("eltwise_param { operation: PROD }", (MATRIX, MATRIX, MATRIX)),
        Example("eltwise_param { operation: PROD stable_prod_grad: false }", (MATRIX, MATRIX), positive=True),
        Example("eltwise_param { operation: MAX }", ((2, 3, 2, 2),) * 3),
    ],
    "EuclideanLoss": [Example("", (IMAGE, IMAGE)), Example("", ((2, 3, 2, 2), (2, 12)))],
    "Flatten": [Example("", IMAGES), Example("flatten_param { axis: 1 end_axis: 2 }", ((2, 3, 2, 3, 2),))],
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
    "Pooling": [
        Example("pooling_param { kernel_size: 3 stride: 2 }", IMAGES),
        Example("pooling_param { kernel_size: 2 pad: 1 }", IMAGES, tops=2),
        Example("pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }", IMAGES),
        Example("pooling_param { pool: AVE global_pooling: true }", IMAGES),
        Example("pooling_param { pool: STOCHASTIC kernel_size: 2 stride: 2 }", IMAGES, positive=True, smooth=False),
    ],
    "Power": [
        Example("power_param { scale: -3 shift: 2 }", (MATRIX,), in_place=True),
        Example("power_param { power: 2 scale: 0.5 shift: 1 }", IMAGES),
        Example("power_param { power: 3 }", IMAGES),
        Example("power_param { power: 0.5 shift: 0.1 }", IMAGES, positive=True),
        Example("power_param { power: 0 }", ((),), batched=()),
    ],
    "ReLU": [
        Example("", IMAGES, in_place=True),
        Example("relu_param { negative_slope: 0.1 }", IMAGES, in_place=True),
    ],
    "Reduction": [
        Example("", (MATRIX,)),
        Example("reduction_param { operation: ASUM axis: 1 coeff: 2 }", IMAGES),
        Example("reduction_param { operation: SUMSQ axis: -2 }", IMAGES),
        Example("reduction_param { operation: MEAN axis: 1 }", IMAGES),
    ],
    "Reshape": [
        Example("reshape_param { shape { dim: 0 dim: -1 } }", IMAGES),
        Example("reshape_param { axis: 2 shape { dim: 1 dim: 5 dim: -1 } }", IMAGES),
        Example("reshape_param { axis: -1 num_axes: 0 shape { dim: 1 } }", (MATRIX,)),
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
    ],
    "SoftmaxWithLoss": [
        Example("", (MATRIX, (3,)), labels={1: 4}),
        Example("loss_param { ignore_label: 2 normalization: FULL }", (IMAGE, (2, 1, 5, 3)), labels={1: 4}),
        Example("softmax_param { axis: -1 }", (IMAGE, (2, 4, 5)), labels={1: 3}),
    ],
    "Split": [Example("", IMAGES, tops=2), Example("", (MATRIX,), tops=3)],
    "TanH": [Example("", IMAGES, in_place=True)],
}
