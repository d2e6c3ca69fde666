"""Random nets of branches side by side: Concats of convolutions, read by poolings, 1x1 convolutions and others, some by
several; layers in place before and behind them."""

from __future__ import annotations

import random

BATCH = 4


class RandomConcatNet:
    """The text of a net that this seed stands for, with data and labels of its own."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        size = self.random.choice([16, 17])
        shapes = f"shape {{ dim: {BATCH} dim: 3 dim: {size} dim: {size} }} shape {{ dim: {BATCH} }}"
        fillers = 'data_filler { type: "gaussian" } data_filler { type: "uniform" min: 0 max: 3.99 }'
        self.layers = [
            'layer { name: "data" type: "DummyData" top: "x" top: "label" '
            f"dummy_data_param {{ {shapes} {fillers} }} }}"
        ]
        blob, self.read = "x", ["x"]
        for _ in range(self.random.randint(1, 3)):
            blob = self._block(blob)
        filler = 'weight_filler { type: "xavier" }'
        self._write("InnerProduct", [blob], "ip", f"inner_product_param {{ num_output: 4 {filler} }}")
        self._write("SoftmaxWithLoss", ["ip", "label"], "loss", "")
        if self.random.random() < 0.4:  # a blob amid the net, with a loss of its own
            more = "reduction_param { operation: SUMSQ } loss_weight: 0.01"
            self._write("Reduction", [self.random.choice(self.read)], "extra", more)
        self.text = "\n".join(self.layers)

    def _block(self, bottom: str) -> str:
        branches = [self._branch(bottom) for _ in range(self.random.choice([1, 2, 2, 3]))]
        if self.random.random() < 0.15:
            branches.append(self.random.choice(branches))
        down = self._down(len(branches)) if self.random.random() < 0.15 else ""
        top = self._write("Concat", branches, f"concat{len(self.layers)}", down)
        if self.random.random() < 0.2:
            top = self._in_place(top, self.random.choice(["Dropout", "ReLU", "TanH"]))
        reader = self.random.choice(["pool", "pool", "conv", "conv", "both"])
        if reader == "both":
            return self._write("Eltwise", [self._convolution(top, 16, 1), self._convolution(top, 16, 3)], self._name())
        top = self._pooling(top) if reader == "pool" else self._convolution(top, self.random.choice([4, 16, 20]), 1)
        if self.random.random() < 0.6:
            top = self._in_place(top, self.random.choice(["ReLU", "ReLU", "Dropout", "Sigmoid", "Power"]))
        return top

    def _branch(self, bottom: str) -> str:
        channels = self.random.choice([1, 5, 16, 16, 24, 64])
        top = self._convolution(bottom, channels, self.random.choice([1, 3]))
        if self.random.random() < 0.15:
            top = self._in_place(top, "BatchNorm")
        if self.random.random() < 0.9:
            slope = "relu_param { negative_slope: 0.1 }" if self.random.random() < 0.05 else ""
            top = self._in_place(top, "ReLU", slope)
        if self.random.random() < 0.05:
            top = self._in_place(top, "Dropout")
        if self.random.random() < 0.15:
            self.read.append(top)
        return top

    def _convolution(self, bottom: str, outputs: int, kernel: int) -> str:
        fields = f"num_output: {outputs} kernel_size: {kernel} pad: {kernel // 2}"
        filler = 'weight_filler { type: "xavier" } bias_filler { type: "uniform" min: -0.1 max: 0.1 }'
        frozen = f"param {{ lr_mult: {self.random.choice([0, 1])} }}" if self.random.random() < 0.2 else ""
        return self._write("Convolution", [bottom], self._name(), f"convolution_param {{ {fields} {filler} }} {frozen}")

    def _pooling(self, bottom: str) -> str:
        kernel, stride = self.random.choice([(3, 2), (2, 2), (2, 2), (2, 1), (3, 1)])  # none outside
        method, pad = self.random.choice(["MAX"] * 5 + ["AVE"]), f"pad: {self.random.randrange(min(2, kernel))}"
        window = f"kernel_size: {kernel} stride: {stride} {pad}"
        return self._write("Pooling", [bottom], self._name(), f"pooling_param {{ pool: {method} {window} }}")

    def _in_place(self, bottom: str, kind: str, more: str = "") -> str:
        """Mostly."""
        if kind == "Power":
            more = "power_param { scale: -0.5 shift: 0.1 }"
        return self._write(kind, [bottom], bottom if self.random.random() < 0.8 else self._name(), more)

    def _down(self, count: int) -> str:
        return " ".join(f"propagate_down: {self.random.choice(['true', 'false'])}" for _ in range(count))

    def _name(self) -> str:
        return f"blob{len(self.layers)}"

    def _write(self, kind: str, bottoms: list[str], top: str, more: str = "") -> str:
        read = " ".join(f'bottom: "{blob}"' for blob in bottoms)
        self.layers.append(f'layer {{ name: "layer{len(self.layers)}" type: "{kind}" {read} top: "{top}" {more} }}')
        return top
