"""Random nets: valid prototxts with branches, layers in place, references, several losses and frozen layers, layers
along any axis, and batches that Filter makes smaller or empty."""

from __future__ import annotations

import random

CLASSES = 4
BATCH = 3

Shape = tuple[int, int, int]  # of a sample: channels, height, width

ACTIVATIONS = {
    "ReLU": ["", "relu_param { negative_slope: 0.1 }"],
    "Sigmoid": [""],
    "TanH": [""],
    "ELU": [""],
    "PReLU": [""],
    "Swish": [""],
    "Dropout": ["dropout_param { dropout_ratio: 0.3 }"],
    "Power": ["power_param { scale: -0.5 shift: 0.1 }"],
    "Bias": ['bias_param { filler { type: "uniform" min: -0.1 max: 0.1 } }'],
    "Scale": ["", "scale_param { bias_term: true }"],
    "BatchNorm": ["", "", "batch_norm_param { use_global_stats: true }"],
    "MVN": [""],
    "Softmax": [""],
    "LRN": ["lrn_param { local_size: 3 alpha: 0.1 }"],
    "BNLL": [""],
    "AbsVal": [""],
    "Clip": ["clip_param { min: -0.7 max: 0.6 }"],
    "Exp": ["exp_param { base: 1.5 scale: 0.1 }"],
}
NORMALISATIONS = [
    *[[("BatchNorm", ""), ("Scale", "scale_param { bias_term: true }")]] * 3,
    [("BatchNorm", "batch_norm_param { scale_bias: true }")],
    [("BN", "")],
    [("BN", "bn_param { bn_mode: LEARN }")],
]
NOT_IN_PLACE = {"AbsVal", "LRN", "BNLL", "Clip"}


class RandomNet:
    """The text of a net that this seed stands for. Blobs that nobody reads in the end go to losses, to a Silence, or
    are outputs."""

    def __init__(self, seed: int, fed: bool = False) -> None:
        """A net that is `fed` has Input layers instead of data, whose first axis may change from pass to pass unless
        it has a `fixed_batch`; `inputs` has their names and what they hold."""
        self.random = random.Random(seed)
        self.batch, self.fed, self.fixed_batch = BATCH, fed, False
        self.inputs: dict[str, str] = {}
        self.layers: list[str] = []
        self.shapes: dict[str, Shape] = {}  # of blobs that may be read
        self.unread: set[str] = set()
        self.numbers: dict[str, int] = {}
        size = self.random.choice([6, 7, 8])
        self._source("x", "images", 'type: "gaussian"', f"dim: 3 dim: {size} dim: {size}")
        self._source("label", "labels", f'type: "uniform" min: 0 max: {CLASSES - 0.01}')
        self._made("x", (3, size, size))
        for _ in range(self.random.randint(3, 12)):
            self._grow()
        self._finish()
        force = "force_backward: true\n" if self.random.random() < 0.15 else ""
        self.text = force + "\n".join(self.layers)

    # --- one more layer -----------------------------------------------------------------------------------------------

    def _grow(self) -> None:
        steps = [
            (self._convolution, 5),
            (self._normalized, 3),
            (self._activation, 5),
            (self._pooling, 2),
            (self._eltwise, 3),
            (self._residual, 2),
            (self._concat, 2),
            (self._branches, 3),
            (self._slice, 1),
            (self._crop, 3),
            (self._operand, 1),
            (self._copies, 1),
            (self._observer, 1),
            (self._reshape, 1),
            (self._user_layer, 1),
            (self._samples, 1),
            (self._maximum, 2),
            (self._other_axis, 3),
            (self._filter, 1),
        ]
        step = self.random.choices([step for step, _ in steps], [weight for _, weight in steps])[0]
        step()

    def _convolution(self, bottom: str | None = None) -> str:
        bottom = bottom or self._pick()
        kind = self.random.choice(["Convolution", "Convolution", "Convolution", "Deconvolution"])
        _, height, width = self.shapes[bottom]
        kernel, outputs = self.random.choice([1, 3]), self.random.choice([2, 4, 8])
        fields = f"num_output: {outputs} kernel_size: {kernel} pad: {kernel // 2}"
        fields += " bias_term: false" if self.random.random() < 0.3 else ""
        filler = 'weight_filler { type: "xavier" } bias_filler { type: "uniform" min: -0.1 max: 0.1 }'
        biased = "bias_term" not in fields
        more = f"convolution_param {{ {fields} {filler} }} {self._frozen(1 + biased)}"
        return self._layer(kind, [bottom], more, (outputs, height, width))

    def _normalized(self) -> None:
        """A normalisation and ReLU, mostly behind a convolution and in place."""
        top = self._convolution() if self.random.random() < 0.7 else self._pick()
        for kind, more in (*self.random.choice(NORMALISATIONS), ("ReLU", "")):
            if kind == "ReLU" and self.random.random() < 0.4:
                return
            top = self._activation(top, kind, more)

    def _activation(self, bottom: str | None = None, kind: str = "", more: str = "") -> str:
        bottom = bottom or self._pick()
        if not kind:
            kind = self.random.choice([*ACTIVATIONS, *["ReLU"] * 5])
            more = self.random.choice(ACTIVATIONS[kind])
        frozen = self._frozen(2 if "bias_term: true" in more else 1) if kind in ("Scale", "Bias", "PReLU") else ""
        in_place = kind not in NOT_IN_PLACE and bottom in self.unread and bottom != "x" and self.random.random() < 0.7
        return self._layer(kind, [bottom], f"{more} {frozen}", self.shapes[bottom], in_place=in_place)

    def _pooling(self, bottom: str = "") -> None:
        bottom = bottom or self._pick()
        channels, height, width = self.shapes[bottom]
        method, stride = self.random.choice(["MAX", "AVE"]), self.random.choice([1, 2])
        size = (height, width) if stride == 1 else tuple(-(-(n - 2) // 2) + 1 for n in (height, width))
        if height < 3 or width < 3:
            return
        window = "kernel_size: 3 pad: 1" if stride == 1 else "kernel_size: 2 stride: 2"
        self._layer("Pooling", [bottom], f"pooling_param {{ pool: {method} {window} }}", (channels, *size))

    def _eltwise(self) -> None:
        first = self._pick()
        like = [blob for blob, shape in self.shapes.items() if shape == self.shapes[first]]
        bottoms = [first, *self.random.choices(like, k=self.random.choice([1, 1, 2]))]
        self.random.shuffle(bottoms)
        more = self.random.choice(["", "", "operation: PROD", "operation: MAX"])
        if not more and self.random.random() < 0.3:
            more = " ".join(f"coeff: {self.random.choice([1, -0.5, 2])}" for _ in bottoms)
        top = self._layer("Eltwise", bottoms, f"eltwise_param {{ {more} }}", self.shapes[first])
        if self.random.random() < 0.6:
            self._activation(top, "ReLU")

    def _residual(self) -> None:
        """A block of ResNet."""
        bottom = self._pick()
        channels, height, width = self.shapes[bottom]
        filler = f'num_output: {channels} kernel_size: 3 pad: 1 weight_filler {{ type: "xavier" }}'
        more = f"convolution_param {{ {filler} }} {self._frozen(2)}"
        top = self._layer("Convolution", [bottom], more, self.shapes[bottom])
        for kind, more in (("BatchNorm", ""), ("Scale", "scale_param { bias_term: true }")):
            top = self._activation(top, kind, more)
        bottoms = [top, bottom]
        self.random.shuffle(bottoms)
        self._activation(self._layer("Eltwise", bottoms, "", (channels, height, width)), "ReLU")

    def _concat(self) -> None:
        first = self._pick()
        like = [blob for blob, shape in self.shapes.items() if shape[1:] == self.shapes[first][1:]]
        bottoms = [first, *self.random.choices(like, k=self.random.choice([1, 2]))]
        channels = sum(self.shapes[blob][0] for blob in bottoms)
        if channels <= 24:
            self._layer("Concat", bottoms, "", (channels, *self.shapes[first][1:]))

    def _branches(self) -> None:
        """Convolutions side by side, as in GoogLeNet, which a pooling or a convolution reads together."""
        bottom = self._pick()
        _, height, width = self.shapes[bottom]
        parts = []
        for kernel in self.random.choices([1, 3], k=self.random.choice([2, 3])):
            outputs = self.random.choice([1, 5, 16, 16, 24])
            fields = f"num_output: {outputs} kernel_size: {kernel} pad: {kernel // 2}"
            more = f'convolution_param {{ {fields} weight_filler {{ type: "xavier" }} }}'
            top = self._layer("Convolution", [bottom], more, (outputs, height, width))
            parts.append(self._activation(top, "ReLU") if self.random.random() < 0.9 else top)
        channels = sum(self.shapes[part][0] for part in parts)
        top = self._layer("Concat", parts, "", (channels, height, width))
        if self.random.random() < 0.6 and min(height, width) > 2:
            size = tuple(-(-(n - 2) // 2) + 1 for n in (height, width))
            top = self._layer("Pooling", [top], "pooling_param { kernel_size: 2 stride: 2 }", (channels, *size))
        else:
            top = self._convolution(top)
        if self.random.random() < 0.3:
            self._activation(top, self.random.choice(["ReLU", "Sigmoid", "Dropout"]))

    def _slice(self) -> None:
        bottom = self._pick()
        channels, *size = self.shapes[bottom]
        if channels % 2:
            return
        name = self._name("slice")
        tops = [f"{name}_a", f"{name}_b"]
        self._write(name, "Slice", [bottom], tops)
        for top in tops:
            self._made(top, (channels // 2, *size))

    def _crop(self) -> None:
        """A part of one blob as large as another, which may come from layers that learn, as in FCN-8s."""
        reference = self._pick()
        _, height, width = self.shapes[reference]
        larger = [blob for blob, shape in self.shapes.items() if shape[1] >= height and shape[2] >= width]
        bottom = self.random.choice(larger)
        offset = min(self.shapes[bottom][1] - height, self.shapes[bottom][2] - width, 1)
        more = f"crop_param {{ axis: 2 offset: {offset} }}"
        self._layer("Crop", [bottom, reference], more, (self.shapes[bottom][0], height, width))

    def _operand(self) -> None:
        """A Scale or Bias whose operand is another blob."""
        first = self._pick()
        like = [blob for blob, shape in self.shapes.items() if shape == self.shapes[first]]
        kind = self.random.choice(["Scale", "Bias"])
        more = f"{kind.lower()}_param {{ axis: 0 }}"
        self._layer(kind, [first, self.random.choice(like)], more, self.shapes[first])

    def _copies(self) -> None:
        """Channels repeated."""
        bottom = self._pick()
        channels, *size = self.shapes[bottom]
        if channels <= 8:
            self._layer("Tile", [bottom], "tile_param { tiles: 2 axis: 1 }", (2 * channels, *size))

    def _samples(self) -> None:
        """Samples in another order."""
        bottom = self._pick()
        index = self._name("index")
        self._source(index, "indices", f'type: "uniform" min: 0 max: {self.batch - 0.01}')
        self._layer("BatchReindex", [bottom, index], "", self.shapes[bottom], propagate=[True, False])

    def _maximum(self) -> None:
        """The maximum of two convolutions, and Pooling behind it."""
        bottom, outputs = self._pick(), self.random.choice([2, 4, 16])
        filler = f'num_output: {outputs} kernel_size: 3 pad: 1 weight_filler {{ type: "xavier" }}'
        shape = (outputs, *self.shapes[bottom][1:])
        parts = [self._layer("Convolution", [bottom], f"convolution_param {{ {filler} }}", shape) for _ in range(2)]
        top = self._layer("Eltwise", parts, "eltwise_param { operation: MAX }", shape)
        if self.random.random() < 0.5:
            top = self._activation(top, "ReLU")
        if self.random.random() < 0.7:
            self._pooling(top)

    def _other_axis(self) -> None:
        """A layer that works along another axis than that of the channels."""
        bottom = self._pick()
        channels, height, width = shape = self.shapes[bottom]
        kind = self.random.choice(["Concat", "batch", "Convolution", "InnerProduct", "Scale", "Softmax", "Slice"])
        if kind == "Concat" and height <= 16:
            self._layer(kind, [bottom, bottom], "concat_param { axis: 2 }", (channels, 2 * height, width))
        elif kind == "batch":  # put together and taken apart again
            both, halves = self._name("Concat"), [self._name("half") for _ in range(2)]
            self._write(both, "Concat", [bottom, bottom], [both], "concat_param { axis: 0 }")
            self._write(f"slice {both}", "Slice", [both], halves, "slice_param { axis: 0 }")
            for top in halves:
                self._made(top, shape)
        elif kind == "Convolution":
            self.fixed_batch = True  # by the weights
            filler = f'num_output: {self.batch} kernel_size: 1 axis: 0 weight_filler {{ type: "xavier" }}'
            top = self._layer(kind, [bottom], f"convolution_param {{ {filler} }}", shape)
            self._activation(top, "ReLU")
            self._pooling(top)
        elif kind == "InnerProduct":
            filler = 'axis: -1 num_output: 5 weight_filler { type: "xavier" }'
            self._layer(kind, [bottom], f"inner_product_param {{ {filler} }}", (channels, height, 5))
        elif kind == "Scale":
            self._layer(kind, [bottom], "scale_param { axis: 2 bias_term: true }", shape)
        elif kind == "Softmax":
            self._layer(kind, [bottom], "softmax_param { axis: -1 }", shape)
        elif kind == "Slice" and height % 2 == 0:
            halves = [self._name("half") for _ in range(2)]
            self._write(self._name("slice"), kind, [bottom], halves, "slice_param { axis: 2 }")
            for top in halves:
                self._made(top, (channels, height // 2, width))

    def _filter(self) -> None:
        """Some of the samples, all or none, through layers of their own to a loss."""
        bottom, noise, selector, top = self._pick(), self._name("noise"), self._name("chosen"), self._name("filter")
        self._source(noise, "noise", 'type: "uniform" min: 0 max: 1')
        threshold = self.random.choice([-1, 0.5, 0.5, 2])
        self._write(selector, "Threshold", [noise], [selector], f"threshold_param {{ threshold: {threshold} }}")
        self._write(top, "Filter", [bottom, selector], [top], "propagate_down: true propagate_down: false")
        filler = 'num_output: 16 kernel_size: 3 pad: 1 weight_filler { type: "xavier" }'
        for kind, more in (
            ("Convolution", f"convolution_param {{ {filler} }}"),
            ("ReLU", ""),
            ("Pooling", "pooling_param { kernel_size: 2 stride: 1 }"),
            ("Convolution", f"convolution_param {{ {filler} }}"),
        ):
            if kind == "Pooling" and min(self.shapes[bottom][1:]) < 2:
                continue
            following = top if kind == "ReLU" else self._name("chosen")
            self._write(self._name(kind), kind, [top], [following], more)
            top = following
        loss = self._name("loss")
        self._write(loss, "Reduction", [top], [loss], "reduction_param { operation: SUMSQ } loss_weight: 0.1")

    def _observer(self) -> None:
        """A layer without a gradient that reads what learns."""
        bottom = self._pick()
        kind = self.random.choice(["Silence", "ArgMax", "Threshold"])
        name = self._name(kind)
        self._write(name, kind, [bottom], [] if kind == "Silence" else [name])

    def _reshape(self) -> None:
        bottom = self._pick()
        channels, height, width = self.shapes[bottom]
        more = f"reshape_param {{ shape {{ dim: 0 dim: {channels} dim: {width} dim: {height} }} }}"
        self._layer("Reshape", [bottom], more, (channels, width, height))

    def _user_layer(self) -> None:
        bottom = self._pick()
        kind = self.random.choice(["Times", "Reference"])
        bottoms = [bottom] if kind == "Times" else [bottom, self._pick()]
        more = f'python_param {{ module: "tests.pycaffe.user_layers" layer: "{kind}" param_str: "-0.5" }}'
        self._layer("Python", bottoms, more, self.shapes[bottom])

    # --- the end ------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        ends = sorted(self.unread - {"x"}) or [self._convolution("x")]
        self.random.shuffle(ends)
        for number, blob in enumerate(ends):
            if number and self.random.random() < 0.3:
                if self.random.random() < 0.5:
                    self._write(self._name("silence"), "Silence", [blob], [])
                continue
            self._loss(blob)

    def _loss(self, blob: str) -> None:
        weight = self.random.choice(["", "", "loss_weight: 0.3", "loss_weight: 2"])
        kind = self.random.choice(["SoftmaxWithLoss"] * 4 + ["EuclideanLoss", "Reduction", "HingeLoss", "pixels"])
        name = self._name("loss")
        if kind == "Reduction":
            self._write(name, kind, [blob], [name], "reduction_param { operation: SUMSQ } loss_weight: 0.1")
            return
        score = self._scores(blob)
        if self.random.random() < 0.3:
            hidden = score
            self._write(self._name("relu"), "ReLU", [hidden], [hidden])
            score = self._scores(hidden)
        if kind == "EuclideanLoss":
            self._write(name, kind, [score, self._scores(self._pick())], [name], weight)
        elif kind == "HingeLoss":
            self._write(name, kind, [score, "label"], [name], weight)
        else:
            self._write(name, "SoftmaxWithLoss", [score, "label"], [name], weight)
        if self.random.random() < 0.3:
            accuracy = self._name("accuracy")
            self._write(accuracy, "Accuracy", [score, "label"], [accuracy])

    def _scores(self, bottom: str) -> str:
        top, filler = (
            self._name("ip"),
            'weight_filler { type: "xavier" } bias_filler { type: "uniform" min: -0.1 max: 0.1 }',
        )
        self._write(top, "InnerProduct", [bottom], [top], f"inner_product_param {{ num_output: {CLASSES} {filler} }}")
        return top

    # --- text ---------------------------------------------------------------------------------------------------------

    def _pick(self) -> str:
        """A blob, rather one that nobody has read yet."""
        unread = sorted(self.unread)
        if unread and self.random.random() < 0.6:
            return self.random.choice(unread)
        return self.random.choice(list(self.shapes))

    def _source(self, name: str, holds: str, filler: str, dims: str = "") -> None:
        """A blob that comes from outside: numbers of this filler for each sample."""
        self.inputs[name] = holds
        shape = f"shape {{ dim: {self.batch} {dims} }}"
        of_data = f"dummy_data_param {{ {shape} data_filler {{ {filler} }} }}"
        kind, param = ("Input", f"input_param {{ {shape} }}") if self.fed else ("DummyData", of_data)
        self.layers.append(f'layer {{ name: "{name}" type: "{kind}" top: "{name}" {param} }}')

    def _name(self, kind: str) -> str:
        self.numbers[kind] = self.numbers.get(kind, 0) + 1
        return f"{kind.lower()}{self.numbers[kind]}"

    def _made(self, blob: str, shape: Shape) -> None:
        self.shapes[blob] = shape
        self.unread.add(blob)

    def _frozen(self, count: int) -> str:
        """Param specs of which some do not learn."""
        if self.random.random() < 0.7:
            return ""
        return " ".join(f"param {{ lr_mult: {self.random.choice([0, 0, 1])} }}" for _ in range(count))

    def _layer(
        self,
        kind: str,
        bottoms: list[str],
        more: str,
        shape: Shape,
        in_place: bool = False,
        propagate: list[bool] | None = None,
    ) -> str:
        name = self._name(kind)
        top = bottoms[0] if in_place else name
        if propagate is None and self.random.random() < 0.12:
            propagate = [self.random.random() < 0.5 for _ in bottoms]
        down = " ".join(f"propagate_down: {str(flag).lower()}" for flag in propagate or [])
        self._write(name, kind, bottoms, [top], f"{more} {down}")
        self._made(top, shape)
        return top

    def _write(self, name: str, kind: str, bottoms: list[str], tops: list[str], more: str = "") -> None:
        blobs = " ".join([f'bottom: "{blob}"' for blob in bottoms] + [f'top: "{blob}"' for blob in tops])
        self.layers.append(f'layer {{ name: "{name}" type: "{kind}" {blobs} {more} }}')
        self.unread -= set(bottoms)
