"""Prototxts of forks: their fields are read and told of, have no effect, and get into no binary file."""

import pytest

from fcaffe.engines import NumpyEngine
from fcaffe.errors import NetError, ProtoError
from fcaffe.net import Context
from fcaffe.net.registry import create_layer
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import forks, parse_text, read_net, read_solver, write_binary
from fcaffe.proto.forks import _FORKS, forks_of_number, without_fork_fields
from fcaffe.rng import CaffeRandom


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch):
    monkeypatch.setattr(forks, "_warned", set())


def messages():
    waiting = list(pb.DESCRIPTOR.message_types_by_name.values())
    for message in waiting:
        waiting += message.nested_types
    return waiting


def test_every_number_of_a_fork_names_one():
    numbers = [
        (f"{message.name}.{field.name}", field.number)
        for message in messages()
        if any(field.number < 100000 for field in message.fields)
        for field in message.fields
    ]
    forks_of = {name: forks_of_number(number) for name, number in numbers if number >= 101000}
    assert all(forks_of.values())
    assert set(forks_of.values()) == set(_FORKS.values())
    own = {"BlobProto.array_index", "BlobBytes.array_index", "SolverState.resume", "StateBytes.resume"}
    own |= {f"{name}.written" for name in ("NetParameter", "NetBytes", "SolverState", "StateBytes")}
    assert {name for name, number in numbers if 100000 <= number < 101000} == own
    values = [value for message in messages() for enum in message.enum_types for value in enum.values]
    assert all(forks_of_number(value.number) for value in values if value.number >= 100000)


NVIDIA_NET = """
name: "n" default_forward_type: FLOAT16 default_backward_type: FLOAT16 global_grad_scale: 8 reduce_buckets: 6
layer { forward_type: FLOAT backward_math: FLOAT name: "data" type: "Data" top: "data" cudnn_math_override: 0
  data_param { source: "x" threads: 4 parser_threads: 2 cache: true shuffle: true }
  transform_param { crop_size: 2 use_gpu_transform: true forward_packing: NHWC interpolation_algo_up: INTER_CUBIC } }
layer { name: "bn" type: "BatchNorm" bottom: "data" top: "bn"
  batch_norm_param { moving_average_fraction: 0.9 scale_bias: true scale_filler { type: "constant" value: 1 } } }
layer { name: "drop" type: "Dropout" bottom: "bn" top: "bn" dropout_param { engine: CUDNN random_seed: 3 } }
layer { name: "cluster" type: "Python" detectnet_groundtruth_param { stride: 16 gridbox_type: GRIDBOX_MIN
        object_class { src: 1 dst: 0 } } }
"""
INTEL_NET = """
engine: "MKLDNN" compile_net_state { bn_scale_remove: true } multinode { model_parallel { layer_from: "a" } }
layer { name: "c" type: "Convolution" engine: "MKL2017"
        convolution_param { num_output: 2 engine: MKLDNN relu: true fusion_type: SUM_FUSION } }
layer { name: "p" type: "Pooling" pooling_param { engine: MKL2017 avg_include_pad: true kernel_size_3d: 2 } }
layer { name: "e" type: "Eltwise" eltwise_param { engine: MKLDNN } }
layer { name: "b" type: "BatchNorm" batch_norm_param { engine: MKL2017 use_weight_bias: true } }
layer { name: "q" type: "Split" quantization_param { precision: DYNAMIC_FIXED_POINT fl_params: 3 fl_params: 4 } }
"""
SSD_NET = """
layer { name: "data" type: "AnnotatedData" top: "data" top: "label" include { phase: TRAIN }
  transform_param { mean_value: 104 resize_param { prob: 1 resize_mode: WARP height: 300 width: 300 interp_mode: AREA
      interp_mode: LANCZOS4 } emit_constraint { emit_type: CENTER } distort_param { hue_delta: 18 }
    expand_param { prob: 0.5 max_expand_ratio: 4 } }
  annotated_data_param { batch_sampler { max_sample: 1 sampler { min_scale: 0.3 } sample_constraint {
      min_jaccard_overlap: 0.1 } } label_map_file: "labelmap_voc.prototxt" } }
layer { name: "n" type: "Normalize" norm_param { across_spatial: false scale_filler { type: "constant" value: 20 } } }
layer { name: "p" type: "Permute" permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: "prior" type: "PriorBox" prior_box_param { min_size: 30 max_size: 60 aspect_ratio: 2 flip: true
        variance: 0.1 variance: 0.2 step: 8 offset: 0.5 } }
layer { name: "loss" type: "MultiBoxLoss" multibox_loss_param { loc_loss_type: SMOOTH_L1 conf_loss_type: SOFTMAX
        code_type: CENTER_SIZE mining_type: MAX_NEGATIVE match_type: PER_PREDICTION } }
layer { name: "out" type: "DetectionOutput" detection_output_param { num_classes: 21 code_type: CENTER_SIZE
        nms_param { nms_threshold: 0.45 top_k: 400 } save_output_param { output_format: "VOC" } } }
"""
OTHERS = """
layer { name: "roi" type: "ROIPooling" roi_pooling_param { pooled_w: 6 pooled_h: 6 spatial_scale: 0.0625 } }
layer { name: "l1" type: "SmoothL1Loss" smooth_l1_loss_param { sigma: 3.0 } }
layer { name: "ps" type: "PSROIPooling" psroi_pooling_param { output_dim: 21 group_size: 7 } }
layer { name: "bn" type: "BN" bn_param { scale_filler { type: "constant" } shift_filler { value: 0.001 }
        bn_mode: INFERENCE } }
layer { name: "bn2" type: "BN" bn_param { slope_filler { value: 1 } momentum: 0.05 frozen: true engine: CUDNN } }
layer { name: "up" type: "Upsample" upsample_param { scale: 2 upsample_w: 60 upsample_h: 45 } }
layer { name: "interp" type: "Interp" interp_param { height: 60 zoom_factor: 8 } }
layer { name: "crf" type: "MultiStageMeanfield" multi_stage_meanfield_param { num_iterations: 10
        compatibility_mode: POTTS threshold: 2 theta_alpha: 160 spatial_filter_weight: 3 } }
layer { name: "center" type: "CenterLoss" center_loss_param { num_output: 10572 center_filler { type: "xavier" } } }
layer { name: "fc6" type: "MarginInnerProduct" margin_inner_product_param { type: QUADRUPLE base: 1000 } }
layer { name: "shuffle" type: "ShuffleChannel" shuffle_channel_param { group: 3 } }
layer { name: "loss" type: "SoftmaxWithLoss" loss_param { ignore_label: 11 weight_by_label_freqs: true
        class_weighting: 0.2595 class_weighting: 0.1826 } }
"""
NETS = {
    NVIDIA_NET: ["NVIDIA/caffe"],
    INTEL_NET: ["intel/caffe", "Ristretto"],
    SSD_NET: [],  # all its fields work
    OTHERS: ["torrvision"],
}  # fmt: skip


@pytest.mark.parametrize("text", NETS, ids=["nvidia", "intel", "ssd", "others"])
def test_nets_of_forks_are_read_and_each_fork_is_named_once(text, tmp_path, capfd):
    path = tmp_path / "net.prototxt"
    path.write_text(text)
    for _ in range(2):  # a solver reads its net twice, to train and to test
        net = read_net(path)
    warnings = [line for line in capfd.readouterr().err.splitlines() if line.startswith("W")]
    assert all(f"{path} was written for " in line and "without effect here: " in line for line in warnings)
    assert len(warnings) == len(NETS[text])
    for fork in NETS[text]:
        assert sum(fork in line.split("; without")[0] for line in warnings) == 1
    write_binary(tmp_path / "net.bin", net)
    stripped = pb.NetParameter.FromString((tmp_path / "net.bin").read_bytes())
    assert [layer.name for layer in stripped.layer] == [layer.name for layer in net.layer]
    known = pb.NetParameter()
    known.CopyFrom(net)
    assert stripped == without_fork_fields(known)
    assert known == net, "the message itself keeps them, for user code"


def test_what_is_stripped():
    net = without_fork_fields(parse_text(NVIDIA_NET + INTEL_NET, pb.NetParameter))
    assert net == parse_text(
        'name: "n"'
        'layer { name: "data" type: "Data" top: "data" data_param { source: "x" } transform_param { crop_size: 2 } }'
        'layer { name: "bn" type: "BatchNorm" bottom: "data" top: "bn" batch_norm_param '
        "{ moving_average_fraction: 0.9 } }"
        'layer { name: "drop" type: "Dropout" bottom: "bn" top: "bn" dropout_param {} }'
        'layer { name: "cluster" type: "Python" }'
        'layer { name: "c" type: "Convolution" convolution_param { num_output: 2 } }'
        'layer { name: "p" type: "Pooling" pooling_param {} } layer { name: "e" type: "Eltwise" eltwise_param {} }'
        'layer { name: "b" type: "BatchNorm" batch_norm_param {} } layer { name: "q" type: "Split" }',
        pb.NetParameter,
    )


def test_a_net_without_them_is_not_copied():
    net = parse_text('layer { name: "a" convolution_param { engine: CAFFE } }', pb.NetParameter)
    assert without_fork_fields(net) is net


def test_solvers_of_forks(tmp_path, capfd):
    path = tmp_path / "solver.prototxt"
    path.write_text(
        'net: "x" min_lr: 1e-5 larc: true momentum_policy: "poly" solver_data_type: FLOAT '
        'ap_version: "11point" eval_type: "detection" plateau_winsize: 10000 '
        "warmup_iter: 500 local_lr_auto: true test_offset: 3 disabled_update: true"
    )
    assert read_solver(path).min_lr == pytest.approx(1e-5)
    logged = capfd.readouterr().err
    for words in (
        "NVIDIA/caffe); without effect here: SolverParameter.min_lr, SolverParameter.momentum_policy, "
        "SolverParameter.solver_data_type\n",
        "intel/caffe); without effect here: SolverParameter.disabled_update, SolverParameter.test_offset\n",
    ):
        assert logged.count(words) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("eltwise_param { operation: STOCHASTIC_SUM }", 'no value "STOCHASTIC_SUM"'),
        ("batch_norm_param { engin: CAFFE }", "has no field named \"engin\"$"),
        ("convolution_param { engine: MKL }", 'no value "MKL"'),
    ],
)  # fmt: skip
def test_what_would_change_the_numbers_or_is_nobodys_is_refused(text, message):
    with pytest.raises(ProtoError, match=message):
        parse_text(f"layer {{ {text} }}", pb.NetParameter)


def test_a_forks_layer_comes_with_what_to_write_instead() -> None:
    param = pb.LayerParameter(name="it", type="VideoData")
    with pytest.raises(NetError, match=r'layer "it": unknown layer type "VideoData" .* type "Python" can do its work'):
        create_layer(param, Context(NumpyEngine(), CaffeRandom(1)))
