"""`fcaffe extract_features`: writes blobs of a net to databases, as Caffe's program of that name."""

from __future__ import annotations

import click

from fcaffe import log
from fcaffe.cli.engine import EngineFlags, engine_flags
from fcaffe.cli.flags import log_flags
from fcaffe.cli.gpus import first_gpu
from fcaffe.cli.progress import counted
from fcaffe.cli.usage import Command, required
from fcaffe.errors import UsageError
from fcaffe.net.weights import load_weights
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.features import extract
from fcaffe.tools.nets import load_net

WORDS = "WEIGHTS NET BLOB[,BLOB...] DATABASE[,DATABASE...] BATCHES lmdb|leveldb [CPU|GPU] [DEVICE]"


@click.command(
    "extract_features",
    cls=Command,
    example="extract_features net.caffemodel net.prototxt fc6,fc7 fc6_lmdb,fc7_lmdb 100 lmdb",
    help="Run BATCHES batches of the net of the prototxt NET in phase TEST, with WEIGHTS, and write each BLOB to the "
    "DATABASE of the same position, a record for each image.",
)
@click.argument("words", nargs=-1, metavar=WORDS)
@engine_flags
@log_flags
def extract_features(words: tuple[str, ...], engines: EngineFlags) -> int:
    weights, path, blobs, databases, count, backend, *device = required(words, 6, 8)
    if not count.isdecimal() or not int(count):
        raise UsageError(f"the number of batches must be 1 or more, not '{count}'")
    gpu = None
    if device[:1] == ["GPU"]:
        gpu = first_gpu(device[1] if len(device) > 1 else "0")
        assert gpu is not None
        log.extracting_on_gpu(gpu[0])
    else:
        log.extracting_on_cpu()
    engine = engines.create(gpu and gpu[0])
    net = load_net(path, pb.TEST, engine)
    try:
        load_weights(net, weights)
        batches = counted(range(int(count)), int(count), "batches")
        with engine.fixed_weights():
            extract(net, blobs.split(","), databases.split(","), backend, batches)
    finally:
        net.close()
    return 0
