"""What the well-known forks of Caffe added.

A prototxt may use their fields: they stand in caffe.proto with numbers whose thousands name the fork. They are parsed;
a few work here as well, the others are told of in the log and have no effect. Their layer types, and values of enums
that would change the numbers, are not there; of these only the names are known, so that an error can say where a
prototxt comes from.
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

# By the thousands of a field's number; several forks have some fields, of which any may be meant.
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

# A type that several forks have is listed with the one that it comes from.
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

# What Caffe's own layers do as well.
_IN_OWN_LAYERS = {
    **dict.fromkeys(
        ("ConvolutionDepthwise", "DepthwiseConvolution"),
        "a Convolution whose num_output and group are the number of channels does the same with the same weights",
    ),
    "ReLU6": "a ReLU with a Clip (min: 0 max: 6) behind it does the same",
    "Axpy": "Flatten the first bottom, Scale (axis: 0) the second by that, and add the third in an Eltwise",
}

# Values of Caffe's enums that are refused, since passing over them would change what is computed.
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

# Fields that have their effect here too: large batches, and what an upgrade turns into a field of Caffe's.
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
    """What to write in place of a fork's layer type."""
    return _IN_OWN_LAYERS.get(type, PYTHON_INSTEAD)


def fork_of_enum_value(enum: str, value: str) -> str | None:
    """The fork that added `value` to the enum of that name, if it is one that is refused."""
    return next((fork for fork, enums in _ENUM_VALUES.items() if value in enums.get(enum, "").split()), None)


def forks_of_number(number: int) -> tuple[str, ...]:
    """The forks that a field or enum value with this number in caffe.proto may come from; none for Caffe's own."""
    return _FORKS.get(number // 1000, ())


def warn_of_fork_fields(message: Any, name: str) -> None:
    """Log, once for each file and fork, which fields of forks a message uses to no effect."""
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
    """The message as Caffe knows it: itself, or a copy if it has fields of forks."""
    if next(_fork_fields(message), None) is None:
        return message
    copy = type(message)()
    copy.CopyFrom(message)
    for inner, field, _ in list(_fork_fields(copy)):
        inner.ClearField(field.name)
    return copy


def _fork_fields(message: Any) -> Iterator[tuple[Any, Any, Any]]:
    """(message, field, value) of every field of a fork, or with an enum value of one."""
    for field, value in message.ListFields():
        if forks_of_number(field.number) or (field.enum_type and isinstance(value, int) and forks_of_number(value)):
            yield message, field, value
        elif field.message_type is not None and field.message_type.name != "BlobProto":
            for inner in (value,) if isinstance(value, Message) else value:
                yield from _fork_fields(inner)
