"""Random residual nets: convolutions with what stands behind them, sums of branches, strides in convolutions of 1x1."""

from __future__ import annotations

import random

BATCH = 3
GLOBAL = "batch_norm_param { use_global_stats: true %s }"
NORMS = [
    ("BatchNorm", GLOBAL % ""),
    ("BatchNorm", GLOBAL % ""),
    ("BatchNorm", GLOBAL % "scale_bias: true"),
    ("BN", "bn_param { frozen: true }"),
    ("BN", "bn_param { bn_mode: INFERENCE }"),
]


class RandomResidualNet:
    """The text of a net that this seed stands for, fed by an Input of images `x` and labels `label`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        size, channels = self.random.choice([8, 9, 14]), self.random.choice([3, 16, 24])
        shapes = f"shape {{ dim: {BATCH} dim: {channels} dim: {size} dim: {size} }} shape {{ dim: {BATCH} }}"
        self.layers = [f'layer {{ name: "in" type: "Input" top: "x" top: "label" input_param {{ {shapes} }} }}']
        self.channels = {"x": channels}
        blob = self._normalized("x", self.random.choice([16, 32]), 3, 1)
        for _ in range(self.random.randint(2, 4)):
            blob = self._block(blob)
        self._write("Pooling", [blob], "pool", "pooling_param { pool: AVE global_pooling: true }")
        filler = 'weight_filler { type: "xavier" }'
        self._write("InnerProduct", ["pool"], "ip", f"inner_product_param {{ num_output: 4 {filler} }}")
        self._write("SoftmaxWithLoss", ["ip", "label"], "loss", "")
        self.text = "\n".join(self.layers)

    def _block(self, bottom: str) -> str:
        """Caffe's kind: the stride is taken by the first convolution of either branch, of 1x1."""
        stride, narrow = self.random.choice([1, 2, 2]), self.random.choice([8, 16, 20])
        wide = self.channels[bottom] if stride == 1 else self.random.choice([32, 48])
        shortcut = bottom if stride == 1 and self.random.random() < 0.7 else ""
        if not shortcut:
            shortcut = self._normalized(bottom, wide, 1, stride, relu=False)
        branch = self._normalized(bottom, narrow, 1, stride)
        if self.random.random() < 0.8:
            branch = self._normalized(branch, narrow, 3, 1)
        branch = self._normalized(branch, wide, 1, 1, relu=False)
        pair = [shortcut, branch] if self.random.random() < 0.5 else [branch, shortcut]
        top = self._write("Eltwise", pair, f"sum{len(self.layers)}", "")
        self.channels[top] = wide
        return self._behind("ReLU", top, "") if self.random.random() < 0.8 else top

    def _normalized(self, bottom: str, outputs: int, kernel: int, stride: int, relu: bool = True) -> str:
        fields = f"num_output: {outputs} kernel_size: {kernel} pad: {kernel // 2} stride: {stride}"
        fields += self.random.choice(["", " bias_term: false", " bias_term: false"])
        filler = 'weight_filler { type: "msra" } bias_filler { type: "uniform" min: -0.1 max: 0.1 }'
        top = self._write(
            "Convolution", [bottom], f"conv{len(self.layers)}", f"convolution_param {{ {fields} {filler} }}"
        )
        self.channels[top] = outputs
        if self.random.random() < 0.9:
            kind, fields = self.random.choice(NORMS)
            top = self._behind(kind, top, fields)
        bias = 'bias_term: true bias_filler { type: "uniform" min: -0.2 max: 0.2 }'
        if self.random.random() < 0.9:
            bias = self.random.choice([bias, bias, ""])
            filler = 'filler { type: "uniform" min: 0.5 max: 1.5 }'
            top = self._behind("Scale", top, f"scale_param {{ {filler} {bias} }}")
        if self.random.random() < 0.1:
            top = self._behind("Bias", top, 'bias_param { filler { type: "uniform" min: -0.1 max: 0.1 } }')
        return self._behind("ReLU", top, "") if relu and self.random.random() < 0.9 else top

    def _behind(self, kind: str, bottom: str, more: str) -> str:
        """Mostly in place."""
        top = bottom if self.random.random() < 0.8 else f"{kind.lower()}{len(self.layers)}"
        self.channels[top] = self.channels[bottom]
        return self._write(kind, [bottom], top, more)

    def _write(self, kind: str, bottoms: list[str], top: str, more: str) -> str:
        read = " ".join(f'bottom: "{blob}"' for blob in bottoms)
        self.layers.append(f'layer {{ name: "layer{len(self.layers)}" type: "{kind}" {read} top: "{top}" {more} }}')
        return top
