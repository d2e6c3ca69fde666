"""MobileNet v1 (Howard et al., 2017) as a prototxt, with the layers of its published version for Caffe.

A depthwise convolution is a Convolution with a group for each channel. In-place BatchNorm, Scale and ReLU follow each
convolution.
"""

from __future__ import annotations

# Outputs and stride of each pair of a depthwise and a pointwise convolution.
SEPARABLE = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
CLASSES = 1000


def mobilenet() -> str:
    """The prototxt of the layers from the blob "data" to the loss."""
    layers = [_convolution("conv1", "data", 32, 3, stride=2)]
    bottom, channels = "conv1", 32
    for number, (outputs, stride) in enumerate(SEPARABLE, 2):
        depthwise, pointwise = f"conv{number}/dw", f"conv{number}/sep"
        layers.append(_convolution(depthwise, bottom, channels, 3, stride, group=channels))
        layers.append(_convolution(pointwise, depthwise, outputs, 1))
        bottom, channels = pointwise, outputs
    layers.append(
        f"""layer {{ name: "pool" type: "Pooling" bottom: "{bottom}" top: "pool"
          pooling_param {{ pool: AVE global_pooling: true }} }}
        layer {{ name: "fc" type: "Convolution" bottom: "pool" top: "fc" convolution_param {{
          num_output: {CLASSES} kernel_size: 1 weight_filler {{ type: "msra" }} }} }}
        layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }}"""
    )
    return 'name: "MobileNet"\n' + "\n".join(layers)


def _convolution(name: str, bottom: str, outputs: int, kernel: int, stride: int = 1, group: int = 1) -> str:
    return f"""layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}" convolution_param {{
      num_output: {outputs} bias_term: false kernel_size: {kernel} pad: {kernel // 2} stride: {stride} group: {group}
      weight_filler {{ type: "msra" }} }} }}
    layer {{ name: "{name}/bn" type: "BatchNorm" bottom: "{name}" top: "{name}" }}
    layer {{ name: "{name}/scale" type: "Scale" bottom: "{name}" top: "{name}" scale_param {{ bias_term: true }} }}
    layer {{ name: "{name}/relu" type: "ReLU" bottom: "{name}" top: "{name}" }}"""
