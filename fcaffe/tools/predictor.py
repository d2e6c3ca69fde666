"""Predictions of a trained classifier for pictures: `fcaffe predict`, and `fcaffe.Predictor` for scripts."""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fcaffe import log
from fcaffe.data.form import read_form, read_labels
from fcaffe.engines import Engine, cpu_engine
from fcaffe.errors import FcaffeError, UsageError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import read_net, read_solver
from fcaffe.solvers.nets import test_net_params, train_net_param
from fcaffe.solvers.snapshot.files import best_path, read_model_of, read_state
from fcaffe.solvers.snapshot.runs import models, newest
from fcaffe.tools.confusion import probabilities_of
from fcaffe.tools.deploy import deploy_net, is_source
from fcaffe.tools.image_sets import pooled
from fcaffe.tools.nets import load, new_net
from fcaffe.tools.preprocessing import Preprocessing, of_net

BATCH = 32
DEPLOY = "deploy.prototxt"
CROPS = 10
CLASSES, OBJECTS, PIXELS = "classes", "objects", "pixels"  # what a net says of a picture
ROW = 7  # of DetectionOutput: image, label, score, box


class Trained(NamedTuple):
    """A net with its weights: the NetParameter, the path that messages name, and the path of the model."""

    net: Any
    path: str
    weights: str


def of_solver(path: str, test_net: int = 0, weights: str = "") -> Trained:
    """A test net of the solver at `path`, with the best weights of its newest run, or else its newest.

    Raises UsageError.
    """
    param = read_solver(path)
    with log.quiet():
        nets = test_net_params(param)
        if not nets:
            nets = [train_net_param(param)]
    if not 0 <= test_net < len(nets):
        raise UsageError(f"--test-net {test_net}: {path} has {len(nets)} test net(s), numbered from 0")
    named = param.net or (param.test_net[test_net] if test_net < len(param.test_net) else path)
    return Trained(nets[test_net][0], named, weights or weights_of_run(param, path))


def weights_of_run(param: Any, path: str) -> str:
    """The model of the best test of the newest run of a solver, or else its newest model. Raises UsageError."""
    best, state_path = best_path(param), newest(param.snapshot_prefix)
    if state_path is None:
        found = [best] if os.path.exists(best) else models(param.snapshot_prefix)
        if not found:
            raise UsageError(
                f"there are no weights {param.snapshot_prefix}_*.caffemodel yet: run fcaffe train --solver {path}, or "
                "give --weights FILE"
            )
        return found[0]
    state = read_state(state_path)
    if os.path.exists(best):
        if any(one.owner == "best" and one.name == "iteration" and int(one.values) >= 0 for one in state.carried):
            return best
        log.warning(
            f"{best} is of an earlier run than {state_path}, and is not taken; give it as --weights if you want it"
        )
    return read_model_of(state, state_path)[1]


def of_model(path: str, weights: str) -> Trained:
    """The net of a prototxt, or the deploy net in a folder, such as a download from DIGITS. Raises UsageError."""
    if os.path.isdir(path):
        _, fields = read_form(path)
        snapshots = sorted(
            (os.path.getmtime(one), one)
            for name in os.listdir(path)
            if ".caffemodel" in name and os.path.isfile(one := os.path.join(path, name))
        )
        stated = os.path.join(path, str(fields.get("snapshot file") or ""))
        if not weights and not snapshots:
            raise UsageError(f"{path} has no .caffemodel: give --weights FILE")
        weights = weights or (stated if os.path.isfile(stated) else snapshots[-1][1])
        path = os.path.join(path, str(fields.get("deploy file") or DEPLOY))
    if not weights:
        raise UsageError(f"{path} needs its weights: give --weights FILE")
    return Trained(read_net(path), path, weights)


class Predictor:
    """A trained classifier that names what is in pictures.

        predictor = fcaffe.Predictor(solver="flowers/solver.prototxt")
        for label, probability in predictor(["new/1.jpg", "new/2.jpg"]):
            print(label, probability)

    The preprocessing is that of the net's own data layer of phase TEST. Pictures are paths, images of PIL, or arrays of
    uint8, height x width x 3 (or x 1); the calls with arrays say the order of their channels, "RGB" or "BGR".

    Args:
        solver: the prototxt of a solver, whose best weights of the newest run are taken, or else the newest ones.
        model: instead, the prototxt of a net, or a folder with a deploy.prototxt, as DIGITS gives it.
        weights: the net's weights, for `model`, or instead of the solver's.
        test_net: which test net of the solver.
        labels: the names of the classes, or the path of a file with one on each line; the data set's by default.
        engine: where to compute; the CPU by default.
        preprocessing_of: gives the preprocessing of a net, a NetParameter, in the prototxt of this path.

    Attributes:
        labels: the names of the classes, in the order of the net's outputs.
        preprocessing: a `fcaffe.tools.preprocessing.Preprocessing`.
    """

    def __init__(
        self,
        solver: str = "",
        *,
        model: str = "",
        weights: str = "",
        test_net: int = 0,
        labels: str | Sequence[str] = (),
        engine: Engine | None = None,
        preprocessing_of: Callable[[Any, str], Preprocessing] = of_net,
    ) -> None:
        if bool(solver) == bool(model):
            raise UsageError(
                "give the net either as a solver (--solver FILE) or as a model (--model FILE --weights FILE)"
            )
        trained = of_solver(solver, test_net, weights) if solver else of_model(model, weights)
        self.path, self.weights = trained.path, trained.weights
        self.preprocessing = preprocessing_of(trained.net, trained.path)
        self.engine = engine or cpu_engine()
        deploy = self._deploy(trained.net)
        with log.quiet():
            self._net = new_net(deploy, self.engine)
            load(self._net, trained.weights)
        (self._input,) = (blob for node in self._net.nodes if node.layer.type == "Input" for blob in node.tops)
        self._output, self._is_probability = self._find_output()
        self.kind = _kind_of(self._output)
        count = self._output.count // max(1, self._output.shape[0])
        given = read_labels(labels) if labels and isinstance(labels, str) else list(labels)
        given = given or self.preprocessing.labels
        if self.kind != CLASSES:
            self.labels: list[str] = given
            return
        if given and len(given) != count:
            raise UsageError(f"there are {len(given)} names of classes, and {trained.path} has {count} outputs")
        self.labels = given or [str(index) for index in range(count)]

    def _deploy(self, net: Any) -> Any:
        """The deploy net, with one input, for one picture. Raises UsageError."""
        shape = self.preprocessing.shape or (self.preprocessing.form.channels, 1, 1)
        deploy = deploy_net(net, defaultdict(lambda: (1, *shape)))
        inputs = [layer for layer in deploy.layer if is_source(layer)]
        if len(inputs) != 1:
            names = ", ".join(layer.top[0] for layer in inputs) or "none"
            raise UsageError(f"{self.path} has the inputs {names}, and one picture is wanted: run it from a script")
        for layer in deploy.layer:
            if layer.HasField("detection_output_param"):  # the files that it names are seldom there
                layer.detection_output_param.ClearField("save_output_param")
        deploy.state.phase = pb.TEST
        return deploy

    def _find_output(self) -> tuple[Any, bool]:
        writers = {blob: node.layer.type for node in self._net.nodes for blob in node.tops}
        outputs = [blob for _, blob, _ in self._net.outputs()]
        ends = [blob for blob in outputs if writers[blob] in ("Softmax", "Sigmoid")] or outputs
        if not _kind_of(chosen := ends[0]):
            raise UsageError(
                f"the output of {self.path} has the shape {chosen.shape}: not a number for each class, nor scores for "
                "each pixel, nor the rows of a DetectionOutput; run it from a script"
            )
        return chosen, writers[chosen] in ("Softmax", "Sigmoid")

    def output(self, pixels: np.ndarray) -> np.ndarray:
        """The net's output for pixels of the data set's form: for nets that find objects or classify pixels."""
        self._feed(self.preprocessing.apply(pixels)[np.newaxis])
        return np.array(self.engine.to_numpy(self._output.data))

    def load(self, picture: Any, order: str = "") -> np.ndarray:
        """A picture as the net's input: float32, channels x height x width. Raises DataError for a damaged file."""
        return self.preprocessing.load(picture, order)

    def __call__(self, pictures: Iterable[Any], order: str = "") -> list[tuple[str, float]]:
        """The most probable label of each picture, and its probability. `order` is that of the channels of arrays."""
        rows = self.probabilities(pictures, order)
        return [(self.labels[row.argmax()], float(row.max())) for row in rows]

    def probabilities(self, pictures: Iterable[Any], order: str = "") -> np.ndarray:
        """The probability of each class for each picture: float32, pictures x classes, in the order of `labels`."""
        rows = list(self.each(pictures, order))
        for row in rows:
            if isinstance(row, Exception):
                raise row
        return np.array(rows, np.float32).reshape(-1, len(self.labels))

    def each(self, pictures: Iterable[Any], order: str = "", crops: int = 1) -> Iterator[np.ndarray | FcaffeError]:
        """Yields the probabilities for each picture, or the error that came of it. Batches are decoded ahead.

        With ten `crops` they are the mean over the corners, the centre and their mirror images.
        """

        def values(picture: Any) -> list[np.ndarray] | FcaffeError:
            try:
                if isinstance(picture, FcaffeError):
                    return picture
                pixels = picture.pixels if isinstance(picture, Stored) else self.preprocessing.pixels(picture, order)
                return self.preprocessing.crops(pixels) if crops == CROPS else [self.preprocessing.apply(pixels)]
            except FcaffeError as problem:
                return problem

        loaded = (result for _, result in pooled(values, pictures, most=2 * BATCH))
        while batch := list(itertools.islice(loaded, BATCH)):
            yield from self._of_batch(batch)

    def _of_batch(self, loaded: Sequence[list[np.ndarray] | FcaffeError]) -> Iterator[np.ndarray | FcaffeError]:
        """Yields a row for each picture of a batch. Pictures of several sizes go through the net one by one."""
        rows = [array for one in loaded if not isinstance(one, Exception) for array in one]
        step = BATCH if len({row.shape for row in rows}) == 1 else 1
        found = (scores for start in range(0, len(rows), step) for scores in self._run(rows[start : start + step]))
        for one in loaded:
            yield one if isinstance(one, Exception) else np.mean([next(found) for _ in one], axis=0)

    def _feed(self, values: np.ndarray) -> None:
        if self._input.shape != values.shape:
            self._input.reshape(*values.shape)
            self._net.reshape()
        self._input.data[...] = self.engine.from_numpy(values)
        self._net.forward()

    def _run(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        self._feed(np.stack(rows))
        scores = self.engine.to_numpy(self._output.data).reshape(len(rows), -1).copy()
        return scores if self._is_probability else probabilities_of(scores)

    def close(self) -> None:
        """Free the net."""
        self._net.close()

    def __enter__(self) -> Predictor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _kind_of(output: Any) -> str:
    """What a net says of a picture, by the shape of its output; "" for other nets."""
    shape = output.shape
    if len(shape) == 4 and shape[:2] == (1, 1) and shape[3] == ROW:
        return OBJECTS
    if output.count == shape[0] * (shape[1] if len(shape) > 1 else 1):
        return CLASSES
    return PIXELS if len(shape) == 4 and shape[1] > 1 else ""


class Stored(NamedTuple):
    """A picture that a data set stores: its pixels, channels x height x width."""

    pixels: np.ndarray
