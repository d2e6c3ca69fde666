"""A rank of a contender of hosts.py. Rank 0 reads the iterations of each turn from its standard input."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from nets import DECAY, MOMENTUM, RATE, SOLVER, net_param, pictures

NAP = 0.05  # seconds between two polls for a turn: between turns a rank must not use its core
PORTS = 29000  # the first port of DDP's rendezvous
TRIES = 4  # passes of each layout, to find the faster one; the first warms up

Turn = Callable[[int], dict[str, Any]]
Share = Callable[[int], int]  # broadcasts the number of rank 0


def compete(who: str, net: str, batch: int, layout: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # so that what libraries print does not mix with the answers
    kind, _, which = who.partition("-")
    if kind == "fcaffe":
        _fcaffe(which, net, batch, answers)
    else:
        _ddp(which, who, net, batch, layout, answers)


def _serve(rank: int, share: Share, turn: Turn, answers: Any) -> None:
    """Take turns until rank 0 reads "end"."""

    def answer(**fields: Any) -> None:
        if rank == 0:
            answers.write(json.dumps(fields) + "\n")
            answers.flush()

    while True:
        word = sys.stdin.readline().strip() if rank == 0 else ""
        number = share({"build": 0}.get(word, -1) if not word.isdecimal() else int(word))
        if number < 0:
            return answer()
        answer(**(turn(number) if number else {}))


def _fcaffe(sums: str, net: str, batch: int, answers: Any) -> None:
    from fcaffe.threads import set_for_command

    set_for_command()  # as the command line computes

    from fcaffe import log
    from fcaffe.cli.workers import SharingFlags
    from fcaffe.engines import cpu_engine
    from fcaffe.jobs.world import join
    from fcaffe.net import Layer, Traits, register
    from fcaffe.parallel.compression import compressions
    from fcaffe.proto import caffe_pb2 as pb
    from fcaffe.proto import parse_text
    from fcaffe.solvers import Solver
    from fcaffe.timeline import DATA, KINDS, OTHER, Timeline

    log.set_minimum(1)
    param = parse_text(SOLVER, pb.SolverParameter)
    param.net_param.CopyFrom(net_param(net, batch, True))
    inputs = dict(zip(("data", "label"), pictures(net, batch), strict=True))
    for layer in param.net_param.layer[: len(inputs)]:
        layer.type = "SplitInput"
    world = join(0)

    @register("SplitInput")
    class SplitInput(Layer):
        """An Input whose batch the workers split."""

        traits = Traits(bottoms=0, tops=1, reads_host=True)

        def setup(self, bottom: list[Any], top: list[Any]) -> None:
            values = inputs[self.param.name].astype(np.float32)
            self.share, top[0].placement = self.context.share_of(len(values))
            self.values = values[self.share.first :][: self.share.count]
            top[0].reshape(*self.values.shape)

        def forward(self, bottom: list[Any], top: list[Any]) -> None:
            values = self.values[self.context.workers.rows(self.share)]
            top[0].reshape(*values.shape)
            with self.context.timeline.span(DATA):
                self.engine.upload(values, top[0].data).wait()

    def share(number: int) -> int:
        if world.comm is None:
            return number
        value = np.array([number], np.int64)
        asked = world.comm.Ibcast(value)
        while not asked.Test():
            time.sleep(NAP)
        return int(value[0])

    with world:
        schemes = [scheme.partition(":")[0] for scheme in compressions()]
        is_scheme = sums.partition(":")[0] in schemes
        sharing = SharingFlags(batch="global", **{"compress" if is_scheme else "reduce": sums})
        if sums.startswith("reproducible="):
            sharing = SharingFlags(batch="global", reproducible=int(sums.partition("=")[2]))
        if sums.startswith("parallel="):
            sharing = SharingFlags(batch="global", parallel=sums.partition("=")[2])
        timeline, engine = Timeline(), cpu_engine()
        options = sharing.for_solver(world, timeline, engine.xp)
        solver = Solver(param, engine, "counter", timeline=timeline, on_nan="stop", **options)
        exchange, workers = solver.exchange, solver.workers

        def turn(iterations: int) -> dict[str, Any]:
            """Mean seconds of an iteration: of the slowest worker, and of each kind over all workers."""
            solver.step(1)  # fills the caches again
            workers.sum(0.0)  # all begin together
            sums, exposed = exchange.seconds, exchange.exposed
            timeline.begin()
            began = time.perf_counter()
            with timeline.span(OTHER):
                solver.step(iterations)
            taken = {"seconds": time.perf_counter() - began, **timeline.seconds}
            everyone = workers.broadcast_object(workers.gather(taken))
            split = {kind: sum(one[kind] for one in everyone) / len(everyone) / iterations for kind in KINDS}
            return {
                "seconds": max(one["seconds"] for one in everyone) / iterations,
                "sums": (exchange.seconds - sums) / iterations,
                "exposed": (exchange.exposed - exposed) / iterations,
                "split": split,
                "gradient_bytes": 4 * solver.net.parameters.exchanged,
                "bucket_bytes": list(getattr(exchange, "cut", [])),  # of several workers
                "hosts": workers.size,
            }

        _serve(world.rank, share, turn, answers)
        solver.close()
        solver.leave_workers()


def _ddp(which: str, who: str, net: str, batch: int, layout: str, answers: Any) -> None:
    """`which` is the bucket size in MB, with -fp16 for sums in 16 bits by DDP's own hook (its bf16 hook needs NCCL).

    Without a `layout`, the ranks try both on all hosts and choose the faster one.
    """
    rank, ranks = (int(os.environ[name]) for name in ("PMI_RANK", "PMI_SIZE"))
    # Each contender has a port of its own. Other clusters are in other network namespaces.
    address = {"MASTER_ADDR": "198.18.0.1", "MASTER_PORT": str(PORTS + zlib.crc32(who.encode()) % 1000)}
    os.environ.update(address, GLOO_SOCKET_IFNAME="e0")

    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    from torch.nn.parallel import DistributedDataParallel
    from twins import torch_net

    from fcaffe import log
    from fcaffe.share import split_batch

    log.set_minimum(1)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks, timeout=datetime.timedelta(hours=1))
    part = split_batch(batch, rank, ranks)
    own = slice(part.first, part.first + part.count)
    images, labels = (torch.from_numpy(np.ascontiguousarray(array[own])) for array in pictures(net, batch))
    torch.manual_seed(1)
    module: Any = torch_net(net_param(net, part.count, True)).train()

    def share(number: int) -> int:
        value = torch.tensor([number])
        dist.broadcast(value, 0)
        return int(value)

    def largest(seconds: float) -> float:
        value = torch.tensor([seconds], dtype=torch.float64)
        dist.all_reduce(value, dist.ReduceOp.MAX)
        return float(value)

    layouts = {"default": torch.contiguous_format, "channels_last": torch.channels_last}
    seconds: dict[str, list[float]] = {name: [] for name in [layout] if name} or {name: [] for name in layouts}
    for name in seconds:
        module, images = module.to(memory_format=layouts[name]), images.to(memory_format=layouts[name])
        for _ in range(TRIES if len(seconds) > 1 else 1):
            dist.barrier()
            began = time.perf_counter()
            module(images, labels).backward()
            seconds[name].append(largest(time.perf_counter() - began))
    layout = min(seconds, key=lambda name: min(seconds[name]))
    module, images = module.to(memory_format=layouts[layout]), images.to(memory_format=layouts[layout])
    module.zero_grad()
    bucket_mb, _, bits = which.partition("-")
    parallel = DistributedDataParallel(
        module, bucket_cap_mb=int(bucket_mb), gradient_as_bucket_view=True, static_graph=True
    )
    if bits:
        parallel.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        parallel(images, labels).backward()
        optimizer.step()

    def turn(iterations: int) -> dict[str, Any]:
        step()  # fills the caches again
        dist.barrier()
        began = time.perf_counter()
        for _ in range(iterations):
            step()
        return {"seconds": largest(time.perf_counter() - began) / iterations, "layout": layout}

    _serve(rank, share, turn, answers)
    with contextlib.suppress(RuntimeError):  # another rank may have closed its end already
        dist.barrier()
    dist.destroy_process_group()
