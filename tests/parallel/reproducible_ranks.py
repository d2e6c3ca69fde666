"""One rank of random trainings by shards: `python -m mpi4py reproducible_ranks.py SEED TRAININGS`.

Each training runs on one worker and one thread, then on random numbers of both with random reductions and buckets. All
come to the same bits.
"""

from __future__ import annotations

import random
import sys

from mpi4py import MPI

from fcaffe import log, threads
from fcaffe.engines import cpu_engine
from fcaffe.net.workers import Workers
from fcaffe.parallel import waiting
from fcaffe.parallel.exchange import ReducingExchange
from fcaffe.parallel.reductions import create_reduction
from fcaffe.parallel.workers import MpiWorkers
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.solvers import Solver
from fcaffe.tree_order import nodes_of_workers
from tests.parallel.conftest import LSTM

BATCH = 13
DATA = f"""
layer {{ name: "data" type: "Data" top: "data" top: "label" data_param {{ source: "lmdb" backend: LMDB
        batch_size: {BATCH} }} transform_param {{ scale: 0.01 %s }} }}
"""
LOSS = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "scores" bottom: "label" top: "loss" }'
CONVOLUTION = """
layer { name: "%s" type: "Convolution" bottom: "%s" top: "%s"
        convolution_param { num_output: %d kernel_size: %d weight_filler { type: "xavier" } } }
layer { name: "%s relu" type: "ReLU" bottom: "%s" top: "%s" }
"""


def convolution(name: str, bottom: str, outputs: int, kernel: int) -> str:
    return CONVOLUTION % (name, bottom, name, outputs, kernel, name, name, name)


def inner_product(name: str, bottom: str, outputs: int) -> str:
    return f"""layer {{ name: "{name}" type: "InnerProduct" bottom: "{bottom}" top: "{name}"
        inner_product_param {{ num_output: {outputs} weight_filler {{ type: "xavier" }} }} }}"""


POOL = 'layer { name: "pool" type: "Pooling" bottom: "%s" top: "pool" pooling_param { %s } }'
NETS = {
    "lenet": DATA % ""
    + convolution("conv", "data", 8, 3)
    + POOL % ("conv", "kernel_size: 2 stride: 2")
    + inner_product("wide", "pool", 200)  # whose factors are exchanged
    + 'layer { name: "relu" type: "ReLU" bottom: "wide" top: "wide" }'
    + inner_product("scores", "wide", 3)
    + LOSS,
    "nin": DATA % ""
    + convolution("conv", "data", 12, 3)
    + convolution("mixed", "conv", 12, 1)
    + convolution("classes", "mixed", 3, 1)
    + (POOL % ("classes", "pool: AVE global_pooling: true")).replace('"pool" p', '"scores" p')
    + LOSS,
    "dropout": DATA % "crop_size: 9 mirror: true"
    + convolution("conv", "data", 8, 3)
    + 'layer { name: "drop" type: "Dropout" bottom: "conv" top: "conv" }'
    + inner_product("scores", "conv", 3)
    + LOSS,
    "normalized": DATA % "crop_size: 9 mirror: true"
    + convolution("conv", "data", 8, 3).replace("relu", "norm").replace('"ReLU"', '"BatchNorm"')
    + inner_product("scores", "conv", 3)
    + 'layer { name: "right" type: "Accuracy" bottom: "scores" bottom: "label" top: "right" top: "right of class" }'
    + LOSS.replace("top:", "loss_param { ignore_label: 1 } top:"),
    "lstm": DATA % "crop_size: 8" + LSTM + inner_product("scores", "back", 3) + LOSS,
}
SOLVER = """
base_lr: 0.02 lr_policy: "fixed" weight_decay: 0.001 random_seed: 5 iter_size: 2 snapshot_after_train: false
"""
RULES = ('type: "SGD" momentum: 0.9', 'type: "Adam" momentum: 0.9 momentum2: 0.999 clip_gradients: 2')
REDUCTIONS = ("tree", "ring", "halving", "doubling", "server", "shared", "hierarchical", "auto")
world = MPI.COMM_WORLD


def train(net: str, rule: str, engine: str, shards: int, comm: MPI.Intracomm | None, reduce: str, bucket: int) -> bytes:
    param = parse_text(SOLVER + rule, pb.SolverParameter)
    param.net_param.CopyFrom(parse_text(NETS[net], pb.NetParameter))
    workers, exchange = Workers(), None
    if comm is not None:
        reduction = create_reduction(reduce, comm)
        reduction.keep_to_tree(*nodes_of_workers(shards, comm.size))
        workers, exchange = MpiWorkers(comm), ReducingExchange(reduction, bucket or None, overlap=bucket > 0)
    solver = Solver(param, cpu_engine(name=engine), "counter", workers=workers, exchange=exchange, shards=shards)
    solver.step(3)
    weights = solver.data.tobytes()
    solver.close()
    solver.leave_workers()
    return weights


def main(seed: str, trainings: str, nets: str = ",".join(NETS)) -> None:
    log.set_minimum(2)
    draw = random.Random(int(seed))  # the same on all ranks
    for _ in range(int(trainings)):
        case = (
            draw.choice(nets.split(",")),
            draw.choice(RULES),
            draw.choice(["numpy", "onednn"]),
            draw.randint(2, BATCH),
        )
        threads._shard_threads = 1
        expected = world.bcast(train(*case, None, "", 0) if world.rank == 0 else b"")
        for _ in range(3):
            workers = draw.randint(1, min(world.size, case[-1]))
            threads._shard_threads = draw.randint(1, 3)
            how = draw.choice(REDUCTIONS), draw.choice([0, 300, 100_000])
            comm = world.Split(world.rank < workers, draw.choice([1, -1]) * world.rank)
            if world.rank < workers:
                got = train(*case, comm, *how)
                assert got == expected, f"{case} on {workers} workers of {threads._shard_threads} threads with {how}"
            comm.Free()
            world.Barrier()


waiting.POLLS = 10  # more ranks than cores: what a rank waits for comes while it sleeps
main(*sys.argv[1:])
