"""The host views of an engine: writable NumPy arrays in C order for its blobs, wherever these are stored."""

from __future__ import annotations

import weakref

import numpy as np

from fcaffe.engines import Engine
from fcaffe.net.device_views import DeviceViews
from fcaffe.net.host_arrays import HostViews


def host_views(engine: Engine) -> HostViews:
    """The host views for the blobs of this engine: one object per engine."""
    found = _views.get(id(engine))
    if found is None:
        kind = HostViews if engine.xp is np else DeviceViews
        found = _views[id(engine)] = kind(weakref.proxy(engine))
        weakref.finalize(engine, _views.pop, id(engine), None)
    return found


_views: dict[int, HostViews] = {}  # by the engine's id
