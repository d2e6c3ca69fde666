"""Random nets for several workers: layers along every axis, samples that are combined, constants, losses from parts."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np

Shape = tuple[int, ...]

ROWS = 24  # of the file
BATCHES = (12, 6, 7)
DATA: dict[str, Shape] = {"v": (4,), "u": (4,), "m": (3, 4), "n": (3, 4), "img": (2, 4, 4)}  # shapes of a row
PYTHON = """
import caffe
import numpy as np


class Shaped(caffe.Layer):
    def setup(self, bottom, top): pass
    def reshape(self, bottom, top): top[0].reshape(*bottom[0].shape)


class Centred(Shaped):
    def forward(self, bottom, top): top[0].data[...] = bottom[0].data - bottom[0].data.mean(axis=0)
    def backward(self, top, down, bottom):
        if down[0]: bottom[0].diff[...] = top[0].diff - top[0].diff.mean(axis=0)


class Doubled(Shaped):
    by_sample = True
    def forward(self, bottom, top): top[0].data[...] = 2 * bottom[0].data
    def backward(self, top, down, bottom):
        if down[0]: bottom[0].diff[...] = 2 * top[0].diff


class Loss(caffe.Layer):
    def setup(self, bottom, top): pass
    def reshape(self, bottom, top): top[0].reshape(1)
    def forward(self, bottom, top): top[0].data[...] = (bottom[0].data ** 2).sum() / bottom[0].data.shape[0]
    def backward(self, top, down, bottom):
        if down[0]: bottom[0].diff[...] = 2 * bottom[0].data / bottom[0].data.shape[0]
"""


def write_data(folder: Path) -> None:
    """The HDF5 files and the module of the nets."""
    import h5py

    draw = np.random.default_rng(3)
    with h5py.File(folder / "rows.h5", "w") as file:
        for name, shape in DATA.items():
            file[name] = draw.normal(size=(ROWS, *shape)).astype("f4")
        file["label"] = draw.integers(0, 4, ROWS).astype("f4")
        file["labels"] = draw.integers(0, 4, (ROWS, 3)).astype("f4")
        file["pick"] = (draw.random(ROWS) < 0.6).astype("f4")
        file["go_on"] = (draw.random((ROWS, 3)) < 0.8).astype("f4")
        for batch in BATCHES:
            file[f"from{batch}"] = draw.integers(0, batch, ROWS).astype("f4")
    with h5py.File(folder / "row.h5", "w") as file:
        file["H"] = (np.eye(4) + 0.1 * draw.random((4, 4))).astype("f4").reshape(1, 1, 4, 4)
        file["one"] = draw.normal(size=(1, 4)).astype("f4")
    for name in ("rows", "row"):
        (folder / f"{name}.txt").write_text(f"{folder / name}.h5\n")
    (folder / "placed_layers.py").write_text(PYTHON)


class PlacedNet:
    """The text of the net of this seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.batch = self.random.choice(BATCHES)
        self.layers: list[str] = []
        self.shapes: dict[str, Shape] = {}  # of blobs of which learning may come
        self.rows: dict[str, Shape] = {}  # of other blobs
        self.unread: set[str] = set()
        self.read: set[str] = set()
        self.has_loss = False
        tops = [*DATA, "label", "labels", "pick", "go_on", f"from{self.batch}"]
        self._reader("rows", tops, self.batch)
        for name, shape in DATA.items():
            self.shapes[name] = (self.batch, *shape)
        self.rows = {"label": (self.batch,), "labels": (self.batch, 3), "go_on": (self.batch, 3)}
        if self.random.random() < 0.3:
            self._reader("row", ["H", "one"], 1)
        self._learn(self.random.choice(list(DATA)))
        for _ in range(self.random.randint(2, 7)):
            self._grow()
        self._finish()
        self.text = "\n".join(self.layers)

    def _reader(self, source: str, tops: list[str], batch: int) -> None:
        named = " ".join(f'top: "{top}"' for top in tops)
        field = f'hdf5_data_param {{ source: "{self.folder / source}.txt" batch_size: {batch} }}'
        self.layers.append(f'layer {{ name: "{source}" type: "HDF5Data" {named} {field} }}')
        self.unread |= set(tops)

    # --- layers -------------------------------------------------------------------------------------------------------

    def _layer(self, kind: str, bottoms: list[str], more: str, shape: Shape, in_place: bool = False) -> str:
        number = len(self.layers)
        name = self.random.choice(["", "", "twice"]) if self.random.random() < 0.1 else f"{kind.lower()}{number}"
        top = bottoms[0] if in_place else f"b{number}"
        named = " ".join(f'bottom: "{bottom}"' for bottom in bottoms)
        self.layers.append(f'layer {{ name: "{name}" type: "{kind}" {named} top: "{top}" {more} }}')
        self.unread -= set(bottoms)
        self.read |= set(bottoms)
        self.unread.add(top)
        self.shapes[top] = shape
        return top

    def _pick(self, axes: range | None = None) -> str:
        """A blob, more often a new one."""
        fits = [blob for blob, shape in self.shapes.items() if axes is None or len(shape) in axes]
        return self.random.choice([*fits, *fits[-3:], *fits[-1:]]) if fits else ""

    def _learn(self, bottom: str, axis: int | None = None) -> str:
        shape = self.shapes[bottom]
        axis = self.random.randint(1, len(shape) - 1) if axis is None and len(shape) > 1 else axis or 0
        filler = 'weight_filler { type: "xavier" } bias_filler { type: "uniform" min: -0.1 max: 0.1 }'
        return self._layer(
            "InnerProduct",
            [bottom],
            f"inner_product_param {{ num_output: 4 axis: {axis} {filler} }}",
            (*shape[:axis], 4),
        )

    def _grow(self) -> None:
        steps = [getattr(self, name) for name in dir(self) if name.startswith("_do_")]
        self.random.choice(steps)()

    def _axis(self, shape: Shape) -> int:
        return self.random.randrange(len(shape))

    def _do_inner_product(self) -> None:
        if bottom := self._pick(range(1, 6)):
            self._learn(bottom, 0 if self.random.random() < 0.2 else None)

    def _do_pointwise(self) -> None:
        kinds = {
            "ReLU": "",
            "Sigmoid": "",
            "TanH": "",
            "AbsVal": "",
            "Power": "power_param { power: 2 scale: 0.5 shift: 0.1 }",
            "Exp": "exp_param { scale: 0.1 }",
            "Dropout": "dropout_param { dropout_ratio: 0.3 }",
            "ELU": "",
        }
        kind = self.random.choice(list(kinds))
        bottom = self._pick(range(1, 6) if kind == "Dropout" else None)
        in_place = kind != "AbsVal" and bottom in self.unread and bottom not in DATA and self.random.random() < 0.5
        self._layer(kind, [bottom], kinds[kind], self.shapes[bottom], in_place)

    def _do_softmax(self) -> None:
        if bottom := self._pick(range(1, 6)):
            shape = self.shapes[bottom]
            in_place = bottom in self.unread and bottom not in DATA and self.random.random() < 0.3
            self._layer("Softmax", [bottom], f"softmax_param {{ axis: {self._axis(shape)} }}", shape, in_place)

    def _do_chain(self) -> None:
        """Layers in place on one blob, of which some combine samples."""
        if bottom := self._pick(range(1, 5)):
            shape, top = self.shapes[bottom], self._learn(bottom) if self.random.random() < 0.5 else ""
            kinds = ["ReLU", "Sigmoid", "TanH", "ELU", "Softmax", "Softmax", "Centred", "Doubled", "Scale"]
            for kind in self.random.sample(kinds, 3):
                shape = self.shapes[top] if top else shape
                field = ""
                if kind == "Softmax":
                    field = f"softmax_param {{ axis: {self._axis(shape)} }}"
                if kind == "Scale":
                    field = f"scale_param {{ axis: {self._axis(shape)} }}"
                if kind in ("Centred", "Doubled"):
                    kind, field = "Python", f'python_param {{ module: "placed_layers" layer: "{kind}" }}'
                top = self._layer(kind, [top or bottom], field, shape, in_place=bool(top))

    def _do_slice(self) -> None:
        bottom = self._pick(range(1, 6))
        if not bottom:
            return
        shape = self.shapes[bottom]
        axis = self._axis(shape)
        if shape[axis] < 2:
            return
        equal = shape[axis] % 2 == 0 and self.random.random() < 0.5
        point = shape[axis] // 2 if equal else self.random.randint(1, shape[axis] - 1)
        number = len(self.layers)
        where = f"axis: {axis}" + ("" if equal else f" slice_point: {point}")
        first = self._layer(
            "Slice", [bottom], f'top: "c{number}" slice_param {{ {where} }}', self._cut(shape, axis, point)
        )
        self.unread.add(f"c{number}")
        self.shapes[f"c{number}"] = self._cut(shape, axis, shape[axis] - point)
        if equal and self.random.random() < 0.5:
            self._layer("EuclideanLoss", [first, f"c{number}"], "loss_weight: 0.5", ())
            self.has_loss = True

    @staticmethod
    def _cut(shape: Shape, axis: int, size: int) -> Shape:
        return (*shape[:axis], size, *shape[axis + 1 :])

    def _do_concat(self) -> None:
        bottom = self._pick(range(1, 6))
        if bottom:
            shape = self.shapes[bottom]
            like = [blob for blob, other in self.shapes.items() if other == shape and blob != bottom]
            if like:
                axis = self._axis(shape)
                bottoms = [bottom, self.random.choice(like)]
                top_shape = self._cut(shape, axis, 2 * shape[axis])
                self._layer("Concat", bottoms, f"concat_param {{ axis: {axis} }}", top_shape)

    def _do_eltwise(self) -> None:
        bottom = self._pick()
        like = [blob for blob, shape in self.shapes.items() if shape == self.shapes[bottom] and blob != bottom]
        if like:
            operation = self.random.choice(["SUM", "PROD", "MAX"])
            bottoms = [bottom, self.random.choice(like)]
            self._layer("Eltwise", bottoms, f"eltwise_param {{ operation: {operation} }}", self.shapes[bottom])

    def _do_reshape(self) -> None:
        bottom = self._pick(range(1, 6))
        if not bottom:
            return
        shape = self.shapes[bottom]
        count = math.prod(shape)
        if not count:
            return
        first = self.random.choice([n for n in range(1, count + 1) if count % n == 0])
        second = self.random.choice([n for n in range(1, count // first + 1) if count // first % n == 0])
        new = self.random.choice([(count,), (first, count // first), (first, second, count // first // second)])
        if self.random.random() < 0.5:
            new = (shape[0], count // shape[0])
        dims: list[int] = list(new)
        if self.random.random() < 0.5:
            dims[self._axis(new)] = -1
        if dims[0] == shape[0] and self.random.random() < 0.5:
            dims[0] = 0
        named = " ".join(f"dim: {dim}" for dim in dims)
        self._layer("Reshape", [bottom], f"reshape_param {{ shape {{ {named} }} }}", new)

    def _do_flatten(self) -> None:
        if bottom := self._pick(range(1, 6)):
            shape = self.shapes[bottom]
            start = self._axis(shape)
            end = self.random.randint(start, len(shape) - 1)
            new = (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :])
            self._layer("Flatten", [bottom], f"flatten_param {{ axis: {start} end_axis: {end} }}", new)

    def _do_reduction(self) -> None:
        if bottom := self._pick(range(1, 6)):
            axis = self._axis(self.shapes[bottom])
            operation = self.random.choice(["SUM", "MEAN", "SUMSQ", "ASUM"])
            field = f"reduction_param {{ operation: {operation} axis: {axis} coeff: 0.2 }}"
            self._layer("Reduction", [bottom], field, self.shapes[bottom][:axis])

    def _do_scale(self) -> None:
        bottom = self._pick(range(1, 6))
        if not bottom:
            return
        shape, kind = self.shapes[bottom], self.random.choice(["Scale", "Bias"])
        field, axis = f"{kind.lower()}_param", self._axis(shape)
        operands = [
            (blob, axis)
            for blob, other in self.shapes.items()
            for axis in range(len(shape))
            if other and blob != bottom and shape[axis : axis + len(other)] == other
        ]
        more = " bias_term: true" if kind == "Scale" and self.random.random() < 0.3 else ""
        if operands and self.random.random() < 0.6:
            other, axis = self.random.choice(operands)
            self._layer(kind, [bottom, other], f"{field} {{ axis: {axis}{more} }}", shape)
            return
        axes = self.random.choice([-1, 1, 0])
        self._layer(kind, [bottom], f"{field} {{ axis: {axis} num_axes: {axes}{more} }}", shape)

    def _do_tile(self) -> None:
        if bottom := self._pick(range(1, 5)):
            shape = self.shapes[bottom]
            axis = self._axis(shape)
            self._layer(
                "Tile", [bottom], f"tile_param {{ axis: {axis} tiles: 2 }}", self._cut(shape, axis, 2 * shape[axis])
            )

    def _do_permute(self) -> None:
        if bottom := self._pick(range(2, 5)):
            shape = self.shapes[bottom]
            order = self.random.sample(range(len(shape)), len(shape))
            named = " ".join(f"order: {axis}" for axis in order)
            self._layer("Permute", [bottom], f"permute_param {{ {named} }}", tuple(shape[axis] for axis in order))

    def _do_product(self) -> None:
        if a := self._pick(range(2, 5)):
            *batch, rows, columns = self.shapes[a]
            fits = [b for b, shape in self.shapes.items() if shape in ((*batch, rows, columns), (rows, columns))]
            side, n = self.random.choice([("a", columns), ("b", rows)])
            ends = [a, self.random.choice(fits)]
            self._layer("MatMul", ends, f"matmul_param {{ transpose_{side}: true }}", (*batch, n, n))

    def _do_reverse(self) -> None:
        if bottom := self._pick(range(1, 5)):
            shape = self.shapes[bottom]
            self._layer("Reverse", [bottom], f"reverse_param {{ axis: {self._axis(shape)} }}", shape)

    def _do_crop(self) -> None:
        bottom = self._pick(range(1, 5))
        shape = self.shapes.get(bottom, ())
        like = [
            blob
            for blob, other in self.shapes.items()
            if shape and len(other) == len(shape) and all(a <= b for a, b in zip(other, shape, strict=True))
        ]
        if like:
            axis, other = self._axis(shape), self.random.choice(like)
            self._layer(
                "Crop", [bottom, other], f"crop_param {{ axis: {axis} }}", (*shape[:axis], *self.shapes[other][axis:])
            )

    def _do_normalization(self) -> None:
        kind = self.random.choice(["BatchNorm", "MVN", "PReLU", "Normalize"])
        bottom = self._pick(range(4, 5) if kind == "MVN" else range(2, 5))
        if bottom:
            more = "norm_param { across_spatial: false }" if kind == "Normalize" else ""
            self._layer(kind, [bottom], more, self.shapes[bottom])

    def _do_image_layer(self) -> None:
        if bottom := self._pick(range(4, 5)):
            shape = self.shapes[bottom]
            if min(shape[2:]) < 2:
                return
            if self.random.random() < 0.5:
                size = tuple(-(-(n - 2) // 2) + 1 for n in shape[2:])
                field = "pooling_param { kernel_size: 2 stride: 2 pool: AVE }"
                self._layer("Pooling", [bottom], field, (*shape[:2], *size))
            else:
                field = 'convolution_param { num_output: 3 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } }'
                self._layer("Convolution", [bottom], field, (shape[0], 3, *shape[2:]))

    def _do_rows(self) -> None:
        fits = [blob for blob, shape in self.shapes.items() if shape[:1] == (self.batch,)]
        bottom = self.random.choice(fits)
        if self.random.random() < 0.5:
            self._layer("BatchReindex", [bottom, f"from{self.batch}"], "", self.shapes[bottom])
            return
        top = self._layer("Filter", [bottom, "pick"], "", self.shapes[bottom])
        shape = self.shapes.pop(top)  # nothing else knows how many rows it has
        if self.random.random() < 0.5:
            self.shapes[top] = shape
            after = self._layer(self.random.choice(["Sigmoid", "TanH"]), [top], "", shape)
            del self.shapes[top]
            self.shapes[after] = shape
            top = self._learn(after) if len(shape) > 1 and self.random.random() < 0.5 else after
            self.shapes.pop(after, None)
        self.shapes.pop(top, None)
        weight = "" if self.random.random() < 0.3 else "power: 2"
        self._layer("Power", [top], f"power_param {{ {weight} }} loss_weight: 0.1", ())
        self.shapes.pop(f"b{len(self.layers) - 1}")
        self.has_loss = True

    def _do_recurrent(self) -> None:
        kind = self.random.choice(["LSTM", "RNN"])
        bottom = self._pick(range(3, 4))
        shape = self.shapes.get(bottom, ())
        if not shape:
            return
        if shape[:2] == (self.batch, 3) and self.random.random() < 0.7:
            marks = "go_on"
        elif math.prod(shape[:2]) == self.batch:
            field = f"reshape_param {{ shape {{ dim: {shape[0]} dim: {shape[1]} }} }}"
            marks = self._layer("Reshape", ["pick"], field, shape[:2])
            del self.shapes[marks]
        elif shape[:2] == (3, self.batch):
            marks = self._layer("Permute", ["go_on"], "permute_param { order: 1 order: 0 }", shape[:2])
            del self.shapes[marks]
        else:
            return
        filler = 'weight_filler { type: "uniform" min: -0.4 max: 0.4 }'
        self._layer(kind, [bottom, marks], f"recurrent_param {{ num_output: 4 {filler} }}", (*shape[:2], 4))

    def _do_user_layer(self) -> None:
        kind = self.random.choice(["Centred", "Doubled", "Loss"])
        bottom = self._pick(range(1, 5))
        if bottom:
            more = "loss_weight: 0.3" if kind == "Loss" else ""
            field = f'python_param {{ module: "placed_layers" layer: "{kind}" }} {more}'
            top = self._layer("Python", [bottom], field, (1,) if kind == "Loss" else self.shapes[bottom])
            if kind == "Loss":
                del self.shapes[top]
                self.has_loss = True

    def _do_constant(self) -> None:
        bottom = self._pick(range(1, 5))
        if bottom:
            shape = self.shapes[bottom]
            number = len(self.layers)
            kind, field = self.random.choice(
                [("DummyData", 'dummy_data_param {{ data_filler {{ type: "constant" value: 0.3 }} shape {{ {} }} }}'),
                 ("DummyData", 'dummy_data_param {{ data_filler {{ type: "uniform" max: 1 }} shape {{ {} }} }}'),
                 ("Parameter", "parameter_param {{ shape {{ {} }} }}")]
            )  # fmt: skip
            dims = " ".join(f"dim: {dim}" for dim in shape)
            self.layers.append(f'layer {{ name: "k{number}" type: "{kind}" top: "k{number}" {field.format(dims)} }}')
            self.unread.add(f"k{number}")
            self.shapes[f"k{number}"] = shape

    def _do_loss(self) -> None:
        bottom = self._pick(range(2, 5))
        shape = self.shapes.get(bottom, ())
        kind = self.random.choice(["EuclideanLoss", "SoftmaxWithLoss", "Accuracy", "InfogainLoss", "weight"])
        if not shape or kind == "weight":
            bottom = self._pick()
            self._layer("Power", [bottom], "power_param { power: 2 } loss_weight: 0.05", self.shapes[bottom])
        elif kind == "EuclideanLoss":
            like = [blob for blob, other in self.shapes.items() if other == shape and blob != bottom]
            if not like:
                return
            self._layer(kind, [bottom, self.random.choice(like)], "loss_weight: 0.5", ())
        else:
            axis = self._axis(shape)
            labels = [
                blob for blob, other in self.rows.items()
                if blob != "go_on" and math.prod(other) * shape[axis] == math.prod(shape)
            ]  # fmt: skip
            if not labels or shape[axis] < 4:
                return
            bottoms, ignore = [bottom, self.random.choice(labels)], self.random.choice(["", "ignore_label: 1"])
            field = f"loss_param {{ {ignore} }} softmax_param {{ axis: {axis} }} loss_weight: 0.5"
            if kind == "Accuracy":
                field = f"accuracy_param {{ axis: {axis} {ignore} }}"
            if kind == "InfogainLoss":
                if "H" not in self.unread | self.read or shape[axis] != 4:
                    return
                bottoms, field = [*bottoms, "H"], f"infogain_loss_param {{ axis: {axis} }} loss_weight: 0.5"
            del self.shapes[self._layer(kind, bottoms, field, ())]
            if kind == "Accuracy":
                return
        self.has_loss = True

    def _finish(self) -> None:
        """The last blobs are losses, by parts or as they are; others are silenced or outputs."""
        last = self._pick()
        if not self.has_loss or self.random.random() < 0.5:
            if self.random.random() < 0.5 and self.shapes[last]:
                field = "reduction_param { operation: SUMSQ coeff: 0.1 }"
                last = self._layer("Reduction", [last], field, ())
                if self.random.random() < 0.5:
                    last = self._layer("Power", [last], "power_param { power: 0.5 shift: 0.1 }", ())
            self._layer("Power", [last], "power_param { power: 2 scale: 0.5 } loss_weight: 0.2", self.shapes[last])
        for blob in sorted(self.unread):
            if blob in DATA or blob in self.rows or blob in ("pick", "H", "one") or blob.startswith("from"):
                self.layers.append(f'layer {{ name: "silence {blob}" type: "Silence" bottom: "{blob}" }}')
