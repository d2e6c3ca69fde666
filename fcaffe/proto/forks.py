"""Fields of well-known forks of Caffe.

caffe.proto has them, with numbers whose thousands name the fork. The log names those that have no effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message

from fcaffe import log

NVIDIA = "NVIDIA's fork (NVIDIA/caffe)"
INTEL = "Intel's fork (intel/caffe)"
SSD = "the SSD fork (weiliu89/caffe)"
FAST_RCNN = "the Fast R-CNN fork (rbgirshick/caffe-fast-rcnn)"
RFCN = "the R-FCN fork (daijifeng001/caffe-rfcn)"
SEGNET = "the SegNet fork (alexgkendall/caffe-segnet)"
PSPNET = "the DeepLab and PSPNet forks (hszhao/PSPNet)"
TSN = "the TSN fork (yjxiong/caffe)"
CRF_RNN = "the CRF-RNN fork (torrvision/caffe)"
FACE = "the caffe-face fork (ydwen/caffe-face)"
SPHEREFACE = "the SphereFace fork (wy1iu/sphereface)"
L_SOFTMAX = "the L-Softmax fork (wy1iu/LargeMargin_Softmax_Loss)"
RISTRETTO = "the Ristretto fork (pmgysel/caffe)"
DEEPLAB = "the first DeepLab fork (TheLegendAli/DeepLab-Context)"
SHUFFLENET = "the ShuffleNet layer (farmingyard/ShuffleNet)"
DEPTHWISE = "the depthwise layer of ShuffleNet v2 (anlongstory/ShuffleNet_V2-caffe)"
YOLO = "the MobileNet-YOLO fork (eric612/MobileNet-YOLO)"
MSCNN = "the MS-CNN fork (zhaoweicai/mscnn)"
SENET = "the SENet fork (hujie-frank/SENet)"
PVANET = "the PVANet fork (sanghoon/pva-faster-rcnn)"
LSTM = "the caffe-lstm fork (junhyukoh/caffe-lstm)"
OCR = "the OCR fork (senlinuc/caffe_ocr)"
WINDOWS = "the caffe-windows fork (happynear/caffe-windows)"
MASK_RCNN = "the Mask R-CNN fork (jasjeetIM/Mask-RCNN)"
YOLO_V1 = "the YOLO fork (yeahkun/caffe-yolo)"
YOLO_V2 = "the YOLOv2 fork (gklz1982/caffe-yolov2)"
SYNOPSYS = "Synopsys' fork (foss-for-synopsys-dwc-arc-processors/synopsys-caffe)"
WARP_CTC = "the CTC fork (xmfbit/warpctc-caffe)"
FOCAL = "the focal loss layers (zimenglan-sysu-512/Focal-Loss, liuyuisanai/Focal-Loss)"
ARCFACE = "the ArcFace layers (xialuxi/arcface-caffe)"
DICE = "the Dice loss layers (HolmesShuan/A-Variation-of-Dice-coefficient-Loss-Caffe-Layer, jolibrain/caffe)"
C3D = "the C3D fork (facebookarchive/C3D)"
VIDEO = "the video-caffe fork (chuckcho/video-caffe)"
XILINX = "the Vitis AI fork (Xilinx/caffe-xilinx)"
LABELS = "forks with several labels an image"
CEIL_MODE = "a proposal that Caffe did not take (BVLC/caffe#3057; shicai/DenseNet-Caffe)"

# By the thousands of a field's number. Some fields exist in several forks.
_FORKS: dict[int, tuple[str, ...]] = {
    101: (NVIDIA,),
    102: (INTEL,),
    103: (SSD,),
    104: (FAST_RCNN,),
    105: (RFCN,),
    106: (SEGNET,),
    107: (PSPNET,),
    108: (TSN,),
    109: (CRF_RNN,),
    110: (FACE,),
    111: (SPHEREFACE,),
    112: (L_SOFTMAX,),
    113: (RISTRETTO,),
    114: (DEEPLAB,),
    115: (SHUFFLENET,),
    116: (NVIDIA, INTEL),
    117: (SEGNET, PSPNET, TSN),
    118: (YOLO,),
    119: (MSCNN,),
    120: (CEIL_MODE,),
    121: (PVANET,),
    122: (LSTM,),
    123: (OCR,),
    124: (WINDOWS,),
    125: (MASK_RCNN,),
    126: (WARP_CTC,),
    127: (FOCAL,),
    128: (ARCFACE,),
    129: (DICE,),
    131: (C3D,),
    132: (VIDEO,),
    133: (LABELS,),
    134: (XILINX,),
    140: (SYNOPSYS,),
}

PYTHON_INSTEAD = 'a layer of type "Python" can do its work'

# Fields of convolutions and poolings that give the depth of windows over three axes, or one number for each axis.
OF_DEPTH = ("kernel_depth", "temporal_stride", "temporal_pad", "kernel_d", "stride_d", "pad_d")
OF_AXES = (*OF_DEPTH, "kernel_shape", "stride_shape", "pad_shape")

# Fields with an effect. fcaffe/forks/notations.py replaces some of them by fields of BVLC Caffe.
_WORKING = {
    "LayerParameter": "annotated_data_param detection_evaluate_param detection_output_param multibox_loss_param"
    " norm_param normalize_param permute_param prior_box_param roi_pooling_param smooth_l1_loss_param"
    " box_annotator_ohem_param psroi_pooling_param upsample_param interp_param center_loss_param"
    " margin_inner_product_param shuffle_channel_param bn_param yolov3_param"
    " yolov3_detection_output_param relu6_param detection_loss_param proposal_param lstm_param"
    " transpose_param reverse_param flip_param triplet_loss_param roi_align_param reorg_param"
    " region_loss_param eval_detection_param pooling3d_param convolution3d_param deephi_resize_param ctc_loss_param"
    " ctc_decoder_param focal_loss_param label_specific_add_param label_specific_margin_param cosin_add_m_param"
    " combined_margin_param dice_coef_loss_param matmul_param",
    "V1LayerParameter": "type bn_param interp_param relu6_param",
    "TransformationParameter": "resize_param distort_param expand_param emit_constraint",
    "LossParameter": "pre_fixed_normalizer weight_by_label_freqs class_weighting normalization",
    "ConvolutionParameter": f"hole hole_h hole_w dilation_h dilation_w relu negative_slope {' '.join(OF_AXES)}",
    "ImageDataParameter": "label_size",
    "InnerProductParameter": "relu negative_slope normalize",
    "BatchNormParameter": "scale_bias scale_filler bias_filler relu",
    "DropoutParameter": "scale_train sample_weights_test",
    "PythonParameter": "param_str_",
    "PoolingParameter": "ceil_mode avg_include_pad torch_pooling kernel_size_3d stride_3d pad_3d " + " ".join(OF_AXES),
    "SolverParameter": "rampup_interval rampup_lr larc larc_policy larc_eta"
    " warmup_iter warmup_start_lr local_lr_auto local_gw_ratio stagelr stageiter eval_type ap_version"
    " show_per_class_result",
}

_warned: set[tuple[str, str]] = set()  # file and fork


def forks_of_number(number: int) -> tuple[str, ...]:
    """The forks that have a field or enum value of this number in caffe.proto; none for Caffe's own."""
    return _FORKS.get(number // 1000, ())


def has_effect(field: Any) -> bool:
    """Whether fcaffe reads a field, given by its descriptor."""
    known = _WORKING.get(field.containing_type.name, "").split()
    return not forks_of_number(field.number) or field.name in known


def warn_of_fork_fields(message: Any, name: str) -> None:
    """Log once for each file and fork the fields of forks in a message that have no effect."""
    used: dict[str, tuple[str, ...]] = {}
    for inner, field, value in _fork_fields(message):
        if forks_of_number(field.number) and has_effect(field):
            continue
        used[f"{inner.DESCRIPTOR.name}.{field.name}"] = forks_of_number(field.number) or forks_of_number(value)
    certain = {forks[0] for forks in used.values() if len(forks) == 1}
    fields: dict[str, list[str]] = {}
    for field_name, forks in used.items():
        fork = next((fork for fork in forks if fork in certain), " or ".join(forks))
        fields.setdefault(fork, []).append(field_name)
    for fork, names in fields.items():
        if (name, fork) not in _warned:
            _warned.add((name, fork))
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
