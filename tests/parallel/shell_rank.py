"""Stands in for `fcaffe.cli.rank`: a rank that is a shell's script."""

from __future__ import annotations

import os
import signal
import time

from fcaffe.jobs.channel import Channel
from fcaffe.jobs.frames import Message
from fcaffe.parallel.watchdog import TRAINING, Doing


def load(order: Message) -> None:
    """Ask the launcher to end, and take long, if the order says so."""
    if order["loads"]:
        os.kill(int(os.environ["FCAFFE_LAUNCHER"]), signal.SIGTERM)
        time.sleep(60)


def run(channel: Channel, order: Message) -> int:
    """Run the script, behind the begin of a training if the order says so."""
    if order["trains"]:
        channel.report(Doing(TRAINING, False, "forward", 0))
    os.execvp("bash", ["bash", "-c", order["script"]])
