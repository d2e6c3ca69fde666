"""Examples of the layer types of Caffe's forks (see examples.py)."""

from tests.layers.example import Example

IMAGE = (2, 4, 5, 3)
IMAGES = (IMAGE,)
MATRIX = (3, 4)
CONVOLUTION = 'weight_filler { type: "gaussian" std: 0.3 } bias_filler { type: "uniform" }'

# Shapes, normalisation, resizing, faces.
MARGIN = 'margin_inner_product_param { num_output: 3 gamma: 0.1 weight_filler { type: "xavier" }'

PLAIN: dict[str, list[Example]] = {
    "Axpy": [Example("", ((2, 4), IMAGE, IMAGE)), Example("", ((2, 4, 1, 1), IMAGE, IMAGE))],
    "BN": [
        Example("", IMAGES, in_place=True),
        Example("bn_param { momentum: 0.7 }", ((6, 3),), in_place=True),
        Example("bn_param { frozen: true }", IMAGES, in_place=True, smooth=False),
        Example("", IMAGES, in_place=True, phase="TEST", smooth=False),
        Example("bn_param { bn_mode: LEARN }", IMAGES, in_place=True),
        Example("bn_param { bn_mode: LEARN }", ((6, 3),), tops=3, smooth=False),
        Example("bn_param { bn_mode: INFERENCE }", IMAGES),
    ],
    "CenterLoss": [
        Example("loss_weight: 1 center_loss_param { num_output: 3 }", (MATRIX, (3,)), labels={1: 3}, smooth=False),
    ],
    "ConvolutionDepthwise": [
        Example(f"convolution_param {{ kernel_size: 3 stride: 2 pad: 1 {CONVOLUTION} }}", IMAGES),
    ],
    "DeephiResize": [
        Example("deephi_resize_param { scale_h: 2 scale_w: 1.5 }", IMAGES),
        Example("deephi_resize_param { new_height: 9 new_width: 2 resize_type: BILINEAR }", IMAGES),
    ],
    "DepthwiseConvolution": [
        Example(f"convolution_param {{ num_output: 4 group: 4 kernel_size: 3 {CONVOLUTION} }}", IMAGES),
    ],
    "Flip": [Example("flip_param { flip_height: true }", IMAGES)],
    "Interp": [
        Example("interp_param { zoom_factor: 3 }", IMAGES),
        Example("interp_param { height: 3 width: 1 pad_beg: -1 }", IMAGES),
    ],
    "L1Loss": [Example("", (IMAGE, IMAGE)), Example("", ((2, 3, 2, 2), (2, 12)))],
    "MarginInnerProduct": [
        Example(f"{MARGIN} }}", (MATRIX, (3,)), labels={1: 3}, tops=2, smooth=False, batched=()),
        Example(f"{MARGIN} type: QUADRUPLE }}", (IMAGE, (2,)), labels={1: 3}, tops=2, smooth=False, batched=()),
    ],
    "MatMul": [
        Example("", ((2, 3, 4), (2, 4, 5))),
        Example("matmul_param { transpose_b: true }", ((2, 3, 4, 5), (2, 3, 2, 5))),
        Example("matmul_param { transpose_a: true }", ((2, 1, 4, 3), (3, 4, 5)), batched=(0,)),
        Example("matmul_param { transpose_a: true transpose_b: true }", ((4, 3), (1, 5, 4)), batched=(1,)),
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
    "TripletLoss": [
        Example("triplet_loss_param { margin: 2 }", (MATRIX,) * 3),
        Example("triplet_loss_param { margin: 2 }", (*(MATRIX,) * 3, (3,)), labels={3: 3}),
    ],
    "Upsample": [
        Example("", ((2, 3, 2, 3),) * 2, labels={1: 24}, constants=(1,)),
        Example("upsample_param { scale: 2 }", IMAGES),
    ],
}

# SSD.
PRIORS = [0, 0, 0.4, 0.4, 0.3, 0.3, 0.7, 0.7, 0.6, 0.5, 0.9, 0.9, 0.1, 0.6, 0.5, 1, *[0.1, 0.1, 0.2, 0.2] * 4]
TRUTH = [0, 1, 0, 0.05, 0, 0.35, 0.45, 0, 1, 2, 0, 0.55, 0.5, 0.9, 0.8, 0, 1, 1, 1, 0.2, 0.2, 0.6, 0.6, 1]


def multibox_loss(fields: str, classes: int = 1) -> Example:
    """An example with 4 priors, 3 classes, 2 images and 3 objects; `classes` is the number of kinds of boxes."""
    return Example(
        f"multibox_loss_param {{ num_classes: 3 code_type: CENTER_SIZE {fields} }}",
        ((2, 16 * classes), (2, 12), (1, 2, 16), (1, 1, 3, 8)),
        values={2: PRIORS, 3: TRUTH},
        labels={3: 3},
        constants=(2,),
        batched=(0, 1),
        empty_batch=False,
    )


BOXES: dict[str, list[Example]] = {
    "PriorBox": [
        Example(
            "prior_box_param { min_size: 4 max_size: 9 aspect_ratio: 2 }",
            ((2, 3, 2, 3), (2, 3, 9, 12)),
            constants=(0, 1),
            batched=(),
        ),
    ],
    "DetectionOutput": [
        Example(
            f"detection_output_param {{ num_classes: 3 code_type: {code_type} confidence_threshold: {least} }}",
            ((2, 16), (2, 12), (1, 2, 16)),
            values={2: PRIORS},
            has_gradient=False,
            batched=(0, 1),
        )
        for code_type, least in (("CENTER_SIZE", 0), ("CORNER", 9))
    ],
    "DetectionEvaluate": [
        Example(
            "detection_evaluate_param { num_classes: 3 }",
            ((1, 1, 2, 7), (1, 1, 3, 8)),
            values={0: [0, 1, 0.9, 0, 0, 0.4, 0.4, 0, 2, 0.8, 0, 0, 0.4, 0.4], 1: TRUTH},
            has_gradient=False,
            batched=(),
        ),
    ],
    "MultiBoxLoss": [
        multibox_loss("neg_pos_ratio: 0.5"),
        multibox_loss("mining_type: HARD_EXAMPLE sample_size: 2 loc_loss_type: L2 loc_weight: 0.3"),
        multibox_loss("mining_type: NONE share_location: false conf_loss_type: LOGISTIC", classes=3),
    ],
}

# Losses, and sequences: scores (6, 2, 4) with the indicators of sequences of 5 and 6 steps.
STEPS, MEAN = (6, 2, 4), "loss_param { normalization: BATCH_SIZE }"  # which makes the gradient of CTC that of its top
MARKED = {1: [0, 0, *[1] * 8, 0, 1], 2: [0, 1, 0, 2, -1, 1]}
COUNTED = {1: [6, 4], 2: [3, 2], 3: [0, 1, 0, 2, 2, 1]}
LABELLED, WEIGHED = {"labels": {1: 4}}, {"labels": {1: 4, 2: 3}, "values": {2: [1, 0.5, 2.5]}}
COSINES = {**LABELLED, "values": {0: [0.3, -0.5, 0.8, 0.1, -0.9, 0.6]}}
LOSSES: dict[str, list[Example]] = {
    "CTCLoss": [Example(MEAN, (STEPS, (6, 2), (3, 2)), values=MARKED, labels={1: 2, 2: 4}, batched=())],
    "CtcLoss": [Example(MEAN, (STEPS, (2, 3)), values={1: [1, 1, 0, 2, 3, -1]}, labels={1: 4}, batched=(0,))],
    "WarpCTCLoss": [
        Example(MEAN, (STEPS, (2,), (2,), (3, 2)), values=COUNTED, labels={1: 4, 2: 4, 3: 4}, batched=()),
        Example("", (STEPS, (2, 3)), labels={1: 4}, batched=(0,), smooth=False),
    ],
    "CTCGreedyDecoder": [
        Example("", (STEPS,), has_gradient=False, batched=()),
        Example("", (STEPS, (2, 3)), labels={1: 4}, has_gradient=False, batched=()),
        Example("", (STEPS, (6, 2), (3, 2)), 2, values=MARKED, labels={1: 2, 2: 4}, has_gradient=False, batched=()),
    ],
    "FocalLoss": [
        Example("loss_param { ignore_label: 2 }", ((4, 3, 2, 1), (4, 1, 2, 1)), labels={1: 3}),
        Example("loss_param { ignore_label: 2 normalize: true }", ((4, 3), (4, 3)), labels={1: 3}),
    ],
    "SoftmaxFocalLoss": [
        Example("focal_loss_param { gamma: 0.5 alpha: 1 type: ONEADDP }", (MATRIX, (3,)), **LABELLED),
    ],
    "SigmoidFocalLoss": [Example("focal_loss_param { gamma: 1.5 }", (IMAGE, IMAGE), labels={1: 2})],
    "DiceCoefLoss": [Example("", (IMAGE, IMAGE)), Example("", (IMAGE, (2, 1, 5, 3)), **LABELLED)],
    "CombinedMargin": [Example("combined_margin_param { m1: 1 m2: 0.3 m3: 0.2 }", (MATRIX, (3,)), **COSINES)],
    "CosinAddm": [Example("", (MATRIX, (3,)), **COSINES)],
    "LabelSpecificAdd": [Example("label_specific_add_param { bias: -0.35 }", (MATRIX, (3,)), **LABELLED)],
    "LabelSpecificMargin": [
        Example("label_specific_margin_param { margin_base: 30 gamma: 0 }", (MATRIX, (3,)), **COSINES),
    ],
}

# Regions of interest, YOLO.
ROIS = [0, -2, 1, 9, 6, 1, 3, 0, 14, 13, 0, 5, 5, 5, 5, 1, 20, 2, 30, 9]  # over images of 14 x 14 pixels
MAPS = (2, 4, 7, 7)
POOLED = "pooled_h: 2 pooled_w: 3 spatial_scale: 0.5"

BOXES_OF_IMAGE = [1, 0.3, 0.4, 0.5, 0.2, 0, 0.8, 0.7, 0.3, 0.6, *[0] * 5]  # class, x, y, w, h of three rows
ANCHORS = "num: 2 biases: 0.7 biases: 0.5 biases: 1.2 biases: 1.4"
PIXELS = "biases: 10 biases: 14 biases: 40 biases: 30"
OBJECTS = [0] * 4 + [0, 1, 0, 1] + [0, 1, 0, 0] + [0] * 4 + [0.6, 0.2, 0.3, 0.4] + [0] * 4 + [0.7, 0.9, 0.5, 0.3]

FILLERS = 'weight_filler { type: "uniform" min: -1 } bias_filler { type: "uniform" min: -1 }'


def of_regions(text: str, regions: tuple[int, ...] = (4, 5)) -> Example:
    return Example(text, (MAPS, regions), values={1: ROIS}, constants=(1,), batched=(1,))


REGIONS: dict[str, list[Example]] = {
    "ROIPooling": [
        of_regions(f"roi_pooling_param {{ {POOLED} }}"),
        of_regions(f"roi_pooling_param {{ {POOLED} pad_ratio: 0.25 }}", (3, 5, 1, 1)),
    ],
    "PSROIPooling": [of_regions("psroi_pooling_param { output_dim: 1 group_size: 2 spatial_scale: 0.5 }")],
    "ROIAlign": [
        of_regions(f"roi_pooling_param {{ {POOLED} pad_ratio: 0.25 }}"),
        of_regions(f"roi_align_param {{ {POOLED} }}"),
        of_regions(f"roi_align_param {{ {POOLED} sampling_ratio: 2 }}"),
    ],
    "SmoothL1Loss": [
        Example("loss_weight: 1", ((3, 4), (3, 4))),
        Example("loss_weight: 1", ((3, 4), (3, 4), (3, 4)), values={2: [1, 0]}, constants=(2,)),
        Example("loss_weight: 2 smooth_l1_loss_param { sigma: 1.5 }", ((2, 2, 2, 2),) * 4, constants=(2, 3)),
    ],
    "SmoothL1LossOHEM": [
        Example("loss_weight: 1 loss_param { normalization: PRE_FIXED pre_fixed_normalizer: 3 }", ((3, 4), (3, 4))),
        Example("loss_weight: 1 loss_weight: 0", ((2, 3, 2, 2), (2, 3, 2, 2)), tops=2, smooth=False),
    ],
    "SoftmaxWithLossOHEM": [
        Example("loss_param { ignore_label: 2 }", ((4, 3, 2, 1), (4, 1, 2, 1)), labels={1: 3}),
        Example(
            "loss_weight: 1 loss_weight: 0 loss_weight: 0 loss_param { normalization: PRE_FIXED }",
            ((4, 3), (4,)),
            tops=3,
            labels={1: 3},
            smooth=False,
        ),
    ],
    "Proposal": [
        Example(
            "proposal_param { base_size: 4 feat_stride: 4 min_size: 2 ratio: 1 ratio: 2 scale: 1 post_nms_topn: 9 }",
            ((2, 4, 3, 4), (2, 8, 3, 4), (2, 3)),
            tops=2,
            values={2: [12, 16, 1]},
            constants=(0, 1, 2),
        ),
    ],
    "RegionLoss": [
        Example(
            f"region_loss_param {{ side: 2 num_class: 3 {ANCHORS} }}",
            ((2, 16, 2, 2), (2, 15)),
            labels={1: 3},
            values={1: BOXES_OF_IMAGE},
            smooth=False,
        ),
    ],
    "Yolov3": [
        Example(
            f"yolov3_param {{ num_class: 2 num: 2 {PIXELS} mask: 0 mask: 1 anchors_scale: 16 {more} }}",
            ((2, 14, 3, 2), (2, 15)),
            labels={1: 3},
            values={1: BOXES_OF_IMAGE},
            smooth=False,
        )
        for more in ("", "iou_loss: CIOU", "use_logic_gradient: true use_focal_loss: true")
    ],
    "Yolov3DetectionOutput": [
        Example(
            f"yolov3_detection_output_param {{ num_classes: 2 num_box: 2 mask_group_num: 1 {PIXELS} mask: 1 mask: 0 "
            "anchors_scale: 16 }",
            ((2, 14, 3, 2),),
            has_gradient=False,
        ),
    ],
    "DetectionLoss": [
        Example(
            "detection_loss_param { side: 2 num_class: 2 constriant: true }",
            ((2, 48), (2, 28)),
            labels={1: 2},
            values={1: OBJECTS},
            smooth=False,
        ),
    ],
    "EvalDetection": [
        Example(
            f"eval_detection_param {{ side: 2 num_class: 2 {more} }}",
            ((2, 48), (2, 28), *third),
            values={1: OBJECTS},
            has_gradient=False,
        )
        for more, third in (("", ()), ("nms: 0.3 threshold: 0", ()), ("", ((2, 3, 4, 4),)))
    ],
    "Lstm": [
        Example(f"lstm_param {{ num_output: 3 batch_size: 2 {FILLERS} }}", ((6, 2, 2),), batched=()),
        Example(f"lstm_param {{ num_output: 3 {FILLERS} }}", ((4, 2),)),
        Example(f"lstm_param {{ num_output: 3 {FILLERS} }}", ((3, 2, 4),), batched=()),
        Example(
            f"lstm_param {{ num_output: 2 clipping_threshold: 0.01 {FILLERS} }}",
            ((3, 4), (3,)),
            labels={1: 2},
            batched=(),
            smooth=False,
        ),
    ],
    "BoxAnnotatorOHEM": [
        Example(
            "box_annotator_ohem_param { roi_per_img: 1 }",
            ((5, 5), (5,), (5,), (5, 8)),
            tops=2,
            values={0: ROIS},
            has_gradient=False,
        ),
    ],
}

# Fields of forks in layers of BVLC Caffe.
NORMALIZED = "inner_product_param { num_output: 3 bias_term: false normalize: true"
FORK_FIELDS: dict[str, list[Example]] = {
    "BatchNorm": [
        Example("batch_norm_param { scale_bias: true }", IMAGES, in_place=True),
        Example("batch_norm_param { scale_bias: true use_global_stats: true }", IMAGES, in_place=True),
    ],
    "Dropout": [
        Example("dropout_param { scale_train: false }", IMAGES, in_place=True),
        Example("dropout_param { scale_train: false }", IMAGES, in_place=True, phase="TEST"),
        Example("dropout_param { sample_weights_test: true }", IMAGES, in_place=True, phase="TEST"),
    ],
    "Pooling": [
        Example("pooling_param { pool: AVE kernel_size: 3 pad: 1 stride: 2 avg_include_pad: false }", IMAGES),
    ],
    "InnerProduct": [
        Example(f"{NORMALIZED} weight_filler {{ value: 0.3 }} }}", (MATRIX,), smooth=False, batched=()),
    ],
    "SigmoidCrossEntropyLoss": [
        Example("", (MATRIX,) * 3, **WEIGHED),
        Example("loss_param { normalization: VALID ignore_label: 2 }", (MATRIX, MATRIX, (3,)), **WEIGHED),
    ],
    "SoftmaxWithLoss": [
        Example("", (IMAGE, IMAGE), labels={1: 4}, values={1: [0.5, 0, 0.3, 0.2]}),
        Example("", (IMAGE, (2, 1, 5, 3), (2, 1, 5, 3)), **WEIGHED),
        Example("loss_param { ignore_label: 2 }", (IMAGE, (2, 1, 5, 3), (2,)), **WEIGHED),
        Example(
            "loss_param { weight_by_label_freqs: true class_weighting: 2 class_weighting: 0.5 class_weighting: 1 }",
            ((4, 3, 2, 2), (4, 1, 2, 2)),
            labels={1: 3},
        ),
    ],
}

EXAMPLES_OF_FORKS = PLAIN | BOXES | LOSSES | REGIONS
