"""Writes the files of a training for a data set: train_val net, solver and deploy net, as a person would write them.

The net is a `Template`. It gets the data set's classes, data layers for its databases, and a solver for a number of
epochs.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format

from fcaffe import log
from fcaffe.data.backends import open_database
from fcaffe.data.database import new_folder
from fcaffe.data.form import INFO, LABELS, MEAN, Form, read_form, read_labels
from fcaffe.data.mean import read_mean
from fcaffe.errors import FcaffeError, UsageError
from fcaffe.model_files import Model, read_model, write_model
from fcaffe.net.build.filter import filter_net
from fcaffe.proto import StoredBlob
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.deploy import ENDS, deploy_net, is_source
from fcaffe.tools.shapes import hollow_net
from fcaffe.tools.template import DEPLOY, SOLVER, TRAIN_VAL, Note, Template

WEIGHTS = "weights.caffemodel"
WEIGHTED = {"Convolution": "convolution_param", "InnerProduct": "inner_product_param"}
FITTED = ("BatchNorm", "Scale", "Bias", "PReLU")  # between the last layer with num_output and the loss
POLICIES = ["poly", "multistep", "cosine"]
LARGEST_BATCH = 64
TEST_BATCHES = (100, 8)  # largest and least preferred batch of a test
LARGEST_SIDE = 1024
LOWERED = 0.1  # rate of the layers with weights, relative to those that start afresh
BYTE_SCALE = 1 / 256
LONGEST_LINE = 110  # characters of a message on one line of a prototxt


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


@dataclass
class Project:
    """A training in the making. `told` says what was changed of the template, for the user to read.

    `suffix` follows the names of layers that start afresh, and `comments` are those of layers, by name.
    """

    out: str
    data: Data
    template: Template
    model: Model | None = None
    weights: str = ""
    net: Any = field(default_factory=pb.NetParameter)
    comments: dict[str, str] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    @property
    def suffix(self) -> str:
        return f"_{self.net.name}"

    def error(self, problem: str) -> UsageError:
        return UsageError(f"--net {self.template.name}{problem}")


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

    `weights` is the path of a model for the net, or "". The template's own batch is taken up to LARGEST_BATCH, and its
    base_lr is scaled to the batch. Raises FcaffeError: the folder exists, or the net does not suit the data.
    """
    project = Project(out, data, template, read_model(weights) if weights else None, weights)
    project.net.name = re.sub(r"\W+", "_", os.path.basename(os.path.normpath(out)))
    batch = batch or max(1, min(template.batch, LARGEST_BATCH, data.train))
    test_batch = _test_batch(data.test)
    _add_readers(project, batch, test_batch)
    _add_body(project)
    _fit_ends(project)
    _pool_globally(project)
    _check_size(project)
    if project.model is not None:
        _use_weights(project, project.model)
    with new_folder(out, "folder") as folder:
        if template.note is not None and project.model is not None:
            write_model(os.path.join(folder, WEIGHTS), project.model)
            project.weights = os.path.join(out, WEIGHTS)
        texts = {
            TRAIN_VAL: _net_text(project),
            DEPLOY: _deploy_text(project),
            SOLVER: _solver_text(project, epochs, policy, batch, test_batch, rate),
            LABELS: "".join(f"{label}\n" for label in data.labels),
            INFO: data.form.info(),
        }
        for file_name, text in texts.items():
            Path(folder, file_name).write_text(text, encoding="utf-8", errors="surrogateescape")
            project.files.append(os.path.join(out, file_name))
    return project


# --- the data layers --------------------------------------------------------------------------------------------------


def _add_readers(project: Project, batch: int, test_batch: int) -> None:
    """Add the data layers of both phases."""
    data, template = project.data, project.template
    sources = [layer for layer in template.net.layer if is_source(layer)]
    if not sources:
        raise project.error(" has no layer that reads data; give a train_val or deploy net")
    tops = [sources[0].top[0], sources[0].top[1] if len(sources[0].top) > 1 else "label"]
    transform = _transform(project)
    for part, phase, size in (("train", pb.TRAIN, batch), ("test", pb.TEST, test_batch)):
        layer = project.net.layer.add(name="data", type="Data", top=tops, transform_param=transform)
        layer.include.add(phase=phase)
        layer.data_param.source = os.path.join(data.folder, f"{part}_lmdb")
        layer.data_param.batch_size, layer.data_param.backend = size, pb.DataParameter.LMDB
    if template.training.transform_param.mirror if template.training.type else template.side:
        project.net.layer[0].transform_param.mirror = True


def _transform(project: Project) -> Any:
    """The transform_param for tests: the template's, with the crop, the mean and the scale that suit the data."""
    data, template, has_weights = project.data, project.template, project.model is not None
    theirs, crop = template.source.transform_param, template.side
    made = pb.TransformationParameter()
    if crop and crop < min(data.size):
        made.crop_size = crop
    elif crop > max(data.size):
        project.told.append(
            f"the net gets whole pictures of {data.size[0]} x {data.size[1]}, not crops of {crop} x {crop}"
        )
    if has_weights and template.note is not None:
        made.mean_value.extend(round(255 * value, 4) for value in template.note.mean)
        if data.form.channels == 1:
            made.mean_value[:] = [sum(made.mean_value) / 3]
    elif has_weights and len(theirs.mean_value) in (1, data.form.channels):
        made.mean_value.extend(theirs.mean_value)
    if not made.mean_value:
        made.mean_file = os.path.join(data.folder, MEAN)
        if has_weights and theirs.mean_file:
            if not os.path.exists(theirs.mean_file):
                problem = "is not there"
            elif read_mean(theirs.mean_file).shape != (data.form.channels, *data.size):
                problem = "is of other sizes"
            else:
                made.mean_file, problem = theirs.mean_file, ""
            if problem:
                named = f"{theirs.mean_file}, which the net's prototxt names,"
                project.told.append(f"{named} {problem}: {made.mean_file} instead")
    if template.note is not None:
        made.scale = template.note.scale
    elif theirs.scale != 1:
        has_bytes = theirs.mean_file or theirs.mean_value or theirs.scale < 1 / 128
        made.scale = theirs.scale if has_bytes else BYTE_SCALE
    return made


def _test_batch(pictures: int) -> int:
    """A batch that divides the number of test pictures: a large one up to TEST_BATCHES, or else the next above."""
    most, least = TEST_BATCHES
    divisors = [number for number in range(1, pictures + 1) if pictures % number == 0]
    below = max(number for number in divisors if number <= most)
    above = min((number for number in divisors if number > most), default=pictures)
    return below if below >= min(least, pictures) or above > 4 * most else above


# --- the layers -------------------------------------------------------------------------------------------------------


def _add_body(project: Project) -> None:
    """Add the layers of the template behind its data, ready to be trained."""
    classes = len(project.data.labels)
    for layer in project.template.net.layer:
        if is_source(layer) or (layer.type == "Accuracy" and layer.accuracy_param.top_k > classes):
            continue
        made = project.net.layer.add()
        made.CopyFrom(layer)
        if layer.type in WEIGHTED and not (param := getattr(made, WEIGHTED[layer.type])).HasField("weight_filler"):
            param.weight_filler.type = "msra" if layer.type == "Convolution" else "xavier"
        if layer.type == "BatchNorm":
            made.batch_norm_param.ClearField("use_global_stats")


def _fit_ends(project: Project) -> None:
    """Give each end that classifies the data's classes, and layers of its own name that start afresh."""
    net, classes, renamed = project.net, len(project.data.labels), set[str]()
    for loss in [layer for layer in net.layer if ENDS.get(layer.type) == "Softmax"] or [_with_loss(project)]:
        loss.ClearField("infogain_loss_param")
        for layer in _ends_of(project, loss):
            if layer.name in renamed:
                continue
            layer.name += project.suffix
            renamed.add(layer.name)
            project.comments[layer.name] = f"{classes} classes; its own name, so that it starts afresh"
            if layer.type in WEIGHTED:
                param = getattr(layer, WEIGHTED[layer.type])
                project.told.append(f"{layer.name}: {classes} outputs instead of {param.num_output}")
                param.num_output = classes


def _with_loss(project: Project) -> Any:
    """Give a deploy net a loss, and an accuracy, instead of the Softmax at its end. Returns the loss."""
    net = project.net
    read = {blob for layer in net.layer for blob in layer.bottom}
    ends = [layer for layer in net.layer if not is_source(layer) and layer.top and layer.top[0] not in read]
    if len(ends) != 1:
        raise project.error(f" has {len(ends)} outputs, and a classifier has one: give its train_val net")
    scores, label = ends[0].top[0], net.layer[0].top[1]
    if ends[0].type == "Softmax":
        scores = ends[0].bottom[0]
        net.layer.remove(ends[0])
    accuracy = net.layer.add(name="accuracy", type="Accuracy", bottom=[scores, label], top=["accuracy"])
    accuracy.include.add(phase=pb.TEST)
    return net.layer.add(name="loss", type="SoftmaxWithLoss", bottom=[scores, label], top=["loss"])


def _ends_of(project: Project, loss: Any) -> Iterator[Any]:
    """Yields the layers with a size for each class in front of a loss, back to the one with num_output."""
    layers, blob = list(project.net.layer), loss.bottom[0]
    for layer in reversed(layers[: layers.index(loss)]):
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
    raise project.error(
        f': no InnerProduct or Convolution gives the classes in front of "{loss.name}"; write the net by hand'
    )


# --- the size of the pictures -----------------------------------------------------------------------------------------


def _pool_globally(project: Project) -> None:
    """Let mean poolings that cover the whole map at the template's own size do so at the data's size."""
    side = project.template.side or project.template.side_of_deploy
    if not side or project.net.layer[0].transform_param.crop_size == side or project.data.size == (side, side):
        return
    try:
        hollow = _hollow(project, side, side, crops=False)
    except FcaffeError:
        return
    for layer in project.net.layer:
        param = layer.pooling_param
        if layer.type != "Pooling" or param.pool != pb.PoolingParameter.AVE or param.global_pooling:
            continue
        if hollow.blob(layer.top[0]).shape[2:] == (1, 1):
            param.Clear()
            param.pool, param.global_pooling = pb.PoolingParameter.AVE, True
            project.comments[layer.name] = f"over the whole map, as at {side} x {side} pixels"
            project.told.append(f"{layer.name}: pools {project.comments[layer.name]}")


def _check_size(project: Project) -> None:
    """Raise UsageError if the data's pictures are too small for the net, with the least size."""
    data = project.data
    if (problem := _problem_at(project, *data.size)) is None:
        return
    low, high = min(data.size), LARGEST_SIDE
    if _problem_at(project, high, high) is not None:
        raise project.error(f" does not suit pictures of {data.size[0]} x {data.size[1]}: {problem}")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _problem_at(project, middle, middle) is None else (middle, high)
    raise project.error(
        f" needs pictures of at least {high} x {high} pixels, and those of {data.folder} have "
        f"{data.size[0]} x {data.size[1]}: make the data set with --size {high}x{high}, or take a net for small "
        "pictures, such as cifar10_quick"
    )


def _problem_at(project: Project, height: int, width: int) -> str | None:
    """Why the net cannot have pictures of this size; None if it can."""
    try:
        _hollow(project, height, width)
    except FcaffeError as problem:
        return str(problem)
    return None


def _hollow(project: Project, height: int, width: int, crops: bool = True) -> Any:
    """The TRAIN net without memory, for a picture of this size before the crop."""
    reader = project.net.layer[0]
    if crops and (crop := reader.transform_param.crop_size):
        height = width = min(crop, height, width)
    source = pb.LayerParameter(name="data", type="Input", top=reader.top)
    source.input_param.shape.add(dim=[1, project.data.form.channels, height, width])
    source.input_param.shape.add(dim=[1])
    made = pb.NetParameter(layer=[source, *project.net.layer[2:]])
    made.state.phase = pb.TRAIN
    with log.quiet(3):
        return hollow_net(filter_net(made), "")[0]


# --- weights ----------------------------------------------------------------------------------------------------------


def _use_weights(project: Project, model: Model) -> None:
    """Lower the rates of layers that have weights in the model, and rename layers whose weights have other shapes.

    Raises UsageError if no layer has weights."""
    if project.template.note is not None:
        _suit(project, model, project.template.note)
    stored = {layer.name: [math.prod(blob.shape) for blob in layer.blobs] for layer in model.layers if layer.blobs}
    with contextlib.closing(_hollow(project, *project.data.size)) as hollow:
        own = {node.name: [blob.count for blob in node.layer.blobs] for node in hollow.nodes}
    fitting = 0
    for layer in project.net.layer:
        if layer.name not in stored or layer.name not in own:
            continue
        if own[layer.name] == stored[layer.name]:
            fitting += 1
            _lower(layer, len(own[layer.name]))
            continue
        afresh = f"starts afresh, since the weights of {layer.name} have other shapes"
        layer.name += project.suffix
        project.comments[layer.name] = afresh
        project.told.append(f"{layer.name}: {afresh}")
    if not fitting:
        raise UsageError(f"{project.weights} has weights for no layer of the net: they do not belong together")


def _lower(layer: Any, blobs: int) -> None:
    """Lower the rates of a layer with so many blobs."""
    if layer.type == "BatchNorm":
        return
    while len(layer.param) < blobs:
        layer.param.add()
    for spec in layer.param:
        spec.lr_mult = round(LOWERED * spec.lr_mult, 6)


def _suit(project: Project, model: Model, note: Note) -> None:
    """Change the first weights of a model for pictures in blue, green, red times one scale, as its net's note says."""
    template = project.template
    readers = {layer.name for layer in template.net.layer if template.source.top[0] in layer.bottom}
    deviations = np.array(note.deviation, np.float32)
    for layer in model.layers:
        if layer.name not in readers or not layer.blobs:
            continue
        weights: Any = np.array(layer.blobs[0].data, np.float32).reshape(layer.blobs[0].shape)
        if layer.param.type != "Convolution" or weights.ndim != 4 or weights.shape[1] != 3:
            raise UsageError(
                f'the first layer "{layer.name}" is no Convolution of three channels, so the preprocessing that '
                "the net notes cannot go into its weights"
            )
        weights = weights[:, ::-1] if note.order == "RGB" else weights
        weights = weights / (255 * note.scale * deviations[:, None, None])
        if project.data.form.channels == 1:
            weights = weights.sum(axis=1, keepdims=True)
        layer.blobs[0] = StoredBlob(weights.shape, np.ascontiguousarray(weights, np.float32))


# --- the files --------------------------------------------------------------------------------------------------------


def _net_text(project: Project) -> str:
    labels = os.path.join(project.data.folder, LABELS)
    head = [
        f"{project.template.name} for the {len(project.data.labels)} classes of {labels}; by fcaffe new.",
        "Paths begin in the folder where commands run.",
    ]
    return _commented(head, project.net, project.comments)


def _deploy_text(project: Project) -> str:
    tops = project.net.layer[0].top
    shape = _hollow(project, *project.data.size).blob(tops[0]).shape
    deploy = deploy_net(project.net, dict.fromkeys(tops, shape))
    about = f"pictures of {project.data.form}; Caffe ignores the transform_param of an Input"
    head = [f"The deploy net of {os.path.join(project.out, TRAIN_VAL)}."]
    return _commented(head, deploy, {**project.comments, deploy.layer[0].name: about})


def _solver_text(project: Project, epochs: float, policy: str, batch: int, test_batch: int, rate: float | None) -> str:
    solver, data, an_epoch = project.template.solver, project.data, -(-project.data.train // batch)
    last = max(1, math.ceil(epochs * data.train / batch))
    if rate is None:
        whole = project.template.batch * max(1, solver.iter_size)
        rate = float(f"{solver.base_lr * min(1, batch / whole) if solver.base_lr else 0.01:.2g}")
    policies = {
        "poly": ["power: 1"],
        "multistep": ["gamma: 0.1", *(f"stepvalue: {round(last * share)}" for share in (0.6, 0.85))],
    }
    prefix = os.path.join(project.out, os.path.basename(os.path.normpath(project.out)))
    lines = [
        f"# {epochs:g} epochs of {data.train:,} pictures. A test reads all {data.test:,} test pictures.",
        f'net: "{os.path.join(project.out, TRAIN_VAL)}"',
        f"test_iter: {data.test // test_batch}",
        f"test_interval: {min(an_epoch, last)}",
        f"base_lr: {rate:g}",
        f'lr_policy: "{policy}"',
        *policies.get(policy, ()),
        f"max_iter: {last}",
        f"momentum: {solver.momentum if solver.HasField('momentum') else 0.9:.6g}",
        f"weight_decay: {solver.weight_decay if solver.HasField('weight_decay') else 0.0005:.6g}",
        f"display: {max(1, min(20, an_epoch))}",
        f"average_loss: {max(1, min(20, an_epoch))}",
        f"snapshot: {max(1, -(-last // 5))}",
        f'snapshot_prefix: "{prefix}"',
        "solver_mode: CPU  # --gpu 0 trains on a GPU",
    ]
    return "\n".join(lines) + "\n"


def _commented(head: Iterable[str], net: Any, comments: Mapping[str, str]) -> str:
    """The text of a net below the comments `head`. `comments` has those of layers, by name."""
    lines = [*(f"# {line}" for line in head), f'name: "{net.name}"']
    for layer in net.layer:
        comment = [f"  # {comments[layer.name]}"] if layer.name in comments else []
        lines += ["layer {", *comment, *_fields(layer), "}"]
    return "\n".join(lines) + "\n"


def _fields(layer: Any) -> list[str]:
    """The lines of a layer's fields; those of a message that fits on a line are joined."""
    lines: list[str] = []
    begins: list[int] = []  # of the messages that are still open
    for line in text_format.MessageToString(layer, as_utf8=True, indent=2).splitlines():
        lines.append(line)
        if line.endswith("{"):
            begins.append(len(lines) - 1)
        elif line.strip() == "}":
            begin = begins.pop()
            joined = " ".join([lines[begin], *map(str.strip, lines[begin + 1 :])])
            if len(joined) <= LONGEST_LINE:
                lines[begin:] = [joined]
    return lines
