"""`fcaffe predict`: names what is in pictures, by a trained net."""

from __future__ import annotations

import csv
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
from fcaffe.cli.detect_objects import targets_of, tell_mask, tell_objects
from fcaffe.cli.engine import EngineFlags, engine_flags, first_gpu
from fcaffe.cli.flags import MEAN, MODEL, SCALE, WEIGHTS, command
from fcaffe.cli.progress import counted
from fcaffe.cli.table import say
from fcaffe.data.backends import open_database
from fcaffe.data.datum import datum_to_array, parse_datum
from fcaffe.data.form import MODES, Form
from fcaffe.data.images import read_file
from fcaffe.errors import DataError, FcaffeError, UsageError
from fcaffe.input_files import require_inputs
from fcaffe.onnx.writing.preprocessing import read_mean
from fcaffe.output_files import check_output, replacing, starting
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.listing import list_pictures, pictures_in
from fcaffe.tools.predictor import CLASSES, CROPS, OBJECTS, Predictor, Stored, of_model, of_solver
from fcaffe.tools.preprocessing import Preprocessing, of_net
from fcaffe.tools.report import PREDICTIONS

TABLE = starting("table of predictions", rb"\xef?\xbb?\xbf?path,label,probability")
LISTS = (".txt", ".csv", ".tsv")
SHARE = 0.005  # least probability of a further label in the table


@dataclass
class Asked:
    """A picture to predict: what to show it as, where it is, and the name of its class if that is known."""

    name: str
    picture: Any
    label: str = ""


@command(
    example="predict --solver flowers/solver.prototxt new/*.jpg",
    file_flag="--solver",
    help="Print the most probable classes of each picture, by the test net of --solver FILE and the best weights of "
    "its newest run (else the newest), or by --model FILE and --weights FILE. A PICTURE is a file, a folder, a list "
    "(.txt), a table (.csv), an LMDB, or - for paths on standard input. The exit code is 1 if a picture could not be "
    "read.",
)
@click.argument("pictures", nargs=-1, metavar="PICTURE...")
@click.option("--solver", default="", metavar="FILE", help="The solver whose net was trained.")
@click.option(
    *MODEL,
    "model",
    default="",
    metavar="FILE|FOLDER",
    help="Instead, a train_val or deploy net, or a folder from DIGITS.",
)
@click.option(*WEIGHTS, "weights", default="", metavar="FILE", help="The weights.")
@click.option("--test-net", default=0, metavar="N", help="Which test net of the solver (0).")
@click.option("--labels", default="", metavar="FILE", help="Names of the classes (labels.txt beside the data set).")
@click.option("--top", default=5, metavar="N", type=click.IntRange(min=1), help="Show up to N classes (5).")
@click.option(
    "--crops", type=click.Choice(["1", str(CROPS)]), default="1", help="The mean of ten crops, or the centre (1)."
)
@click.option("--csv", "table", default="", metavar="FILE", help="Write path, label, probability, next label, ...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--html", "page", default="", metavar="FILE.html", help="Write a page with the pictures.")
@click.option(
    "--explain", default="", metavar="PICTURE", help="Print what happens to a picture before the net gets it."
)
@click.option(
    *MEAN,
    "mean",
    default=None,
    metavar="X,...|FILE",
    help="Subtract this instead of what the net says ('': nothing).",
)
@click.option(*SCALE, "scale", type=float, metavar="X", help="Multiply by this, after the mean.")
@click.option("--size", default="", metavar="HxW", help="Resize pictures to this, before the crop.")
@click.option("--resize", type=click.Choice(MODES), help="How a picture gets this size.")
@click.option("--gpu", default="", metavar="ID", help="GPU to compute on (the CPU).")
@click.option("--out", default="", metavar="FOLDER", help="Draw objects, or classes of pixels, into copies there.")
@click.option("--threshold", default=0.5, metavar="X", help="Lowest score of an object (0.5).")
@engine_flags
def predict(
    engines: EngineFlags,
    pictures: tuple[str, ...],
    solver: str,
    model: str,
    weights: str,
    test_net: int,
    labels: str,
    top: int,
    crops: str,
    table: str,
    as_json: bool,
    page: str,
    explain: str,
    mean: str | None,
    scale: float | None,
    size: str,
    resize: str | None,
    gpu: str,
    out: str,
    threshold: float,
) -> int:
    if bool(solver) == bool(model):
        raise UsageError("predict needs a trained net: give --solver FILE, or --model FILE and --weights FILE")
    if not pictures and not explain:
        raise UsageError("predict needs pictures: name files, folders or a list, or - for paths on standard input")
    require_inputs(solver, model, weights, labels)
    check_output(table, TABLE, *pictures)
    check_output(page, PREDICTIONS, *pictures)
    stated = _stated(solver, model, weights, test_net, mean, scale, size_of(size), resize)
    if explain:
        for line in stated.steps(explain):
            say(line)
        if not pictures:
            return 0
    if int(crops) == CROPS and stated.form.size is not None:
        stated.crops(np.zeros((stated.form.channels, *stated.form.size), np.uint8))  # raises if there are none
    device = first_gpu(gpu)
    with log.quiet():
        engine = engines.create(device and device[0])
    predictor = Predictor(
        solver, model=model, weights=weights, test_net=test_net, labels=labels, engine=engine, preprocessing=stated
    )
    with predictor:
        log.info(f"{predictor.path} with {predictor.weights}: {len(predictor.labels)} classes")
        if predictor.kind != CLASSES:
            return _draw(predictor, pictures, out, threshold)
        asked = list(_asked(pictures, predictor.labels))
        if not asked:
            raise UsageError(f"there are no pictures in {', '.join(pictures)}")
        rows = predictor.each((one.picture for one in asked), crops=int(crops))
        found = list(counted(rows, len(asked), "pictures"))
    predictions = [(one, row) for one, row in zip(asked, found, strict=True) if not isinstance(row, FcaffeError)]
    if as_json:
        print(
            json.dumps(
                [_json(one, row, predictor.labels, top) for one, row in zip(asked, found, strict=True)], indent=1
            )
        )
    else:
        _print(predictions, predictor.labels, top)
    bad = [row for row in found if isinstance(row, FcaffeError)]
    for problem in bad:
        log.error(str(problem))
    if table:
        _write_table(table, predictions, predictor.labels, top)
    if page:
        from fcaffe.tools.report.predictions import write_predictions

        told = [(one.name, one.picture, one.label, row) for one, row in predictions]
        write_predictions(page, told, predictor, top)
    return 1 if bad else 0


def _draw(predictor: Predictor, words: tuple[str, ...], out: str, threshold: float) -> int:
    """Print what a net finds that finds objects or classifies pixels. Returns the exit code."""
    paths = tuple(str(one.picture) for one in _asked(words, predictor.labels) if not isinstance(one.picture, Stored))
    names = {index: pb.LabelMapItem(name=name) for index, name in enumerate(predictor.labels)}
    bad = 0
    whole = predictor.preprocessing.form._replace(size=None)
    for path, target in zip(paths, targets_of(paths, out), strict=True):
        try:
            pixels = whole.load(read_file(path), f'"{path}"')
            output = predictor.output(predictor.preprocessing.form.fit(pixels))
        except FcaffeError as problem:
            log.error(str(problem))
            bad = 1
            continue
        if predictor.kind == OBJECTS:
            tell_objects(output, path, pixels, target, names, threshold)
        else:
            tell_mask(output, path, pixels, target, names)
    return bad


def _stated(
    solver: str,
    model: str,
    weights: str,
    test_net: int,
    mean: str | None,
    scale: float | None,
    size: tuple[int, int] | None,
    resize: str | None,
) -> Preprocessing:
    """The preprocessing that the net states, changed by the flags."""
    trained = of_solver(solver, test_net, weights) if solver else of_model(model, weights)
    if mean is not None or size:  # which may be what the net does not say
        for layer in trained.net.layer:
            if layer.type == "Input":
                layer.transform_param.SetInParent()
    try:
        stated = of_net(trained.net, trained.path)
    except UsageError:
        if size is None:
            raise
        channels = next(
            (layer.input_param.shape[0].dim[1] for layer in trained.net.layer if layer.input_param.shape), 3
        )
        source = next((one for one in trained.net.layer if one.HasField("transform_param")), pb.LayerParameter())
        stated = Preprocessing(Form(channels, size), source.transform_param)
    transform = pb.TransformationParameter()
    transform.CopyFrom(stated.transform)
    if mean is not None:
        transform.ClearField("mean_file")
        transform.ClearField("mean_value")
        if mean.endswith(".binaryproto"):
            transform.mean_file = mean
        elif mean:
            transform.mean_value.extend(read_mean(mean).reshape(-1).tolist())
    if scale is not None:
        transform.scale = scale
    form = stated.form._replace(size=size or stated.form.size, mode=resize or stated.form.mode)
    changed = (form, transform) != (stated.form, stated.transform)
    origin = stated.origin + (" and the flags" if changed else "")
    return Preprocessing(form, transform, stated.labels, origin)


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
