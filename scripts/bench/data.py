#!/usr/bin/env python3
"""Images per second that a Data layer reads, and the time for which AlexNet waits for them.

  scripts/bench/data.py
  taskset -c 0 scripts/bench/data.py --records 2000 --seconds 10 --iterations 0

The script writes two LMDBs of synthetic 256 x 256 images to a temporary folder, one of raw Datums and one of JPEG. It
reads each as AlexNet's training does: random crops of 227, random mirrors, the mean image subtracted. Then AlexNet
takes some iterations on each. The images are as large as photographs (about 35 kB as JPEG). Prints a table, then one
line of JSON.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np

import fcaffe.layers  # noqa: F401 - registers the types
from fcaffe import log
from fcaffe.data import array_to_datum, write_lmdb
from fcaffe.data.batches import decoding_threads
from fcaffe.data.images import encode_image
from fcaffe.data.mean import mean_to_blob
from fcaffe.engines import NumpyEngine
from fcaffe.net import Context, Net
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import read_net, write_binary
from fcaffe.rng import CaffeRandom
from fcaffe.threads import available_cpus

SIZE = 256
DISTINCT = 64  # images; more records repeat them
ALEXNET = Path(__file__).resolve().parents[2] / "models" / "alexnet" / "train_val.prototxt"


def picture(seed: int) -> np.ndarray:
    """An image of soft shapes with noise, whose JPEG is as large as that of a photograph."""
    rng = np.random.default_rng(seed)
    shapes = cv2.resize(rng.uniform(0, 255, (16, 16, 3)), (SIZE, SIZE), interpolation=cv2.INTER_CUBIC)
    return np.clip(shapes + rng.normal(0, 8, shapes.shape), 0, 255).astype(np.uint8).transpose(2, 0, 1)


def records(count: int, encoded: bool) -> Iterator[tuple[bytes, bytes]]:
    datums = []
    for index in range(min(count, DISTINCT)):
        pixels = picture(index)
        datum = pb.Datum(data=encode_image(pixels, "jpg"), encoded=True) if encoded else array_to_datum(pixels)
        datum.label = index
        datums.append(datum.SerializeToString())
    for index in range(count):
        yield b"%08d" % index, datums[index % len(datums)]


def data_net(folder: str, kind: str, batch_size: int, whole: bool) -> Net:
    """AlexNet for training, or its Data layer alone, on one of the databases."""
    param = read_net(ALEXNET)
    layers = [layer for layer in param.layer if not any(rule.phase == pb.TEST for rule in layer.include)]
    del param.layer[:]
    param.layer.extend(layers if whole else layers[:1])
    param.state.phase = pb.TRAIN
    param.layer[0].transform_param.mean_file = os.path.join(folder, "mean")
    param.layer[0].data_param.source = os.path.join(folder, kind)
    param.layer[0].data_param.batch_size = batch_size
    return Net(param, Context(NumpyEngine(), CaffeRandom(1)))


def read_for(net: Net, seconds: float) -> float:
    """Images per second, measured after the first batches."""
    for _ in range(2):
        net.forward()
    batches = 0
    begin = time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < seconds:
        net.forward()
        batches += 1
    return batches * net.batch_size / elapsed


def train_for(net: Net, iterations: int) -> tuple[float, float]:
    """Images per second of forward and backward passes, and the share of time spent waiting for data."""
    reader: Any = net.layers[0]
    net.forward()
    waited, begin = reader.prefetcher.waited, time.perf_counter()
    for _ in range(iterations):
        net.forward()
        net.backward()
    elapsed = time.perf_counter() - begin
    return iterations * net.batch_size / elapsed, (reader.prefetcher.waited - waited) / elapsed


def measure(folder: str, kind: str, args: argparse.Namespace) -> dict[str, float]:
    net = data_net(folder, kind, args.batch_size, whole=False)
    result = {"reads_per_s": read_for(net, args.seconds)}
    net.close()
    if args.iterations:
        net = data_net(folder, kind, args.alexnet_batch_size, whole=True)
        result["alexnet_per_s"], result["waiting"] = train_for(net, args.iterations)
        net.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1000, help="in each database (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=64, help="when reading (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=5, help="of reading (default: %(default)s)")
    parser.add_argument("--iterations", type=int, default=4, help="of AlexNet; 0: none (default: %(default)s)")
    parser.add_argument("--alexnet-batch-size", type=int, default=16, help="(default: %(default)s)")
    args = parser.parse_args()
    log.set_minimum(1)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        write_binary(os.path.join(folder, "mean"), mean_to_blob(np.full((3, SIZE, SIZE), 120, np.float32)))
        for kind in ("raw", "jpeg"):
            write_lmdb(os.path.join(folder, kind), records(args.records, encoded=kind == "jpeg"))
            results[kind] = measure(folder, kind, args)
    print(f"{available_cpus()} CPUs, {decoding_threads()} decoding threads; images per second")
    print(f"{'records':>8}  {'reading':>8}  {'AlexNet':>8}  waiting")
    for kind, result in results.items():
        trained = (
            f"{result['alexnet_per_s']:8.1f}  {result['waiting']:7.1%}" if args.iterations else f"{'-':>8}  {'-':>7}"
        )
        print(f"{kind:>8}  {result['reads_per_s']:8.0f}  {trained}")
    print(json.dumps({"cpus": available_cpus(), "threads": decoding_threads(), **vars(args), "results": results}))


if __name__ == "__main__":
    main()
