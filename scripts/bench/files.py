#!/usr/bin/env python3
"""Times of saving and loading a model, compared with the disk's own speed and with whole protobuf messages.

  scripts/bench/files.py
  scripts/bench/files.py --net models/vgg16/deploy.prototxt --folder /mnt/disk --repeat 5

Measures pycaffe's Net.save and Net.copy_from of a net (AlexNet: 240 MB), and the same through one protobuf message
with all numbers. For comparison it writes, flushes and renames the bytes alone, or reads them. All take turns in one
process; the best of the rounds counts. The memory is the peak of the process beyond the net. Prints a table, then one
line of JSON.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import fcaffe as caffe
from fcaffe import log
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.binary import read_binary
from fcaffe.proto.blobs import stored_blob, to_blob_proto

ALEXNET = Path(__file__).resolve().parents[2] / "models" / "alexnet" / "deploy.prototxt"


def save_by_messages(net: caffe.Net, path: str) -> None:
    message = pb.NetParameter()
    for name, blobs in net.params.items():
        message.layer.add(name=name, blobs=[to_blob_proto(blob.data) for blob in blobs])
    replace(message.SerializeToString(), path)


def load_by_messages(net: caffe.Net, path: str) -> None:
    for layer in read_binary(path, pb.NetParameter).layer:
        for blob, stored in zip(net.params.get(layer.name, []), layer.blobs, strict=False):
            blob.data[...] = stored_blob(pb.BlobBytes.FromString(stored.SerializeToString())).data


def replace(content: bytes, path: str) -> None:
    """Write a file so that it appears whole or not at all."""
    with open(f"{path}.tmp", "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.tmp", path)


def read_into(buffer: np.ndarray, path: str) -> None:
    with open(path, "rb", buffering=0) as file:
        file.readinto(buffer.data)


def measured(work: Callable[[], None]) -> tuple[float, float]:
    """Seconds of the work, and the megabytes by which the process grew at its peak; -1 if Linux does not tell."""
    before = resident("VmRSS")
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        before = None
    begun = time.perf_counter()
    work()
    seconds = time.perf_counter() - begun
    most = resident("VmHWM")
    return seconds, -1 if before is None or most is None else max(0, most - before) / 1024


def resident(field: str) -> int | None:
    """Kilobytes of a field of /proc/self/status; None without such a file or field."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), None)


def main() -> None:
    parser = argparse.ArgumentParser(description="Saving and loading a model, against the disk.")
    parser.add_argument("--net", default=str(ALEXNET), metavar="FILE")
    parser.add_argument("--folder", default=None, metavar="FOLDER", help="where to write (a temporary folder)")
    parser.add_argument("--repeat", type=int, default=3, metavar="N")
    arguments = parser.parse_args()
    log.set_show(lambda line: None)
    net = caffe.Net(arguments.net, caffe.TEST)
    rng = np.random.default_rng(1)
    for blobs in net.params.values():
        for blob in blobs:
            blob.data[...] = rng.random(blob.shape, np.float32)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = os.path.join(folder, "it.caffemodel")
        net.save(path)
        content = Path(path).read_bytes()
        buffer = np.frombuffer(content, np.uint8).copy()
        rows: dict[str, Callable[[], None]] = {
            "write: the disk": lambda: replace(content, f"{path}.disk"),
            "write: save": lambda: net.save(path),
            "write: messages": lambda: save_by_messages(net, f"{path}.messages"),
            "read: the disk": lambda: read_into(buffer, path),
            "read: copy_from": lambda: net.copy_from(path),
            "read: messages": lambda: load_by_messages(net, path),
        }
        results = {name: {"seconds": float("inf"), "megabytes": -1.0} for name in rows}
        for _ in range(arguments.repeat):
            for name, work in rows.items():
                seconds, megabytes = measured(work)
                best = results[name]
                best["seconds"] = min(best["seconds"], seconds)
                best["megabytes"] = max(best["megabytes"], megabytes)
    print(f"{len(content) / 1e6:.1f} MB, best of {arguments.repeat}")
    for name, result in results.items():
        disk = results[name.split(":")[0] + ": the disk"]["seconds"]
        print(
            f"{name:18} {1e3 * result['seconds']:9.1f} ms {result['seconds'] / disk:7.2f} of the disk's time "
            f"{result['megabytes']:8.1f} MB more"
        )
    print(json.dumps({"bytes": len(content), "results": results}))


if __name__ == "__main__":
    main()
