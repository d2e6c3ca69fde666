"""Log lines about the construction of a net, and those of every pass with debug_info."""

from __future__ import annotations

from fcaffe.log.lines import Sentence, info, number, shape_string

initializing_net = Sentence("Initializing net from parameters: \n{text}", "net.cpp:53")
rule_differs = Sentence("{message}", "net.cpp:{line:d}")
# Also for an inner layer, such as the softmax of SoftmaxWithLoss.
making_layer = Sentence("Creating layer {name}", "layer_factory.hpp:77")
creating_layer = Sentence("Creating Layer {name}", "net.cpp:86")
bottom_connected = Sentence("{layer} <- {blob}", "net.cpp:408")

top_connected = Sentence("{layer} -> {blob}", "net.cpp:382")
top_in_place = Sentence("{layer} -> {blob} (in-place)", "net.cpp:369")
setting_up = Sentence("Setting up {layer}", "net.cpp:124")


def top_shape(shape: tuple[int, ...], loss_weight: float) -> None:
    info(f"Top shape: {shape_string(shape)}", "net.cpp:131")
    if loss_weight:
        info(f"    with loss weight {number(loss_weight)}", "net.cpp:134")


memory_required = Sentence("Memory required for data: {size:d}", "net.cpp:139")
sharing_parameters = Sentence(
    "Sharing parameters '{name}' owned by layer '{owner}', param index {index:d}", "net.cpp:467"
)
needs_backward = Sentence("{layer} needs backward computation.", "net.cpp:200")
needs_no_backward = Sentence("{layer} does not need backward computation.", "net.cpp:202")
produces_output = Sentence("This network produces output {blob}", "net.cpp:244")
net_done = Sentence("Network initialization done.", "net.cpp:257")

# This net has no layer of that name, which comes from a model file or from the training net.
ignoring_source_layer = Sentence("Ignoring source layer {name}", "net.cpp:746")
ignoring_trained_layer = Sentence("Ignoring source layer {name}", "net.cpp:678")

# `mean` is the mean of absolute values.
debug_top = Sentence("    [Forward] Layer {layer}, top blob {blob} data: {mean:.6g}", "net.cpp:593")
debug_param = Sentence("    [Forward] Layer {layer}, param blob {blob} data: {mean:.6g}", "net.cpp:605")
debug_bottom_diff = Sentence("    [Backward] Layer {layer}, bottom blob {blob} diff: {mean:.6g}", "net.cpp:621")
debug_param_diff = Sentence("    [Backward] Layer {layer}, param blob {blob} diff: {mean:.6g}", "net.cpp:632")
debug_all_params = Sentence(
    "    [Backward] All net params (data, diff): L1 norm = ({l1[0]:.6g}, {l1[1]:.6g}); "
    "L2 norm = ({l2[0]:.6g}, {l2[1]:.6g})",
    "net.cpp:721",
    level="E",
)
