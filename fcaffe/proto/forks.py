"""What the well-known forks of Caffe added: names only, so that an error can say where a prototxt comes from."""

from __future__ import annotations

_SSD = "the SSD fork (weiliu89/caffe)"
_NVIDIA = "NVIDIA's fork (NVIDIA/caffe)"
_INTEL = "Intel's fork (intel/caffe)"
_FAST_RCNN = "the Fast R-CNN fork (rbgirshick/caffe-fast-rcnn)"
_RFCN = "the R-FCN fork (daijifeng001/caffe-rfcn)"
_SEGNET = "the SegNet fork (alexgkendall/caffe-segnet)"
_PSPNET = "the PSPNet fork (hszhao/PSPNet)"
_SENET = "the SENet fork (hujie-frank/SENet)"

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
    _SENET: "Axpy",
}

# Of forks that share a field, any may be meant; all are listed.
_FIELDS = {
    _SSD: {
        "SolverParameter": "ap_version eval_type plateau_winsize show_per_class_result",
        "LayerParameter": "annotated_data_param detection_evaluate_param detection_output_param multibox_loss_param"
        " norm_param permute_param prior_box_param video_data_param",
        "TransformationParameter": "crop_h crop_w distort_param emit_constraint expand_param noise_param resize_param",
    },
    _NVIDIA: {
        "NetParameter": "default_backward_math default_backward_type default_conv_algos_override"
        " default_cudnn_math_override default_forward_math default_forward_type eltwise_mem_sharing global_grad_scale"
        " global_grad_scale_adaptive reduce_buckets",
        "SolverParameter": "larc larc_eta larc_policy larc_turbo max_momentum max_weight_decay min_lr momentum_policy"
        " momentum_power rampup_interval rampup_lr solver_data_type store_blobs_in_old_format"
        " test_and_snapshot_last_epochs weight_decay_policy weight_decay_power",
        "LayerParameter": "backward_math backward_type cudnn_math_override debug detectnet_augmentation_param"
        " detectnet_groundtruth_param forward_math forward_type trt_param",
        "TransformationParameter": "allow_upscale display forward_packing horizontal_stretch_lower"
        " horizontal_stretch_upper img_rand_resize_lower img_rand_resize_upper interpolation_algo_down"
        " interpolation_algo_up num_labels rand_resize_ratio_lower rand_resize_ratio_upper random_seed"
        " use_gpu_transform vertical_stretch_lower vertical_stretch_upper",
        "LossParameter": "label_smoothing",
        "BatchNormParameter": "bias_filler engine scale_bias scale_filler",
        "ConvolutionParameter": "conv_algos_override cudnn_convolution_algo_seeker",
        "DataParameter": "cache parser_threads precache shuffle threads",
        "DropoutParameter": "engine random_seed",
        "ELUParameter": "lambda",
        "ImageDataParameter": "cache dataset_share_per_node precache short_side threads",
        "PoolingParameter": "torch_pooling",
    },
    _INTEL: {
        "FillerParameter": "scale",
        "NetParameter": "bn_stats_batch_size compile_net_state engine multinode",
        "SolverParameter": "disabled_update engine local_gw_ratio local_lr_auto stageiter stagelr test_offset"
        " warmup_iter warmup_start_lr",
        "LayerParameter": "engine eval_detection_param mn_activation_param mn_grad_compress_param multinode"
        " quantization_param region_loss_param reorg_param spatial_dropout_param split_param",
        "TransformationParameter": "bgr2rgb flow pad random_aspect_ratio_param random_resize_param",
        "LossParameter": "label_smoothing",
        "ConcatParameter": "engine per_fla_fuse",
        "BatchNormParameter": "bias_filler bias_term engine filler relu stats_batch_size use_weight_bias",
        "ConvolutionParameter": "coeff conv_algorithm fusion_type negative_slope relu",
        "DataParameter": "shuffle side",
        "EltwiseParameter": "engine",
        "ImageDataParameter": "min_height min_width",
        "InnerProductParameter": "engine negative_slope relu",
        "PoolingParameter": "avg_include_pad axis kernel_size_3d pad_3d stride_3d",
        "ReLUParameter": "fuse",
        "ReshapeParameter": "pixelshuffler",
    },
    _FAST_RCNN: {"LayerParameter": "roi_pooling_param smooth_l1_loss_param"},
    _RFCN: {
        "LayerParameter": "box_annotator_ohem_param psroi_pooling_param",
        "LossParameter": "pre_fixed_normalizer",
        "DropoutParameter": "scale_train",
    },
    _SEGNET: {
        "LayerParameter": "bn_param dense_image_data_param upsample_param",
        "LossParameter": "class_weighting weight_by_label_freqs",
        "DropoutParameter": "sample_weights_test",
    },
    _PSPNET: {
        "LayerParameter": "adaptive_bias_channel_param bias_channel_param bn_param dense_crf_param"
        " domain_transform_param interp_param mat_read_param mat_write_param seg_accuracy_param unique_label_param",
        "TransformationParameter": "crop_height crop_width scale_factors",
        "BatchNormParameter": "update_global_stats",
        "ImageDataParameter": "ignore_label label_type",
    },
}

_ENUM_VALUES = {
    _NVIDIA: {"SolverType": "SAG"},
    _INTEL: {"Engine": "MKL2017 MKLDNN", "NormalizationMode": "PRE_FIXED"},
    _RFCN: {"NormalizationMode": "PRE_FIXED"},
}


def fork_of_layer_type(type: str) -> str | None:
    """The fork that a layer type comes from, such as "the SSD fork (weiliu89/caffe)"."""
    return next((fork for fork, types in _LAYER_TYPES.items() if type in types.split()), None)


def fork_of_field(message: str, field: str) -> str | None:
    """The fork, or forks, that added `field` to the message of that name."""
    return _owners(_FIELDS, message, field)


def fork_of_enum_value(enum: str, value: str) -> str | None:
    """The fork, or forks, that added `value` to the enum of that name."""
    return _owners(_ENUM_VALUES, enum, value)


def _owners(table: dict[str, dict[str, str]], group: str, name: str) -> str | None:
    return " and ".join(fork for fork, groups in table.items() if name in groups.get(group, "").split()) or None
