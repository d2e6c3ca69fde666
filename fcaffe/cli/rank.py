"""A rank of fcaffe's own launcher: what its agent imports before it forks the ranks, and what each of them runs."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from fcaffe import plugins, threads
from fcaffe.cli import _failed, _invoke, _load, last_words, streams
from fcaffe.errors import RankError
from fcaffe.jobs.channel import Channel
from fcaffe.jobs.frames import Message
from fcaffe.jobs.mpi_start import load_mpi, prepare_environment
from fcaffe.jobs.started import started_as
from fcaffe.jobs.world import join


def load(order: Message) -> None:
    """Import what most ranks need.

    Ranks are forked from this process. So nothing here may start a thread, MPI or a GPU, or run user code.
    """
    if order["params"].get("reproducible"):
        threads.compute_with_one_thread()
    _load(order["command"])
    modules = ["numpy.random", "fcaffe.engines.onednn.engine"]
    if start := started_as():
        prepare_environment(start)
        load_mpi(start, by_fcaffe=True)
        modules += ["fcaffe.parallel.exchange", "fcaffe.parallel.workers", "fcaffe.parallel.compression"]
    for module in modules:
        import_module(module)


def run(channel: Channel, order: Message) -> int:
    """Run the command of the launcher's order; returns the exit code."""
    streams.begin()
    last_words.begin()
    try:
        world = join(channel=channel, order=order)
        try:
            import numpy as np

            np.random.seed()  # or user code would draw the same numbers in all ranks
            plugins.load(order["imports"])
            command = _load(order["command"])
            code = _invoke(command, click.Context(command, info_name=order["command"]), **order["params"])
            sys.stdout.flush()
        except RankError:
            raise
        except BaseException as error:
            raise RankError(world) from error
        world.ended(code)
        return code
    except BaseException as error:
        return _failed(error, order["traceback"])
