"""`fcaffe extract_features`: writes blobs of a net to databases, as Caffe's program of that name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

import click
import numpy as np

from fcaffe import log
from fcaffe.cli.engine import EngineFlags, engine_flags
from fcaffe.cli.flags import command, log_flags
from fcaffe.cli.gpus import first_gpu
from fcaffe.cli.progress import counted
from fcaffe.cli.usage import required
from fcaffe.data import array_to_datum
from fcaffe.data.backends import new_database
from fcaffe.data.database import Writer
from fcaffe.errors import DataError, UsageError
from fcaffe.input_files import require_inputs
from fcaffe.net import Net
from fcaffe.net.weights import load_weights
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.nets import new_net, read_net_for

REPORT = 1000  # records between two lines of the log
WORDS = "WEIGHTS NET BLOB[,BLOB...] DATABASE[,DATABASE...] BATCHES lmdb|leveldb [CPU|GPU] [DEVICE]"


@command(
    example="extract_features net.caffemodel net.prototxt fc6,fc7 fc6_lmdb,fc7_lmdb 100 lmdb",
    help="Run BATCHES batches of the net of the prototxt NET in phase TEST, with WEIGHTS, and write each BLOB to the "
    "DATABASE of the same position, a record for each image.",
    flags=log_flags,
)
@click.argument("words", nargs=-1, metavar=WORDS)
@engine_flags
def extract_features(words: tuple[str, ...], engines: EngineFlags) -> int:
    weights, path, blobs, databases, count, backend, *device = required(words, 6, 8)
    if not count.isdecimal() or not int(count):
        raise UsageError(f"the number of batches must be 1 or more, not '{count}'")
    require_inputs(weights)
    gpu = None
    if device[:1] == ["GPU"]:
        gpu = first_gpu(device[1] if len(device) > 1 else "0")
        assert gpu is not None
        log.extracting_on_gpu(gpu[0])
    else:
        log.extracting_on_cpu()
    engine = engines.create(gpu and gpu[0])
    param = read_net_for(path, pb.TEST)
    with contextlib.closing(new_net(param, engine, inference=False)) as net, engine.fixed_weights():
        load_weights(net, weights)
        batches = counted(range(int(count)), int(count), "batches")
        extract(net, blobs.split(","), databases.split(","), backend, batches)
    return 0


def extract(net: Net, blobs: Sequence[str], paths: Sequence[str], backend: str, batches: Iterable[int]) -> None:
    """Run the net once for each of `batches`, and write the values of each blob to the database of the same index.

    A record has the values of one item (an index of the first axis) as float_data. Keys are ten digits. Raises
    UsageError, DataError.
    """
    if len(blobs) != len(paths):
        raise UsageError(f"{len(blobs)} blobs need as many databases, not {len(paths)}: separate each by commas")
    for name in blobs:
        if name not in net.blob_names:
            raise UsageError(f'the net has no blob "{name}"; it has {", ".join(dict.fromkeys(net.blob_names))}')
    with contextlib.ExitStack() as opened:
        writers = []
        for path in paths:
            log.opening_dataset(path)
            writers.append(opened.enter_context(new_database(path, backend)))
        log.extracting()
        for _ in batches:
            net.forward()
            for name, writer in zip(blobs, writers, strict=True):
                _put(name, net.context.engine.to_numpy(net.blob(name).data), writer)
        for name, writer in zip(blobs, writers, strict=True):
            log.blob_extracted(writer.count, name)
    log.all_extracted()


def _put(name: str, values: np.ndarray, writer: Writer) -> None:
    """Write each item as channels x height x width. Missing axes are 1."""
    if values.ndim > 4:
        raise DataError(f'blob "{name}" has {values.ndim} axes, and a record has three besides the batch: reshape it')
    for item in values if values.ndim else values[np.newaxis]:
        image = item.reshape(item.shape + (1,) * (3 - item.ndim)).astype(np.float32, copy=False)
        writer.put(b"%010d" % writer.count, array_to_datum(image).SerializeToString())
        if writer.count % REPORT == 0:
            log.extracted(writer.count, name)
