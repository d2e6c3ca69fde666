"""`fcaffe dataset`: builds databases from a folder of pictures."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

import click

from fcaffe.cli.flags import OWN, command, flag, required, with_flags
from fcaffe.cli.progress import counted
from fcaffe.cli.table import print_table, say
from fcaffe.data.form import MODES, Form, read_labels
from fcaffe.errors import UsageError
from fcaffe.tools.dataset import COLUMNS, build, rows, told, unpack_sample
from fcaffe.tools.listing import list_pictures

SAMPLES = ["digits"]
LARGE = 48  # pixels from which squeezenet_v1.1 is proposed


@dataclass(frozen=True)
class DatasetFlags:
    size: str = flag("HxW", "Height and width of the stored pictures (theirs, if equal).")
    resize: str = flag(
        MODES,
        "How a picture gets this size: squash changes its aspect ratio, crop cuts it, fill adds a border (squash).",
        default=MODES[0],
    )
    gray: bool = flag(None, "Store grey values instead of blue, green and red.", default=False)
    test: str = flag("N%", "Share of each class to hold out for tests (20%).", default="20%")
    seed: int = flag("N", "Seed of the split and of the order (1).", default=1)
    classes: str = flag("FILE", "Names of the classes, in the order of their numbers.")
    label_column: str = flag("NAME", "The column of a table with the class.", "--label-column")
    encode: str | None = flag(["png", "jpg"], "Store picture files instead of pixels.", default=None)
    limit: int = flag("N", "Take at most N pictures of each class, for a try.", default=0)
    sample: str | None = flag(SAMPLES, "Instead, write sample pictures to OUT, by classes.", default=None)


@command(
    example="dataset pictures/ data --size 96x96",
    help="Build the data set OUT of the pictures in PICTURES: a folder with a folder for each class; or folders train "
    "and val (and test) of such folders; or a list (.txt: a path, a blank, a label) or table (.csv: path,label). The "
    "new folder OUT gets train_lmdb, test_lmdb, mean.binaryproto, labels.txt, info.json, train.txt and test.txt.",
)
@click.argument("words", nargs=-1, metavar="PICTURES OUT")
@with_flags("flags", DatasetFlags, OWN)
def dataset(words: tuple[str, ...], flags: DatasetFlags) -> int:
    if flags.sample:
        (out,) = required(words, 1)
        count = unpack_sample(flags.sample, out)
        say(f"{out}: {count:,} pictures in 10 folders")
        say(f"Next: fcaffe dataset {shlex.quote(out)} data --size 32x32")
        return 0
    source, out = required(words, 2)
    form = Form(1 if flags.gray else 3, size_of(flags.size), flags.resize)
    held_out = _share(flags.test)
    listing = list_pictures(source, read_labels(flags.classes) if flags.classes else (), flags.label_column)
    if flags.limit:
        listing.shuffle(flags.seed)
        listing.limit(flags.limit)
    listing.split(held_out, flags.seed)
    listing.shuffle(flags.seed)
    seen = build(out, listing, form, flags.encode or "", counted)
    print_table(out, COLUMNS, list(rows(listing, seen)), numbers_from=1)
    for line in told(listing, seen):
        say(line)
    assert seen.form.size is not None
    counts = [len(images) for images in listing.parts.values()]
    say(f"{out}: {counts[0]:,} pictures to train with, {counts[1]:,} to test with, {seen.form}")
    net = "squeezenet_v1.1" if min(seen.form.size) >= LARGE else "cifar10_quick"
    say(f"Next: fcaffe new NAME --data {shlex.quote(out)} --net {net}")
    return 0


def size_of(text: str) -> tuple[int, int] | None:
    """Height and width of a --size flag, such as 96x96; None for "". Raises UsageError."""
    if not text:
        return None
    sides = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", text)
    if sides is None or not int(sides[1]) or sides[2] == "0":
        raise UsageError(f"--size takes a height and a width, such as 96x96, not '{text}'")
    return int(sides[1]), int(sides[2] or sides[1])


def _share(text: str) -> float:
    """The share of a --test flag: 20%, or 0.2. Raises UsageError."""
    try:
        share = float(text.rstrip("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise UsageError(f"--test takes a share of the pictures, such as 20% or 0.2, not '{text}'")
    return share
