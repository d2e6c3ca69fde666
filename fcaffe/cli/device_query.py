"""`fcaffe device_query`: says what the GPUs are."""

from __future__ import annotations

import click

from fcaffe import log
from fcaffe.cli.flags import Flags, caffe_flags


@click.command(
    "device_query",
    help="Show what is known of the GPUs --gpu ID,... This version has no GPU engine.",
    short_help="show what is known of GPUs: --gpu ID,...",
)
@caffe_flags
def device_query(flags: Flags) -> int:
    log.querying_gpus(flags.gpu)
    flags.refuse_gpu()
    return 0
