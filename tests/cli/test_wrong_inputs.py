"""Each command with each kind of file as each of its inputs: it works, or says in one line what is wrong."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fcaffe.cli.commands import COMMANDS
from fcaffe.pycaffe import session
from tests.cli.conftest import Run
from tests.cli.test_outputs import DEPLOYED, folder  # noqa: F401 - a fixture with a file of each kind
from tests.soon import soon

for package in ("cv2", "h5py", "matplotlib", "onnx", "onnxruntime"):
    pytest.importorskip(package)


# Lines of each command. An input is in braces; @ becomes the name of something new.
LINES = {
    "train": [
        "train --solver {solver.prototxt}",
        "train --solver solver.prototxt --weights {small.caffemodel}",
        "train --solver solver.prototxt --snapshot {small.solverstate}",
    ],
    "test": ["test --model {net.prototxt} --weights {small.caffemodel} --iterations 1"],
    "time": ["time --model {net.prototxt} --iterations 1"],
    "dataset": ["dataset {list.txt} @", "dataset {classes} @ --size 8x8", "dataset classes @ --classes {names.txt}"],
    "new": ["new @ --data {set} --net {net.prototxt} --weights {small.caffemodel}"],
    "predict": [
        "predict --model {deploy.prototxt} --weights {deploy.caffemodel} --mean {mean.npy} {some/a.png}",
        "predict --solver {solver.prototxt} --weights small.caffemodel --labels {names.txt} {lmdb}",
    ],
    "deploy": ["deploy {net.prototxt} @"],
    "convert_imageset": ["convert_imageset {some}/ {list.txt} @"],
    "convert_annoset": ["convert_annoset --anno_type=detection --label_map_file={map.prototxt} some/ {pairs.txt} @"],
    "convert_mnist_data": ["convert_mnist_data {images.gz} {labels.gz} @"],
    "convert_mnist_siamese_data": ["convert_mnist_siamese_data {images.gz} {labels.gz} @"],
    "convert_cifar_data": ["convert_cifar_data {some} @ lmdb"],
    "compute_image_mean": ["compute_image_mean {lmdb} @"],
    "extract_features": ["extract_features {small.caffemodel} {net.prototxt} ip @ 1 lmdb"],
    "upgrade_net_proto_text": ["upgrade_net_proto_text {net.prototxt} @"],
    "upgrade_net_proto_binary": ["upgrade_net_proto_binary {small.caffemodel} @"],
    "upgrade_solver_proto_text": ["upgrade_solver_proto_text {solver.prototxt} @"],
    "draw_net": ["draw_net {net.prototxt} @.raw", "draw_net net.prototxt @.jpgg"],
    "classify": [
        "classify {some/a.png} @.npy --images_dim 8,8 " + DEPLOYED,
        "classify some/a.png @.npy --images_dim 8,8 --model_def {deploy.prototxt} --mean_file {mean.npy}"
        " --pretrained_model {deploy.caffemodel}",
    ],
    "detect": ["detect {in.csv} @.csv --crop_mode list --context_pad 0 " + DEPLOYED],
    "parse_log": ["parse_log {train.log} made"],
    "extract_seconds": ["extract_seconds {train.log} @"],
    "plot_training_log": ["plot_training_log 6 @.png {train.log}"],
    "summarize": ["summarize {net.prototxt}"],
    "resize_and_crop_images": ["resize_and_crop_images --input {names.txt} --input_folder {some} --output_folder made"],
    "summary": ["summary {net.prototxt}", "summary {net.prototxt} --target {chip.txt}"],
    "solver": ["solver {solver.prototxt}"],
    "detect-objects": ["detect-objects --model {boxes.prototxt} --weights {boxes.caffemodel} {some/a.png}"],
    "report": ["report {train.log} @.html --solver {solver.prototxt}"],
    "plot": ["plot {train.log} --out @.png"],
    "convert": [
        *(f"convert {{small.caffemodel}} @.{ending}" for ending in ("caffemodel", "h5", "npz", "npy", "prototxt")),
        "convert {small.caffemodel} @.caffemodel --to nvidia",
        "convert {small.solverstate} @.solverstate",
        "convert {deploy.caffemodel} @.onnx --model {deploy.prototxt} --mean {mean.npy}",
        "convert {net.onnx} @.prototxt @.caffemodel",
        "convert {lmdb} @.binaryproto",
        "convert {deploy.caffemodel} @.prototxt @.caffemodel --model {deploy.prototxt} --target opencv --merge-bn",
    ],
    "merge-bn": ["merge-bn {deploy.prototxt} {deploy.caffemodel} @.prototxt @.caffemodel"],
    "compress": ["compress {deploy.caffemodel} @.dcmodel"],
    "lmdb": [f"lmdb {action} {{lmdb}}" for action in ("info", "cat", "export @ ")],
    "plan": ["plan --net {net.prototxt} --machine h200 --workers 2", "plan --solver {solver.prototxt} --machine h200"],
}
WITHOUT_FILES = {"device_query", "bench", "run"}


def test_every_command_is_here() -> None:
    assert set(LINES) | WITHOUT_FILES == set(COMMANDS)


@pytest.fixture(scope="module")
def kinds(folder: Path) -> list[str]:  # noqa: F811
    """The names of files and folders, one of each kind, as there are in the folder."""
    with contextlib.chdir(folder):
        np.save("texts.npy", np.array(["cat", "dog"]))
        np.save("mean.npy", np.full((3, 8, 8), 100.0))
        np.savez("whole.npz", **{"ip/0": np.arange(6, dtype=np.int32).reshape(2, 3)})
        np.savez("objects.npz", **{"ip/0": np.array([{}, None], dtype=object)})
        head = np.array([0, 0, 8, 3, *[0, 0, 0, 2] * 3], np.uint8).tobytes()
        Path("images.gz").write_bytes(gzip.compress(head + bytes(8)))
        Path("labels.gz").write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 2, 0, 1])))
        Path("chip.txt").write_text("Input\nInnerProduct\n")
        Path("empty").touch()
        Path("random").write_bytes(np.random.default_rng(0).bytes(2000))
        Path("damaged.caffemodel").write_bytes(Path("small.caffemodel").read_bytes()[:-20])
        Path("damaged.onnx").write_bytes(Path("net.onnx").read_bytes()[:-20])
        Path("page.html").write_text("<!doctype html>\n<html></html>\n")
        Path("link").symlink_to("nothing")
        shutil.copytree("lmdb", "damaged_lmdb")
        Path("damaged_lmdb/data.mdb").write_bytes(b"\1" * 8192)
    names = (
        "net.prototxt solver.prototxt deploy.prototxt small.caffemodel damaged.caffemodel small.solverstate whole.npz"
        " objects.npz texts.npy mean.npy net.onnx damaged.onnx some/a.png lmdb damaged_lmdb some images.gz list.txt"
        " pairs.txt in.csv map.prototxt train.log page.html empty random link missing"
    )
    return names.split()


def lines_with(line: str, kinds: list[str]) -> Iterator[list[str]]:
    """Yields the words of a line with each kind in the place of each of its inputs."""
    count = line.count("{")
    for place, kind in itertools.product(range(count), kinds) if count else [(-1, "")]:
        seen = itertools.count()
        filled = re.sub(r"\{(.*?)\}", lambda match: kind if next(seen) == place else match[1], line)  # noqa: B023
        yield filled.split()


@pytest.mark.parametrize("line", [line for lines in LINES.values() for line in lines])
def test_a_file_of_another_kind_works_or_is_named(
    line: str,
    folder: Path,  # noqa: F811
    kinds: list[str],
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "_on_gpu", False)
    for number, words in enumerate(lines_with(line, kinds)):
        here = tmp_path / str(number)
        (here / "made").mkdir(parents=True)
        for path in folder.iterdir():
            (here / path.name).symlink_to(path)
        monkeypatch.chdir(here)
        with warnings.catch_warnings(), soon():
            result = run(*(word.replace("@", "new") for word in words))
        said = f"{' '.join(words)}: {result.err[-1500:]}"
        assert "Traceback" not in result.err and "fault in fcaffe" not in result.err, said
        assert result.code in (0, 1, 2, 134), said
        if result.code == 134:
            assert len(re.findall(r"^F\d{4} ", result.err, re.MULTILINE)) == 1, said
