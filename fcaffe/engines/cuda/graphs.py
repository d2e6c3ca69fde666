"""Records repeated work as CUDA graphs, which launch all of its kernels at once."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from fcaffe import log
from fcaffe.errors import FcaffeError

WARM = 2  # runs before work is recorded, in which kernels are compiled, plans chosen and memory allocated


@dataclass
class Recorded:
    """The state of one piece of work: its signature, its runs so far, whether CUDA has refused to record it, and its
    graph with the memory pool of that graph."""

    signature: Hashable
    done: int = 0
    refused: bool = False
    graph: Any = None
    pool: Any = None


class Graphs:
    """The CUDA graphs of an engine, on its stream.

    Recorded work must compute everything on the device. Addresses and numbers that the host passes become constants of
    the graph. So numbers that change from run to run are read from device memory, and everything else that the work
    depends on belongs in its signature. Graphs use the memory of the owner of their work, and are deleted with it.
    """

    def __init__(self, cupy: Any, stream: Any) -> None:
        self.cupy, self.stream = cupy, stream
        self._owners: weakref.WeakKeyDictionary[Any, dict[str, Recorded]] = weakref.WeakKeyDictionary()

    def run(self, owner: Any, name: str, signature: Hashable, work: Callable[[], None]) -> None:
        """Do the work: the first times directly, then as a graph, as long as the signature is the same."""
        works = self._owners.setdefault(owner, {})
        recorded = works.get(name)
        if recorded is None or recorded.signature != signature:
            recorded = works[name] = Recorded(signature)
        if recorded.graph is None and recorded.done >= WARM and not recorded.refused:
            self._capture(name, recorded, work)
        if recorded.graph is None:
            work()
            recorded.done += 1
        else:
            recorded.graph.launch(self.stream)

    def _capture(self, name: str, recorded: Recorded, work: Callable[[], None]) -> None:
        pool = self.cupy.cuda.MemoryPool()
        self.cupy.get_default_memory_pool().free_all_blocks()  # temporary memory of the runs before
        with self.cupy.cuda.using_allocator(pool.malloc):
            self.stream.begin_capture()
            try:
                work()
            except BaseException as problem:
                with contextlib.suppress(self.cupy.cuda.runtime.CUDARuntimeError):  # the same error again
                    self.stream.end_capture()
                ours = isinstance(problem, FcaffeError) and not isinstance(problem, MemoryError)
                if ours or not isinstance(problem, RuntimeError | MemoryError):  # the errors of CUDA and its libraries
                    raise
                recorded.refused = True
                log.warning(f"No CUDA graph of the {name}, it runs step by step: {' '.join(str(problem).split())}")
                return
            recorded.graph, recorded.pool = self.stream.end_capture(), pool
