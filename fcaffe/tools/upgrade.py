"""Upgrades files of older notations, as Caffe's three upgrade programs."""

from __future__ import annotations

import os

from fcaffe import log
from fcaffe.errors import ProtoError, SnapshotError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import (
    net_is_current,
    read_binary,
    read_text,
    upgrade_net,
    upgrade_solver,
    write_binary,
    write_text,
)


def upgrade(tool: str, source: str, target: str) -> int:
    """Upgrade a file as the program `tool`, such as upgrade_net_proto_text.

    Returns:
        Caffe's exit code: 1 if something was lost, 2 if the source is of another kind.
    """
    kind = pb.SolverParameter if "solver" in tool else pb.NetParameter
    form = tool.rpartition("_")[2]
    try:
        param = (read_binary if form == "binary" else read_text)(source, kind)
    except (ProtoError, SnapshotError) as problem:
        if not os.path.isfile(source):
            raise
        log.error(str(problem))
        log.cannot_upgrade(f"{form} file as {kind.DESCRIPTOR.name}", source, tool)
        return 2
    complete = True
    if kind is pb.SolverParameter:
        if not param.HasField("solver_type"):
            log.already_upgraded(source, tool)
        upgrade_solver(param, source)
    else:
        if net_is_current(param):
            log.already_upgraded(source, tool)
        complete = upgrade_net(param, source)
        if not complete:
            log.problems_while_upgrading(tool)
    (write_binary if form == "binary" else write_text)(target, param)
    log.wrote_upgraded(tool, f"{kind.DESCRIPTOR.name} {form}", target)
    return 0 if complete else 1
