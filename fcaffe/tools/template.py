"""The net that `fcaffe new` starts from: one of fcaffe's models, or a train_val or deploy net in any prototxt."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fcaffe import log
from fcaffe.errors import UsageError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import read_net, read_solver
from fcaffe.proto.text import text_of
from fcaffe.suggestions import did_you_mean
from fcaffe.tools.deploy import is_source, test_layers
from fcaffe.tools.preprocessing import NOTE

TRAIN_VAL, SOLVER, DEPLOY = "train_val.prototxt", "solver.prototxt", "deploy.prototxt"
BATCH = 32  # of a net that does not say its own


class Note(NamedTuple):
    """What pictures are to a net's weights: the order of channels, and mean and deviation of blue, green and red."""

    order: str
    mean: list[float]
    deviation: list[float]

    @property
    def scale(self) -> float:
        """What the pictures' bytes are multiplied by so that a channel varies by about 1.

        Each channel's own deviation goes into the first weights. Without a scale they would be some 60 times smaller
        than the net's other weights, and their inputs larger: a training would move them 3,000 times as far.
        """
        return float(f"{1 / (255 * statistics.mean(self.deviation)):.4g}")


@dataclass
class Template:
    """A net, the solver beside it, and the note in its prototxt about the pictures that its weights want."""

    name: str
    net: Any
    solver: Any
    note: Note | None = None

    def __post_init__(self) -> None:
        sources = [layer for layer in test_layers(self.net).layer if is_source(layer)]
        self.source: Any = sources[0] if sources else pb.LayerParameter()  # of phase TEST
        readers = [layer for layer in self.net.layer if is_source(layer) and layer.include]
        training = [layer for layer in readers if layer.include[0].phase == pb.TRAIN]
        self.training: Any = training[0] if training else pb.LayerParameter()

    @property
    def side(self) -> int:
        """Height and width of the net's own input; 0 if they are unknown or differ."""
        dims = list(self.source.input_param.shape[0].dim) if self.source.input_param.shape else []
        return int(self.source.transform_param.crop_size or (dims[2] if len(dims) == 4 and dims[2] == dims[3] else 0))

    @property
    def side_of_deploy(self) -> int:
        """The side of the deploy net beside one of fcaffe's train_val nets; 0 if there is none."""
        path = models_folder() / self.name / DEPLOY
        return Template("", _read(path), None).side if path.is_file() else 0

    @property
    def batch(self) -> int:
        """The batch of the training."""
        return int(self.training.data_param.batch_size) if self.training.type == "Data" else BATCH


def read_template(net: str) -> Template:
    """The net of this name among fcaffe's models, or in this prototxt. Raises UsageError."""
    folder = models_folder()
    models = [path.parent.name for path in sorted(folder.glob(f"*/{TRAIN_VAL}"))]
    if net in models and _classifies(param := _read(folder / net / TRAIN_VAL)):
        return Template(net, param, read_solver(str(folder / net / SOLVER)))
    if not os.path.exists(net):
        known = [name for name in models if _classifies(_read(folder / name / TRAIN_VAL))]
        raise UsageError(
            f"--net {net}: there is no such file or net{did_you_mean(net, known)}; known are {', '.join(known)}"
        )
    solver = os.path.join(os.path.dirname(net), SOLVER)
    is_beside = os.path.basename(net) == TRAIN_VAL and os.path.exists(solver)
    name = os.path.splitext(os.path.basename(net))[0]
    return Template(name, _read(net), read_solver(solver) if is_beside else pb.SolverParameter(), _note(text_of(net)))


def _note(text: str) -> Note | None:
    if (found := NOTE.search(text)) is None:
        return None
    numbers = ([float(word) for word in group.replace(" ", "").strip(",").split(",")] for group in found.groups()[1:])
    mean, deviation = (values[::-1] if found[1] == "RGB" else values for values in numbers)
    if not len(mean) == len(deviation) == 3:
        raise UsageError(f'the line "{found[0]}" of the net needs three numbers for the mean, and for the deviation')
    return Note(found[1], mean, deviation)


def _classifies(param: Any) -> bool:
    return any(layer.type == "SoftmaxWithLoss" for layer in param.layer)


def models_folder() -> Path:
    """The folder of fcaffe's nets: in the package, or in the repository that it lies in."""
    package = Path(__file__).parents[1]
    inner = package / "models"
    return inner if inner.is_dir() else package.parent / "models"


def _read(path: str | os.PathLike[str]) -> Any:
    with log.quiet():
        return read_net(path)
