"""The competitors of cpu.py: for each, a function that builds the net and returns a Racer."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from competitors import Racer
from nets import DECAY, MOMENTUM, RATE, SOLVER, inference_net, net_param, pictures

PYTORCH = ("default", "channels_last", "compile")  # layouts, and torch.compile in channels_last
RUNTIMES = ("onnxruntime", "openvino")  # they read the net as an ONNX file

stack = contextlib.ExitStack()  # never closed: its contexts last until the process ends


def threads() -> int:
    from fcaffe.threads import available_cpus

    return int(os.environ.get("OMP_NUM_THREADS") or available_cpus())


def fcaffe_racer(name: str, batch: int, training: bool, math: str) -> Racer:
    """fcaffe as the command line runs it."""
    from fcaffe.threads import set_for_command

    set_for_command()  # as the command line computes

    from fcaffe import log
    from fcaffe.engines import cpu_engine

    log.set_minimum(1)
    engine = cpu_engine(math)
    images, labels = pictures(name, batch)
    if not training:
        net = inference_net(name, batch, engine)
        net.blob("data").data[...] = images
        return Racer(repeated(net.forward))
    from fcaffe.proto import caffe_pb2 as pb
    from fcaffe.proto import parse_text
    from fcaffe.solvers import Solver  # not imported for inference, as in `fcaffe test`, to measure its memory

    solver_param = parse_text(SOLVER, pb.SolverParameter)
    solver_param.net_param.CopyFrom(net_param(name, batch, True))
    solver = Solver(solver_param, engine, "counter")
    solver.net.blob("data").data[...] = images
    solver.net.blob("label").data[...] = labels
    return Racer(solver.step)


def pycaffe_racer(name: str, batch: int, training: bool) -> Racer:
    from google.protobuf import text_format

    import fcaffe as caffe
    from fcaffe import log
    from fcaffe.proto import caffe_pb2 as pb
    from fcaffe.proto import parse_text

    log.set_minimum(1)
    caffe.set_rng("counter")
    images, labels = pictures(name, batch)
    message = net_param(name, batch, training)
    if training:
        message, param = parse_text(SOLVER, pb.SolverParameter), message
        message.net_param.CopyFrom(param)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    file = folder / "it.prototxt"
    file.write_text(text_format.MessageToString(message))
    solver = caffe.get_solver(str(file)) if training else None
    net = solver.net if solver else caffe.Net(str(file), caffe.TEST)
    sizes = [blob.data.shape for blob in net.blobs.values()]
    sizes += [blob.data.shape for blobs in net.params.values() for blob in blobs]
    between = list(net.blobs)[len(net.blobs) // 2]

    def steps(count: int) -> None:
        for _ in range(count):
            net.blobs["data"].data[...] = images
            if solver:
                net.blobs["label"].data[...] = labels
                solver.step(1)
            else:
                net.forward()["prob"].argmax()
            net.blobs[between].data[0].max()

    return Racer(steps)


def torch_racer(name: str, batch: int, training: bool, math: str, layout: str) -> Racer:
    import torch
    from twins import torch_net

    torch.set_num_threads(threads())
    images, labels = (torch.from_numpy(array) for array in pictures(name, batch))
    net: Any = torch_net(net_param(name, batch, training))
    if layout != "default":
        net, images = net.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=math == "bf16")
    net.train(training)
    if layout == "compile":
        net = torch.compile(net)
    if not training:

        def infer() -> None:
            with torch.inference_mode(), autocast:
                net(images, None)

        return Racer(repeated(infer))
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            with autocast:
                loss = net(images, labels)
            loss.backward()
            optimizer.step()

    return Racer(train)


def onnxruntime_racer(name: str, batch: int) -> Racer:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads()
    with onnx_file(name, batch) as file:
        session = onnxruntime.InferenceSession(file, options, ["CPUExecutionProvider"])
    inputs = {"data": pictures(name, batch)[0]}
    return Racer(repeated(lambda: session.run(None, inputs)))


def openvino_racer(name: str, batch: int, math: str) -> Racer:
    import openvino

    how = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads()}
    how["INFERENCE_PRECISION_HINT"] = "bf16" if math == "bf16" else "f32"
    with onnx_file(name, batch) as file:
        request = openvino.Core().compile_model(file, "CPU", how).create_infer_request()
    request.set_tensor("data", openvino.Tensor(pictures(name, batch)[0]))
    return Racer(repeated(request.infer))


def repeated(run: Callable[[], Any]) -> Callable[[int], None]:
    """The `step` of a Racer that calls `run` for each step."""

    def steps(count: int) -> None:
        for _ in range(count):
            run()

    return steps


@contextlib.contextmanager
def onnx_file(name: str, batch: int) -> Iterator[str]:
    """The path of the net for inference as an ONNX file, which is removed at the end of the body.

    Another process writes it, so that its memory does not count here.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "it.onnx")
        subprocess.run([sys.executable, __file__, name, str(batch), file], check=True)
        yield file


def write_onnx_file(name: str, batch: int, file: str) -> None:
    from fcaffe import log
    from fcaffe.engines import NumpyEngine
    from fcaffe.onnx.writing.export import to_onnx, write_onnx

    log.set_minimum(1)
    write_onnx(file, to_onnx(inference_net(name, batch, NumpyEngine())))


def racer(who: str, name: str, batch: int, training: bool, math: str) -> Racer:
    """The Racer of this competitor."""
    if who == "fcaffe":
        return fcaffe_racer(name, batch, training, math)
    if who == "pycaffe":
        return pycaffe_racer(name, batch, training)
    if who == "onnxruntime":
        return onnxruntime_racer(name, batch)
    if who == "openvino":
        return openvino_racer(name, batch, math)
    return torch_racer(name, batch, training, math, who)


def runs(who: str, training: bool, math: str) -> bool:
    """Whether a peer supports this kind of step and this math."""
    if who == "pycaffe":
        return math == "fp32"
    if who in RUNTIMES:
        return not training and (math != "bf16" or who == "openvino")
    return True


if __name__ == "__main__":
    write_onnx_file(sys.argv[1], int(sys.argv[2]), sys.argv[3])
