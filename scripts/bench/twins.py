"""Caffe's nets as PyTorch modules."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from nets import plain_net
from torch import nn


def torch_net(param: Any) -> nn.Module:
    """The net as a module that runs the layers in order. A BatchNorm and the Scale after it are one layer.

    Called with images and labels, it returns the weighted sum of the losses. If labels is None, for inference, it
    returns the last layer's top.
    """
    shapes = plain_net(param)
    plan: list[tuple[str, tuple[str, ...], str, float]] = []
    modules: list[nn.Module] = []
    for layer in param.layer:
        if layer.type == "Input":
            continue
        shape = shapes.blob(layer.bottom[0]).shape[1:]
        modules.append(_module(layer, shape))
        plan.append((layer.type, tuple(layer.bottom), layer.top[0], layer.loss_weight[0] if layer.loss_weight else 1.0))
    return Layers(plan, modules)


class Layers(nn.Module):
    def __init__(self, plan: list[tuple[str, tuple[str, ...], str, float]], modules: list[nn.Module]) -> None:
        super().__init__()
        self.plan = plan  # type, bottoms, top and loss weight of each layer
        self.layers = nn.ModuleList(modules)

    def forward(self, images: torch.Tensor, labels: torch.Tensor | None) -> Any:
        blobs: dict[str, torch.Tensor] = {"data": images}
        loss: Any = 0.0
        top = "data"
        for (kind, bottoms, top, weight), module in zip(self.plan, self.layers, strict=True):
            x = blobs[bottoms[0]]
            if kind == "SoftmaxWithLoss":
                loss = loss + weight * module(x.flatten(1), labels)
            elif kind == "Concat":
                blobs[top] = torch.cat([blobs[bottom] for bottom in bottoms], 1)
            elif kind == "Eltwise":
                blobs[top] = x + blobs[bottoms[1]]
            else:
                blobs[top] = module(x)
        return loss if labels is not None else blobs[top]


def _module(layer: Any, shape: tuple[int, ...]) -> nn.Module:
    """The layer as a module. `shape` is that of its bottom, without the batch."""
    if layer.type == "Convolution":
        c = layer.convolution_param
        size, stride, pad = c.kernel_size[0], (list(c.stride) or [1])[0], (list(c.pad) or [0])[0]
        return nn.Conv2d(shape[0], c.num_output, size, stride, pad, groups=c.group, bias=c.bias_term)
    if layer.type == "InnerProduct":
        return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), layer.inner_product_param.num_output))
    if layer.type == "Pooling":
        return _pooling(layer.pooling_param)
    if layer.type == "ReLU":
        return nn.ReLU(inplace=layer.bottom[0] == layer.top[0])
    if layer.type == "LRN":
        p = layer.lrn_param
        return nn.LocalResponseNorm(p.local_size, p.alpha, p.beta, p.k)
    if layer.type == "Dropout":
        return nn.Dropout(layer.dropout_param.dropout_ratio)
    if layer.type == "BatchNorm":
        return nn.BatchNorm2d(shape[0])
    if layer.type == "Softmax":
        return nn.Sequential(nn.Flatten(), nn.Softmax(1))
    if layer.type == "SoftmaxWithLoss":
        return nn.CrossEntropyLoss()
    if layer.type in ("Scale", "Concat", "Eltwise"):
        return nn.Identity()
    raise SystemExit(f"layer {layer.name}: no PyTorch module for type {layer.type}. Add one to scripts/bench/twins.py")


def _pooling(p: Any) -> nn.Module:
    average = p.pool == p.AVE
    if p.global_pooling:
        return nn.AdaptiveAvgPool2d(1) if average else nn.AdaptiveMaxPool2d(1)
    kind = nn.AvgPool2d if average else nn.MaxPool2d
    return kind(p.kernel_size, p.stride, p.pad, ceil_mode=True)
