"""`fcaffe predict` names what is in pictures, by a trained net, and `fcaffe detect-objects` finds objects in them."""

from __future__ import annotations

import csv
import functools
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click
import numpy as np

from fcaffe import log
from fcaffe.cli.dataset import size_of
from fcaffe.cli.engine import GpuFlags, gpu_flags
from fcaffe.cli.flags import MEAN, MODEL, OWN, SCALE, WEIGHTS, command, flag, with_flags
from fcaffe.cli.found import DrawFlags, show_found
from fcaffe.cli.progress import counted
from fcaffe.cli.table import say
from fcaffe.data.annotated import read_label_map
from fcaffe.data.backends import open_database
from fcaffe.data.datum import datum_to_array, parse_datum
from fcaffe.data.form import MODES
from fcaffe.engines import Engine
from fcaffe.errors import DataError, FcaffeError, UsageError
from fcaffe.input_files import require_inputs
from fcaffe.onnx.writing.preprocessing import read_mean
from fcaffe.output_files import check_output, replacing, starting
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.listing import list_pictures, pictures_in
from fcaffe.tools.predictor import CLASSES, CROPS, OBJECTS, Predictor, Stored
from fcaffe.tools.preprocessing import Preprocessing, of_net
from fcaffe.tools.report import PREDICTIONS

TABLE = starting("table of predictions", rb"\xef?\xbb?\xbf?path,label,probability")
LISTS = (".txt", ".csv", ".tsv")
VGG_MEAN = "104,117,123"  # which nets as those of SSD subtract
SHARE = 0.005  # least probability of a further label in the table


@dataclass
class Asked:
    """A picture to predict: what to show it as, where it is, and the name of its class if that is known."""

    name: str
    picture: Any
    label: str = ""


@dataclass(frozen=True)
class NetFlags:
    """The net, and its preprocessing where that is not what the net states."""

    solver: str = flag("FILE", "The solver whose net was trained.")
    model: str = flag("FILE|FOLDER", "Instead, a train_val or deploy net, or a folder from DIGITS.", *MODEL)
    weights: str = flag("FILE", "The weights.", *WEIGHTS)
    test_net: int = flag("N", "Which test net of the solver (0).", "--test-net", default=0)
    labels: str = flag(
        "FILE",
        "Names of the classes: one a line, or SSD's label map, a .prototxt (labels.txt beside the data set).",
        "--labels",
        "--labelmap",
    )
    mean: str | None = flag(
        "X,...|FILE",
        "Subtract this instead of what the net says, which for detect-objects is VGG's mean if it says nothing "
        "('': nothing).",
        *MEAN,
        default=None,
    )
    scale: float | None = flag("X", "Multiply by this, after the mean.", *SCALE, default=None, type=float)
    size: str = flag("HxW", "Resize pictures to this, before the crop.")
    resize: str | None = flag(MODES, "How a picture gets this size.", default=None)

    def predictor(self, engine: Engine, usual_mean: str | None = None) -> Predictor:
        """The net with these flags. `usual_mean` is for nets that state neither mean nor scale. Raises UsageError."""
        if not self.solver and not (self.model and self.weights) and not os.path.isdir(self.model):
            raise UsageError("a trained net is needed: give --solver FILE, or --model FILE and --weights FILE")
        require_inputs(self.solver, self.model, self.weights, self.labels)
        return Predictor(
            self.solver,
            model=self.model,
            weights=self.weights,
            test_net=self.test_net,
            labels="" if self.label_map else self.labels,
            engine=engine,
            preprocessing_of=lambda net, path: self._preprocessing(net, path, usual_mean),
        )

    @functools.cached_property
    def label_map(self) -> dict[int, str]:
        """The names in SSD's label map; {} without one."""
        items = read_label_map(self.labels) if self.labels.endswith(".prototxt") else {}
        return {label: item.display_name or item.name for label, item in items.items()}

    def _preprocessing(self, net: Any, path: str, usual_mean: str | None) -> Preprocessing:
        """The preprocessing that the net states, changed by the flags. Raises UsageError."""
        mean = self.mean
        stated = of_net(net, path, size_of(self.size), is_stated=(usual_mean or mean) is not None)
        transform = pb.TransformationParameter()
        transform.CopyFrom(stated.transform)
        if mean is None and not (transform.mean_file or transform.mean_value or transform.HasField("scale")):
            mean = usual_mean
        if mean is not None:
            transform.ClearField("mean_file")
            transform.ClearField("mean_value")
            if os.path.isfile(mean) and not mean.endswith(".npy"):
                transform.mean_file = mean
            elif mean:
                transform.mean_value.extend(read_mean(mean).reshape(-1).tolist())
        if self.scale is not None:
            transform.scale = self.scale
        form = stated.form._replace(mode=self.resize or stated.form.mode)
        changed = " and the flags" if self.size or (form, transform) != (stated.form, stated.transform) else ""
        return Preprocessing(form, transform, stated.labels, stated.origin + changed)


@dataclass(frozen=True)
class ResultFlags:
    """What is printed and written about each picture."""

    top: int = flag("N", "Show up to N classes (5).", default=5, type=click.IntRange(min=1))
    crops: str = flag(["1", str(CROPS)], "The mean of ten crops, or the centre (1).", default="1")
    table: str = flag("FILE", "Write path, label, probability, next label, ...", "--csv")
    as_json: bool = flag(None, "Print JSON.", "--json", default=False)
    page: str = flag("FILE.html", "Write a page with the pictures.", "--html")
    explain: str = flag("PICTURE", "Print what happens to a picture before the net gets it.")


@command(
    example="predict --solver flowers/solver.prototxt new/*.jpg",
    file_flag="--solver",
    help="Print the most probable classes of each picture, by the test net of --solver FILE and the best weights of "
    "its newest run (else the newest), or by --model FILE and --weights FILE. A PICTURE is a file, a folder, a list "
    "(.txt), a table (.csv), an LMDB, or - for paths on standard input. The exit code is 1 if a picture could not be "
    "read.",
)
@click.argument("pictures", nargs=-1, metavar="PICTURE...")
@with_flags("net", NetFlags, OWN)
@with_flags("results", ResultFlags, OWN)
@with_flags("drawing", DrawFlags, OWN)
@gpu_flags
def predict(
    pictures: tuple[str, ...], net: NetFlags, results: ResultFlags, drawing: DrawFlags, engines: GpuFlags
) -> int:
    if not pictures and not results.explain:
        raise UsageError("predict needs pictures: name files, folders or a list, or - for paths on standard input")
    check_output(results.table, TABLE, *pictures)
    check_output(results.page, PREDICTIONS, *pictures)
    top, crops = results.top, int(results.crops)
    with log.quiet():
        engine = engines.chosen()
    with net.predictor(engine) as predictor:
        stated = predictor.preprocessing
        if results.explain:
            for line in stated.steps(results.explain):
                say(line)
            if not pictures:
                return 0
        if crops == CROPS and stated.form.size is not None:
            stated.crops(np.zeros((stated.form.channels, *stated.form.size), np.uint8))  # raises if there are none
        labels = predictor.labels
        log.info(f"{predictor.path} with {predictor.weights}: {len(labels)} classes")
        asked = list(_asked(pictures, labels))
        if predictor.kind != CLASSES:
            paths = tuple(str(one.picture) for one in asked if not isinstance(one.picture, Stored))
            return show_found(predictor, paths, drawing, net.label_map or dict(enumerate(labels)))
        if not asked:
            raise UsageError(f"there are no pictures in {', '.join(pictures)}")
        rows = predictor.each((one.picture for one in asked), crops=crops)
        found = list(counted(rows, len(asked), "pictures"))
    told = list(zip(asked, found, strict=True))
    predictions = [(one, row) for one, row in told if not isinstance(row, FcaffeError)]
    if results.as_json:
        print(json.dumps([_json(one, row, labels, top) for one, row in told], indent=1))
    else:
        _print(predictions, labels, top)
    bad = [row for row in found if isinstance(row, FcaffeError)]
    for problem in bad:
        log.error(str(problem))
    if results.table:
        _write_table(results.table, predictions, labels, top)
    if results.page:
        from fcaffe.tools.report.predictions import write_predictions

        shown = [(one.name, one.picture, one.label, row) for one, row in predictions]
        write_predictions(results.page, shown, predictor, top)
    return 1 if bad else 0


@command(
    example="detect-objects --model deploy.prototxt --weights ssd.caffemodel --labelmap labelmap_voc.prototxt "
    "--out drawn street.jpg",
    help="Find objects in the pictures IMAGE by the detection net --model FILE, whose output is that of a "
    "DetectionOutput or Yolov3DetectionOutput layer. Prints a line for each: the picture, the name of the class, the "
    "score, and xmin, ymin, xmax and ymax in pixels.",
)
@click.argument("images", metavar="IMAGE...", nargs=-1, required=True)
@with_flags("net", NetFlags, OWN)
@with_flags("drawing", DrawFlags, OWN)
@gpu_flags
def detect_objects(images: tuple[str, ...], net: NetFlags, drawing: DrawFlags, engines: GpuFlags) -> int:
    with net.predictor(engines.chosen(), VGG_MEAN) as predictor:
        if predictor.kind != OBJECTS:
            raise UsageError(
                f"{predictor.path} has no output of a DetectionOutput layer; give the deploy net of a detector"
            )
        return show_found(predictor, images, drawing, net.label_map or dict(enumerate(predictor.labels)))


def _asked(words: tuple[str, ...], labels: list[str]) -> Iterator[Asked]:
    """Yields the pictures that the arguments name. Raises FcaffeError."""
    for word in words:
        if word == "-":
            paths = [line.rstrip("\n") for line in sys.stdin]
            yield from (Asked(path, path) for path in paths if path)
        elif os.path.isdir(word) and any(os.path.exists(os.path.join(word, name)) for name in ("data.mdb", "CURRENT")):
            yield from _records(word, labels)
        elif os.path.isdir(word):
            for path in pictures_in(word):
                folders = os.path.relpath(path, os.path.dirname(os.path.abspath(word))).split(os.sep)[:-1]
                known = next((name for name in folders if name in labels), "")
                yield Asked(path, path, known)
        elif word.lower().endswith(LISTS):
            listing = list_pictures(word)
            by_number = all(name.isdecimal() for name in listing.names) and not set(listing.names) <= set(labels)
            for image in listing.parts["train"]:
                name = listing.names[image.label]
                if by_number:
                    name = labels[int(name)] if int(name) < len(labels) else name
                yield Asked(listing.root + image.path, listing.root + image.path, name)
        else:
            yield Asked(word, word)


def _records(source: str, labels: list[str]) -> Iterator[Asked]:
    with log.quiet():
        database = open_database(source)
    for key, value in database:
        try:
            datum = parse_datum(key, value)
            label = labels[datum.label] if 0 <= datum.label < len(labels) else ""
            yield Asked(key.decode(errors="replace"), Stored(datum_to_array(datum, key)), label)
        except DataError as problem:
            yield Asked(key.decode(errors="replace"), problem)
    database.close()


def _best(row: np.ndarray, labels: list[str], top: int) -> list[tuple[str, float]]:
    return [(labels[index], float(row[index])) for index in np.argsort(-row, kind="stable")[:top]]


def _print(predictions: list[tuple[Asked, np.ndarray]], labels: list[str], top: int) -> None:
    width = max((len(one.name) for one, _ in predictions), default=0)
    for one, row in predictions:
        best = [pair for index, pair in enumerate(_best(row, labels, top)) if index == 0 or pair[1] >= SHARE]
        say(f"{one.name:{width}}  {'  '.join(f'{label} {share:.0%}' for label, share in best)}")
    known = [(one.label, row) for one, row in predictions if one.label]
    if known:
        right = sum(labels[row.argmax()] == label for label, row in known)
        say(f"{right} of {len(known)} are right ({right / len(known):.2%})")


def _json(one: Asked, row: np.ndarray | FcaffeError, labels: list[str], top: int) -> dict[str, Any]:
    if isinstance(row, FcaffeError):
        return {"path": one.name, "error": str(row)}
    found = [{"label": label, "probability": share} for label, share in _best(row, labels, top)]
    return {"path": one.name, **({"known": one.label} if one.label else {}), "predictions": found}


def _write_table(path: str, predictions: list[tuple[Asked, np.ndarray]], labels: list[str], top: int) -> None:
    with (
        replacing(path, "table") as temporary,
        open(temporary, "w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        rows = csv.writer(file, lineterminator="\n")
        more = [f"{what}{rank}" for rank in range(2, min(top, len(labels)) + 1) for what in ("label", "probability")]
        rows.writerow(["path", "label", "probability", *more])
        for one, row in predictions:
            rows.writerow(
                [one.name, *(cell for label, share in _best(row, labels, top) for cell in (label, f"{share:.6g}"))]
            )
