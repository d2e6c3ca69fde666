"""Fields, layer types and enum values of well-known forks of Caffe.

caffe.proto has the forks' fields, with numbers whose thousands tell the fork. A few work; the log names the others,
which have no effect. Of layer types, and of enum values that would change results, only the names are known, so that
an error can name the fork.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message

from fcaffe import log

_NVIDIA = "NVIDIA's fork (NVIDIA/caffe)"
_INTEL = "Intel's fork (intel/caffe)"
_SSD = "the SSD fork (weiliu89/caffe)"
_FAST_RCNN = "the Fast R-CNN fork (rbgirshick/caffe-fast-rcnn)"
_RFCN = "the R-FCN fork (daijifeng001/caffe-rfcn)"
_SEGNET = "the SegNet fork (alexgkendall/caffe-segnet)"
_PSPNET = "the DeepLab and PSPNet forks (hszhao/PSPNet)"
_TSN = "the TSN fork (yjxiong/caffe)"
_CRF_RNN = "the CRF-RNN fork (torrvision/caffe)"
_FACE = "the caffe-face fork (ydwen/caffe-face)"
_SPHEREFACE = "the SphereFace fork (wy1iu/sphereface)"
_L_SOFTMAX = "the L-Softmax fork (wy1iu/LargeMargin_Softmax_Loss)"
_RISTRETTO = "the Ristretto fork (pmgysel/caffe)"
_DEEPLAB = "the first DeepLab fork (TheLegendAli/DeepLab-Context)"
_SHUFFLENET = "the ShuffleNet layer (farmingyard/ShuffleNet)"
_DEPTHWISE = "the depthwise layer of ShuffleNet v2 (anlongstory/ShuffleNet_V2-caffe)"
_YOLO = "the MobileNet-YOLO fork (eric612/MobileNet-YOLO)"
_MSCNN = "the MS-CNN fork (zhaoweicai/mscnn)"
_SENET = "the SENet fork (hujie-frank/SENet)"
_DECONVNET = "the DeconvNet fork (HyeonwooNoh/caffe)"
_SPP_NET = "the SPP-net fork (dsisds/caffe-SPPNet)"
_CEIL_MODE = "a proposal that Caffe did not take (BVLC/caffe#3057; shicai/DenseNet-Caffe)"

# By the thousands of a field's number. Some fields exist in several forks.
_FORKS: dict[int, tuple[str, ...]] = {
    101: (_NVIDIA,),
    102: (_INTEL,),
    103: (_SSD,),
    104: (_FAST_RCNN,),
    105: (_RFCN,),
    106: (_SEGNET,),
    107: (_PSPNET,),
    108: (_TSN,),
    109: (_CRF_RNN,),
    110: (_FACE,),
    111: (_SPHEREFACE,),
    112: (_L_SOFTMAX,),
    113: (_RISTRETTO,),
    114: (_DEEPLAB,),
    115: (_SHUFFLENET,),
    116: (_NVIDIA, _INTEL),
    117: (_SEGNET, _PSPNET, _TSN),
    118: (_YOLO,),
    119: (_MSCNN,),
    120: (_CEIL_MODE,),
}

# A type of several forks is listed with the first.
_LAYER_TYPES = {
    _SSD: "AnnotatedData DetectionEvaluate DetectionOutput MultiBoxLoss Normalize Permute PriorBox VideoData",
    _NVIDIA: "DetectNetTransformation L1Loss TRT",
    _INTEL: "BoxData EvalDetection MKLBatchNorm MnActivation RegionLoss Reorg SpatialDropout",
    _FAST_RCNN: "ROIPooling SmoothL1Loss",
    _RFCN: "BoxAnnotatorOHEM PSROIPooling SmoothL1LossOHEM SoftmaxWithLossOHEM",
    _SEGNET: "BN DenseImageData Upsample",
    _PSPNET: "AdaptiveBiasChannel BiasChannel DenseCRF DomainTransform DomainTransformForwardOnly ImageSegData Interp"
    " MatRead MatWrite SegAccuracy SpatialProduct UniqueLabel",
    _TSN: "BatchReduction Gather Scatter SegData SyncBN",
    _CRF_RNN: "MultiStageMeanfield",
    _FACE: "CenterLoss",
    _SPHEREFACE: "MarginInnerProduct",
    _L_SOFTMAX: "LargeMarginInnerProduct",
    _RISTRETTO: "ConvolutionRistretto DeconvolutionRistretto FcRistretto LRNRistretto",
    _SHUFFLENET: "ShuffleChannel",
    _DEPTHWISE: "ConvolutionDepthwise",
    _YOLO: "AssistedExcitation DepthwiseConvolution GaussianYolov3 LaneData ReLU6 SegmentationEvaluate"
    " YoloDetectionOutput YoloSeg Yolov3 Yolov3DetectionOutput",
    _MSCNN: "BboxAccuracy BoxOutput DecodeBBox DetectionAccuracy DetectionLoss ImageGtData ProposalTarget ROIAlign",
    _SENET: "Axpy",
}

PYTHON_INSTEAD = 'a layer of type "Python" can do its work'

# Replacements by Caffe's own layers.
_IN_OWN_LAYERS = {
    **dict.fromkeys(
        ("ConvolutionDepthwise", "DepthwiseConvolution"),
        "a Convolution whose num_output and group are the number of channels does the same with the same weights",
    ),
    "ReLU6": "a ReLU with a Clip (min: 0 max: 6) behind it does the same",
    "Axpy": "Flatten the first bottom, Scale (axis: 0) the second by that, and add the third in an Eltwise",
}

# Enum values that are refused, since ignoring them would change results.
_ENUM_VALUES = {
    _NVIDIA: {"SolverType": "SAG"},
    _RFCN: {"NormalizationMode": "PRE_FIXED"},
    _TSN: {"EltwiseOp": "STOCHASTIC_SUM", "ReductionOp": "TOPK"},
    _CRF_RNN: {"LayerType": "CROP"},
    _DEEPLAB: {
        "LayerType": "ADAPTIVE_BIAS_CHANNEL BIAS_CHANNEL CENSOR_LABEL CHANNEL_AGGREGATOR DENSE_CRF DOMINANT_CHANNEL"
        " GAIN_CHANNEL HISTOGRAM IGNORE_OVERLAY IMAGE_SEG_DATA INTERP MAT_READ MAT_WRITE ONEHOT PADDING RELATIVE_ERROR"
        " SEG_ACCURACY UNIQUE_LABEL"
    },
    _DECONVNET: {
        "LayerType": "BIN_ACCURACY BN DROPOUT_CHANNEL ELTWISE_ACCURACY RED_ACCURACY RED_SOFTMAX_LOSS SELECT_SEG_BINARY"
        " UNPOOLING WINDOW_CLS_DATA WINDOW_INST_SEG_DATA WINDOW_SEG_BINARY WINDOW_SEG_DATA"
    },
    _SPP_NET: {"LayerType": "SPATIAL_PYRAMID_POOLING"},
}

# Fields that work: those for large batches, and those that upgrade_forks.py replaces.
_WORKING = {
    "ConvolutionParameter": "hole hole_h hole_w dilation_h dilation_w",
    "PoolingParameter": "ceil_mode",
    "SolverParameter": "rampup_interval rampup_lr larc larc_policy larc_eta"
    " warmup_iter warmup_start_lr local_lr_auto local_gw_ratio",
}

_told: set[tuple[str, str]] = set()  # file and fork


def fork_of_layer_type(type: str) -> str | None:
    """The fork that a layer type comes from, such as "the SSD fork (weiliu89/caffe)"."""
    return next((fork for fork, types in _LAYER_TYPES.items() if type in types.split()), None)


def instead_of_layer_type(type: str) -> str:
    """What to write instead of a fork's layer type."""
    return _IN_OWN_LAYERS.get(type, PYTHON_INSTEAD)


def fork_of_enum_value(enum: str, value: str) -> str | None:
    """The fork that added `value` to an enum, if the value is refused."""
    return next((fork for fork, enums in _ENUM_VALUES.items() if value in enums.get(enum, "").split()), None)


def forks_of_number(number: int) -> tuple[str, ...]:
    """The forks that have a field or enum value of this number in caffe.proto; none for Caffe's own."""
    return _FORKS.get(number // 1000, ())


def warn_of_fork_fields(message: Any, name: str) -> None:
    """Log once for each file and fork the fields of forks in a message that have no effect."""
    used: dict[str, tuple[str, ...]] = {}
    for inner, field, value in _fork_fields(message):
        if field.name in _WORKING.get(inner.DESCRIPTOR.name, "").split():
            continue
        used[f"{inner.DESCRIPTOR.name}.{field.name}"] = forks_of_number(field.number) or forks_of_number(value)
    certain = {forks[0] for forks in used.values() if len(forks) == 1}
    fields: dict[str, list[str]] = {}
    for field_name, forks in used.items():
        fork = next((fork for fork in forks if fork in certain), " or ".join(forks))
        fields.setdefault(fork, []).append(field_name)
    for fork, names in fields.items():
        if (name, fork) not in _told:
            _told.add((name, fork))
            log.warning(f"{name} was written for {fork}; without effect here: {', '.join(names)}")


def without_fork_fields(message: Any) -> Any:
    """The message without fields of forks: itself, or a copy if it has some."""
    if next(_fork_fields(message), None) is None:
        return message
    copy = type(message)()
    copy.CopyFrom(message)
    for inner, field, _ in list(_fork_fields(copy)):
        inner.ClearField(field.name)
    return copy


def _fork_fields(message: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yields (message, field, value) for every field of a fork, and every field with an enum value of one."""
    for field, value in message.ListFields():
        if forks_of_number(field.number) or (field.enum_type and isinstance(value, int) and forks_of_number(value)):
            yield message, field, value
        elif field.message_type is not None and field.message_type.name != "BlobProto":
            for inner in (value,) if isinstance(value, Message) else value:
                yield from _fork_fields(inner)
