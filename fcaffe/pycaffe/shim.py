"""`import caffe` for a user's Python layers.

fcaffe installs no package named caffe, which would hide a real pycaffe or be hidden by one. Instead a module of this
name is put into the running process when a net first has a Python layer. It has pycaffe's names, `caffe.proto` and
`caffe.proto.caffe_pb2`, and from then on every `import caffe` in the process finds it: even where a pycaffe is
installed, as a class that derives from that one's Layer cannot work in a net of fcaffe. Only a process that has
imported another caffe before keeps it; the modules of its Python layers then say `import fcaffe as caffe`.
"""

from __future__ import annotations

import functools
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from fcaffe.proto import caffe_pb2
from fcaffe.pycaffe import interface


def provide_caffe() -> ModuleType:
    """Let `import caffe` find fcaffe's Python interface, unless another caffe was imported; returns fcaffe's."""
    modules = _modules()
    if "caffe" not in sys.modules:
        sys.modules.update(modules)
    return modules["caffe"]


@functools.cache
def _modules() -> dict[str, ModuleType]:
    """The module `caffe` and those in it, by full name."""
    names = {name: getattr(interface, name) for name in interface.__all__}
    proto = _package("caffe.proto", "Caffe's messages.", {"caffe_pb2": caffe_pb2})
    caffe = _package("caffe", "fcaffe's Python interface under Caffe's name.", {**names, "proto": proto})
    return {"caffe": caffe, "caffe.proto": proto, "caffe.proto.caffe_pb2": caffe_pb2}


def _package(name: str, doc: str, content: dict[str, Any]) -> ModuleType:
    """A package of this content, in which Python finds no further modules."""
    made = ModuleType(name, doc)
    made.__spec__ = ModuleSpec(name, None, is_package=True)
    made.__path__ = []
    vars(made).update(content)
    return made
