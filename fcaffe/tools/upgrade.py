"""Upgrades files of older notations, as Caffe's three upgrade programs.

Each function returns Caffe's exit code: 1 if something was lost, 2 if the file is of another kind.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

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


def upgrade_net_text(source: str, target: str) -> int:
    return _upgrade_net("upgrade_net_proto_text", source, target, "text", read_text, write_text)


def upgrade_net_binary(source: str, target: str) -> int:
    return _upgrade_net("upgrade_net_proto_binary", source, target, "binary", read_binary, write_binary)


def upgrade_solver_text(source: str, target: str) -> int:
    tool = "upgrade_solver_proto_text"
    param = _read(tool, source, "text", pb.SolverParameter, read_text)
    if param is None:
        return 2
    if not param.HasField("solver_type"):
        log.already_upgraded(tool, source)
    upgrade_solver(param, source)
    write_text(target, param)
    log.wrote_upgraded(tool, "SolverParameter text", target)
    return 0


def _upgrade_net(
    tool: str, source: str, target: str, form: str, read: Callable[..., Any], write: Callable[..., Any]
) -> int:
    param = _read(tool, source, form, pb.NetParameter, read)
    if param is None:
        return 2
    if net_is_current(param):
        log.already_upgraded(tool, source)
    complete = upgrade_net(param, source)
    if not complete:
        log.problems_while_upgrading(tool)
    write(target, param)
    log.wrote_upgraded(tool, f"NetParameter {form}", target)
    return 0 if complete else 1


def _read(tool: str, path: str, form: str, kind: Any, read: Callable[..., Any]) -> Any:
    """Read a message. Returns None, and logs it, if the file holds no such message."""
    try:
        return read(path, kind)
    except (ProtoError, SnapshotError) as problem:
        if not os.path.isfile(path):
            raise
        log.error(str(problem))
        log.cannot_upgrade(tool, f"{form} file as {kind.DESCRIPTOR.name}", path)
        return None
