"""Writes the files of a training for a data set: train_val net, solver and deploy net, as a person would write them.

The net is one of the folder `models`, or any other train_val or deploy net. It gets the data set's classes, data layers
for its databases, and a solver for a number of epochs.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format

from fcaffe import log
from fcaffe.data.backends import open_database
from fcaffe.data.database import new_folder
from fcaffe.data.form import INFO, LABELS, MEAN, Form, read_form, read_labels
from fcaffe.errors import FcaffeError, UsageError
from fcaffe.model_files import Model, read_model, write_model
from fcaffe.net.build.filter import filter_net
from fcaffe.proto import StoredBlob, read_net, read_solver
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.text import text_of
from fcaffe.suggestions import did_you_mean
from fcaffe.tools.deploy import ENDS, deploy_net, is_source, test_layers
from fcaffe.tools.preprocessing import NOTE
from fcaffe.tools.shapes import hollow_net

TRAIN_VAL, SOLVER, DEPLOY, WEIGHTS = "train_val.prototxt", "solver.prototxt", "deploy.prototxt", "weights.caffemodel"
WEIGHTED = {"Convolution": "convolution_param", "InnerProduct": "inner_product_param"}
FITTED = ("BatchNorm", "Scale", "Bias", "PReLU")  # between the last layer with num_output and the loss
POLICIES = ["poly", "multistep", "cosine"]
LARGEST_BATCH = 64
TEST_BATCHES = (100, 8)  # largest and least preferred batch of a test
LARGEST_SIDE = 1024
LOWERED = 0.1  # rate of the layers with weights, relative to those that start afresh
BYTE_SCALE = 1 / 256
LINE = 110  # characters of a message on one line


@dataclass
class Data:
    """A data set that `fcaffe dataset` has written."""

    folder: str
    form: Form
    labels: list[str]
    train: int  # pictures
    test: int

    @property
    def size(self) -> tuple[int, int]:
        assert self.form.size is not None
        return self.form.size


@dataclass
class Template:
    """The net to start from: its NetParameter, the solver beside it, and what its prototxt says of pictures."""

    name: str
    net: Any
    solver: Any
    note: re.Match[str] | None = None


@dataclass
class Project:
    """What was written, and what was changed of the template, for the user to read."""

    files: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    weights: str = ""


def read_data(folder: str) -> Data:
    """The data set in a folder. Raises UsageError."""
    form, _ = read_form(folder)
    if form is None:
        raise UsageError(f"{folder} has no {INFO}: name a folder that fcaffe dataset has written")
    counts = []
    for part in ("train", "test"):
        with log.quiet(), contextlib.closing(open_database(os.path.join(folder, f"{part}_lmdb"))) as database:
            counts.append(database.entries)
    return Data(folder, form, read_labels(os.path.join(folder, LABELS)), *counts)


def models_folder() -> Path:
    """The folder of fcaffe's nets: in the package, or in the repository that it lies in."""
    package = Path(__file__).parents[1]
    inner = package / "models"
    return inner if inner.is_dir() else package.parent / "models"


def read_template(net: str) -> Template:
    """The net of this name among fcaffe's models, or in this prototxt. Raises UsageError."""
    folder = models_folder()
    known = sorted(path.parent.name for path in folder.glob(f"*/{TRAIN_VAL}"))
    known = [
        name for name in known if any(one.type == "SoftmaxWithLoss" for one in _read(folder / name / TRAIN_VAL).layer)
    ]
    if net in known:
        return Template(net, _read(folder / net / TRAIN_VAL), read_solver(str(folder / net / SOLVER)))
    if not os.path.exists(net):
        raise UsageError(
            f"--net {net}: there is no such file or net{did_you_mean(net, known)}; known are {', '.join(known)}"
        )
    solver = os.path.join(os.path.dirname(net), SOLVER)
    beside = pb.SolverParameter()
    if os.path.basename(net) == TRAIN_VAL and os.path.exists(solver):
        beside = read_solver(solver)
    name = os.path.splitext(os.path.basename(net))[0]
    return Template(name, _read(net), beside, NOTE.search(text_of(net)))


def _read(path: str | os.PathLike[str]) -> Any:
    with log.quiet():
        return read_net(path)


def write_project(
    out: str,
    data: Data,
    template: Template,
    weights: str,
    epochs: float,
    policy: str,
    batch: int | None,
    rate: float | None,
) -> Project:
    """Write the files of a training to the new folder `out`, which appears complete or not at all.

    Args:
        weights: the path of a model for the net, or "".
        batch: of the training; by default the template's, at most LARGEST_BATCH.
        rate: base_lr; by default the template's, scaled to the batch.

    Raises FcaffeError: the folder exists, or the net does not suit the data.
    """
    project = Project(weights=weights)
    name = re.sub(r"\W+", "_", os.path.basename(os.path.normpath(out)))
    model = read_model(weights) if weights else None
    layers, comments = _trainable(template, data, name, project)
    theirs = _transforms(template, data, model, project)
    batch = batch or max(1, min(_batch(template, pb.TRAIN), LARGEST_BATCH, data.train))
    test_batch = _test_batch(data.test)
    readers = [
        _reader("train", data, theirs[0], batch, layers.data),
        _reader("test", data, theirs[1], test_batch, layers.data),
    ]
    net = pb.NetParameter(name=name, layer=[*readers, *layers.body])
    _pool_globally(net, template, data, comments, project)
    _check_size(net, data, template)
    if model is not None:
        model = _suited(model, template, data)
        _rename_misfits(net, model, name, data, comments, project)
        _lower(net, model, data)
    with new_folder(out, "folder") as folder:
        if template.note is not None and model is not None:
            write_model(os.path.join(folder, WEIGHTS), model)
            project.weights = os.path.join(out, WEIGHTS)
        texts = {
            TRAIN_VAL: _net_text(net, comments, template, data),
            DEPLOY: _deploy_text(net, data, out),
            SOLVER: _solver_text(out, template, data, epochs, policy, batch, test_batch, rate),
            LABELS: "".join(f"{label}\n" for label in data.labels),
            INFO: data.form.info(),
        }
        for file_name, text in texts.items():
            Path(folder, file_name).write_text(text, encoding="utf-8", errors="surrogateescape")
            project.files.append(os.path.join(out, file_name))
    return project


# --- the layers -------------------------------------------------------------------------------------------------------


@dataclass
class _Layers:
    body: list[Any]
    data: tuple[str, str]  # the blobs of pictures and of labels


def _trainable(template: Template, data: Data, name: str, project: Project) -> tuple[_Layers, dict[str, str]]:
    """The layers of the template behind its data, with losses, for the classes of the data; and comments by layer."""
    sources = [layer for layer in template.net.layer if is_source(layer)]
    if not sources:
        raise UsageError(f"--net {template.name} has no layer that reads data; give a train_val or deploy net")
    first = sources[0]
    blobs = (first.top[0], first.top[1] if len(first.top) > 1 else "label")
    net = pb.NetParameter()
    for layer in template.net.layer:
        if not is_source(layer):
            net.layer.add().CopyFrom(layer)
    losses = [layer for layer in net.layer if ENDS.get(layer.type) == "Softmax"]
    if not losses:
        losses = [_with_loss(net, blobs[1], template)]
    comments: dict[str, str] = {}
    classes = len(data.labels)
    for loss in losses:
        loss.ClearField("infogain_loss_param")
        for layer in _ends_of(net, loss, template):
            if layer.name in comments:
                continue
            comments[layer.name + f"_{name}"] = f"{classes} classes; its own name, so that it starts afresh"
            layer.name += f"_{name}"
            if layer.type in WEIGHTED:
                param = getattr(layer, WEIGHTED[layer.type])
                project.told.append(f"{layer.name}: {classes} outputs instead of {param.num_output}")
                param.num_output = classes
    for layer in [one for one in net.layer if one.type == "Accuracy" and one.accuracy_param.top_k > classes]:
        net.layer.remove(layer)
    for layer in net.layer:
        if layer.type in WEIGHTED and not getattr(layer, WEIGHTED[layer.type]).HasField("weight_filler"):
            kind = "msra" if layer.type == "Convolution" else "xavier"
            getattr(layer, WEIGHTED[layer.type]).weight_filler.type = kind
        if layer.type == "BatchNorm":
            layer.batch_norm_param.ClearField("use_global_stats")
    return _Layers(list(net.layer), blobs), comments


def _with_loss(net: Any, label: str, template: Template) -> Any:
    """Give a deploy net a loss, and an accuracy, instead of the Softmax at its end. Returns the loss."""
    read = {blob for layer in net.layer for blob in layer.bottom}
    ends = [layer for layer in net.layer if layer.top and layer.top[0] not in read]
    if len(ends) != 1:
        raise UsageError(
            f"--net {template.name} has {len(ends)} outputs, and a classifier has one: give its train_val net"
        )
    scores = ends[0].top[0]
    if ends[0].type == "Softmax":
        scores = ends[0].bottom[0]
        net.layer.remove(ends[0])
    accuracy = net.layer.add(name="accuracy", type="Accuracy", bottom=[scores, label], top=["accuracy"])
    accuracy.include.add(phase=pb.TEST)
    return net.layer.add(name="loss", type="SoftmaxWithLoss", bottom=[scores, label], top=["loss"])


def _ends_of(net: Any, loss: Any, template: Template) -> Iterator[Any]:
    """Yields the layers with a size for each class in front of a loss, back to the one with num_output."""
    blob = loss.bottom[0]
    position = next(
        index for index, layer in enumerate(net.layer) if (layer.name, layer.type) == (loss.name, loss.type)
    )
    for layer in reversed(net.layer[:position]):
        if blob not in layer.top:
            continue
        if layer.type in WEIGHTED:
            yield layer
            return
        if len(layer.bottom) != 1:
            break
        if layer.type in FITTED:
            yield layer
        blob = layer.bottom[0]
    raise UsageError(
        f'--net {template.name}: no InnerProduct or Convolution gives the classes in front of "{loss.name}"; write '
        "the net by hand"
    )


def _native_side(template: Template) -> int:
    """Height and width of the template's own input; 0 if they are unknown or differ."""
    (source, *_) = [layer for layer in test_layers(template.net).layer if is_source(layer)] or [pb.LayerParameter()]
    dims = list(source.input_param.shape[0].dim) if source.input_param.shape else []
    return int(source.transform_param.crop_size or (dims[2] if len(dims) == 4 and dims[2] == dims[3] else 0))


def _pool_globally(net: Any, template: Template, data: Data, comments: dict[str, str], project: Project) -> None:
    """Let mean poolings that cover the whole map at the template's own size do so at the data's size."""
    side = _native_side(template) or _side_beside(template)
    if not side or net.layer[0].transform_param.crop_size == side or data.size == (side, side):
        return
    means = [one for one in net.layer if one.type == "Pooling" and one.pooling_param.pool == pb.PoolingParameter.AVE]
    try:
        hollow = _hollow(net, data, side, side, crops=False)
    except FcaffeError:
        return
    for layer in means:
        if not layer.pooling_param.global_pooling and hollow.blob(layer.top[0]).shape[2:] == (1, 1):
            layer.pooling_param.Clear()
            layer.pooling_param.pool, layer.pooling_param.global_pooling = pb.PoolingParameter.AVE, True
            comments[layer.name] = f"over the whole map, as at {side} x {side} pixels"
            project.told.append(f"{layer.name}: pools over the whole map, as at {side} x {side} pixels")


def _side_beside(template: Template) -> int:
    """The side of the input of the deploy net beside one of fcaffe's train_val nets; 0 if there is none."""
    path = models_folder() / template.name / DEPLOY
    deploy = _read(path) if path.is_file() else pb.NetParameter()
    return _native_side(Template("", deploy, None))


def _check_size(net: Any, data: Data, template: Template) -> None:
    """Raise UsageError if the data's pictures are too small for the net, with the least size."""
    if (problem := _problem_at(net, data, *data.size)) is None:
        return
    low, high = min(data.size), LARGEST_SIDE
    if _problem_at(net, data, high, high) is not None:
        raise UsageError(f"--net {template.name} does not suit pictures of {data.size[0]} x {data.size[1]}: {problem}")
    while high - low > 1:
        middle = (low + high) // 2
        if _problem_at(net, data, middle, middle) is None:
            high = middle
        else:
            low = middle
    raise UsageError(
        f"--net {template.name} needs pictures of at least {high} x {high} pixels, and those of {data.folder} have "
        f"{data.size[0]} x {data.size[1]}: make the data set with --size {high}x{high}, or take a net for small "
        "pictures, such as cifar10_quick"
    )


def _hollow(net: Any, data: Data, height: int, width: int, crops: bool = True) -> Any:
    """The TRAIN net without memory, for a picture of this size before the crop."""
    readers = [layer for layer in net.layer if is_source(layer)]
    crop = readers[0].transform_param.crop_size
    if crop and crops:
        height = width = min(crop, height, width)
    source = pb.LayerParameter(name="data", type="Input", top=readers[0].top)
    source.input_param.shape.add(dim=[1, data.form.channels, height, width])
    source.input_param.shape.add(dim=[1])
    made = pb.NetParameter(layer=[source, *(layer for layer in net.layer if not is_source(layer))])
    made.state.phase = pb.TRAIN
    with log.quiet(3):
        return hollow_net(filter_net(made), "")[0]


def _problem_at(net: Any, data: Data, height: int, width: int) -> str | None:
    """Why the net cannot have pictures of this size; None if it can."""
    try:
        _hollow(net, data, height, width)
    except FcaffeError as problem:
        return str(problem)
    return None


# --- the data layers --------------------------------------------------------------------------------------------------


def _transforms(template: Template, data: Data, model: Model | None, project: Project) -> tuple[Any, Any]:
    """The transform_param for training and for tests."""
    nets = [layer for layer in test_layers(template.net).layer if is_source(layer)]
    theirs = nets[0].transform_param if nets else pb.TransformationParameter()
    crop = _native_side(template)
    made = pb.TransformationParameter()
    if crop and crop < min(data.size):
        made.crop_size = crop
    elif crop > max(data.size):
        project.told.append(
            f"the net gets whole pictures of {data.size[0]} x {data.size[1]}, not crops of {crop} x {crop}"
        )
    if model is not None and template.note is not None:
        made.mean_value.extend(round(255 * value, 4) for value in _in_order(template.note, 2))
        if data.form.channels == 1:
            made.mean_value[:] = [sum(made.mean_value) / 3]
    elif model is not None and theirs.mean_value:
        made.mean_value.extend(theirs.mean_value if len(theirs.mean_value) in (1, data.form.channels) else [])
    if not made.mean_value:
        made.mean_file = os.path.join(data.folder, MEAN)
        if model is not None and theirs.mean_file and os.path.exists(theirs.mean_file) and not made.crop_size:
            made.mean_file = theirs.mean_file
        elif model is not None and theirs.mean_file:
            project.told.append(
                f"{theirs.mean_file}, which the net's prototxt names, is not there: {made.mean_file} instead"
            )
    if theirs.scale != 1 and template.note is None:
        has_bytes = theirs.mean_file or theirs.mean_value or theirs.scale < 1 / 128
        made.scale = theirs.scale if has_bytes else BYTE_SCALE
    train = pb.TransformationParameter()
    train.CopyFrom(made)
    training = [
        one for one in template.net.layer if is_source(one) and one.include and one.include[0].phase == pb.TRAIN
    ]
    if training[0].transform_param.mirror if training else crop:
        train.mirror = True
    return train, made


def _in_order(note: re.Match[str], group: int) -> list[float]:
    """The three numbers of a note, in the order of the data set's channels: blue, green, red."""
    values = [float(word) for word in note[group].replace(" ", "").strip(",").split(",")]
    if len(values) != 3:
        raise UsageError(
            f'the line "{note[0]}" of the net needs three numbers for the mean, and three for the deviation'
        )
    return values[::-1] if note[1] == "RGB" else values


def _reader(part: str, data: Data, transform: Any, batch: int, blobs: Sequence[str]) -> Any:
    layer = pb.LayerParameter(name="data", type="Data", top=blobs, transform_param=transform)
    layer.include.add(phase=pb.TRAIN if part == "train" else pb.TEST)
    layer.data_param.source = os.path.join(data.folder, f"{part}_lmdb")
    layer.data_param.batch_size = batch
    layer.data_param.backend = pb.DataParameter.LMDB
    return layer


def _batch(template: Template, phase: int) -> int:
    for layer in template.net.layer:
        if is_source(layer) and layer.type == "Data" and layer.include and layer.include[0].phase == phase:
            return int(layer.data_param.batch_size)
    return 32


def _test_batch(pictures: int) -> int:
    """A batch that divides the number of test pictures: a large one up to TEST_BATCHES, or else the next above."""
    most, least = TEST_BATCHES
    divisors = [number for number in range(1, pictures + 1) if pictures % number == 0]
    below = max(number for number in divisors if number <= most)
    above = min((number for number in divisors if number > most), default=pictures)
    return below if below >= min(least, pictures) or above > 4 * most else above


# --- weights ----------------------------------------------------------------------------------------------------------


def _suited(model: Model, template: Template, data: Data) -> Model:
    """The model with first weights for pictures of bytes in blue, green, red, if the net's prototxt notes others."""
    if template.note is None:
        return model
    (source, *_) = [layer for layer in test_layers(template.net).layer if is_source(layer)]
    readers = {layer.name for layer in template.net.layer if source.top[0] in layer.bottom}
    deviations = np.array(_in_order(template.note, 3), np.float32)
    for layer in model.layers:
        if layer.name not in readers or not layer.blobs:
            continue
        weights: Any = np.array(layer.blobs[0].data, np.float32).reshape(layer.blobs[0].shape)
        if layer.param.type != "Convolution" or weights.ndim != 4 or weights.shape[1] != 3:
            raise UsageError(
                f'the first layer "{layer.name}" is no Convolution of three channels, so the preprocessing that '
                "the net notes cannot go into its weights"
            )
        weights = weights[:, ::-1] if template.note[1] == "RGB" else weights
        weights = weights / (255 * deviations[:, None, None])
        if data.form.channels == 1:
            weights = weights.sum(axis=1, keepdims=True)
        layer.blobs[0] = StoredBlob(weights.shape, np.ascontiguousarray(weights, np.float32))
    return model


def _rename_misfits(net: Any, model: Model, name: str, data: Data, comments: dict[str, str], project: Project) -> None:
    """Rename the layers whose weights in the model have other shapes. Raises UsageError if none fits."""
    stored = {layer.name: layer for layer in model.layers if layer.blobs}
    own = _blob_shapes(net, data)
    fitting = 0
    for layer in net.layer:
        if layer.name not in stored or layer.name not in own:
            continue
        theirs = [blob.shape for blob in stored[layer.name].blobs]
        if list(map(math.prod, own[layer.name])) == list(map(math.prod, theirs)):
            fitting += 1
            continue
        project.told.append(f"{layer.name}_{name}: starts afresh, since the weights of {layer.name} have other shapes")
        layer.name += f"_{name}"
        comments[layer.name] = "the weights have other shapes, so it starts afresh"
    if not fitting:
        raise UsageError(f"{project.weights} has weights for no layer of the net: they do not belong together")


def _blob_shapes(net: Any, data: Data) -> dict[str, list[tuple[int, ...]]]:
    """The shapes of each layer's blobs."""
    with contextlib.closing(_hollow(net, data, *data.size)) as hollow:
        return {node.name: [blob.shape for blob in node.layer.blobs] for node in hollow.nodes}


def _lower(net: Any, model: Model, data: Data) -> None:
    """Lower the rates of the layers that the model has weights for."""
    stored = {layer.name for layer in model.layers if layer.blobs}
    shapes = _blob_shapes(net, data)
    for layer in net.layer:
        if layer.name not in stored or layer.type == "BatchNorm":
            continue
        while len(layer.param) < len(shapes.get(layer.name, ())):
            layer.param.add()
        for spec in layer.param:
            spec.lr_mult = round(LOWERED * spec.lr_mult, 6)


# --- the files --------------------------------------------------------------------------------------------------------


def _net_text(net: Any, comments: dict[str, str], template: Template, data: Data) -> str:
    head = [
        f"# {template.name} for the {len(data.labels)} classes of {os.path.join(data.folder, LABELS)}; by fcaffe new.",
        "# Paths begin in the folder where commands run.",
        f'name: "{net.name}"',
    ]
    return "\n".join([*head, *(_layer_text(layer, comments.get(layer.name, "")) for layer in net.layer)]) + "\n"


def _deploy_text(net: Any, data: Data, out: str) -> str:
    shape = _hollow(net, data, *data.size).blob(net.layer[0].top[0]).shape
    deploy = deploy_net(net, {top: shape for top in net.layer[0].top})
    comments = {deploy.layer[0].name: f"pictures of {data.form}; Caffe ignores the transform_param of an Input"}
    head = f'# The deploy net of {os.path.join(out, TRAIN_VAL)}.\nname: "{net.name}"'
    return "\n".join([head, *(_layer_text(layer, comments.get(layer.name, "")) for layer in deploy.layer)]) + "\n"


def _layer_text(layer: Any, comment: str = "") -> str:
    """A layer as a person writes it: short messages on one line."""
    lines = [f"  # {comment}"] if comment else []
    return "\n".join(["layer {", *lines, *_fields(layer, "  "), "}"])


def _fields(message: Any, indent: str) -> Iterator[str]:
    for descriptor, value in message.ListFields():
        values = value if hasattr(value, "extend") else [value]
        for one in values:
            if descriptor.message_type is None:
                holder = type(message)()
                if hasattr(value, "extend"):
                    getattr(holder, descriptor.name).append(one)
                else:
                    setattr(holder, descriptor.name, one)
                yield indent + text_format.MessageToString(holder, as_utf8=True, as_one_line=True).strip()
                continue
            content = text_format.MessageToString(one, as_utf8=True, as_one_line=True).strip()
            line = f"{indent}{descriptor.name} {{ {content} }}"
            if len(line) <= LINE:
                yield line
            else:
                yield f"{indent}{descriptor.name} {{"
                yield from _fields(one, indent + "  ")
                yield indent + "}"


def _solver_text(
    out: str,
    template: Template,
    data: Data,
    epochs: float,
    policy: str,
    batch: int,
    test_batch: int,
    rate: float | None,
) -> str:
    solver, an_epoch = template.solver, -(-data.train // batch)
    last = max(1, math.ceil(epochs * data.train / batch))
    if rate is None:
        whole = _batch(template, pb.TRAIN) * max(1, solver.iter_size)
        rate = float(f"{solver.base_lr * min(1, batch / whole) if solver.base_lr else 0.01:.2g}")
    lines = [
        f"# {epochs:g} epochs of {data.train:,} pictures. A test reads all {data.test:,} test pictures.",
        f'net: "{os.path.join(out, TRAIN_VAL)}"',
        f"test_iter: {data.test // test_batch}",
        f"test_interval: {min(an_epoch, last)}",
        f"base_lr: {rate:g}",
        f'lr_policy: "{policy}"',
    ]
    if policy == "poly":
        lines.append("power: 1")
    if policy == "multistep":
        lines += ["gamma: 0.1", *(f"stepvalue: {round(last * share)}" for share in (0.6, 0.85))]
    momentum = solver.momentum if solver.HasField("momentum") else 0.9
    decay = solver.weight_decay if solver.HasField("weight_decay") else 0.0005
    lines += [
        f"max_iter: {last}",
        f"momentum: {momentum:.6g}",
        f"weight_decay: {decay:.6g}",
        f"display: {max(1, min(20, an_epoch))}",
        f"average_loss: {max(1, min(20, an_epoch))}",
        f"snapshot: {max(1, -(-last // 5))}",
        f'snapshot_prefix: "{os.path.join(out, os.path.basename(os.path.normpath(out)))}"',
        "solver_mode: CPU  # --gpu 0 trains on a GPU",
    ]
    return "\n".join(lines) + "\n"
