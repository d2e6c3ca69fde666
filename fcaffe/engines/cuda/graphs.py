"""Work that is done again and again, as CUDA graphs: one launch for all of its kernels."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from fcaffe import log
from fcaffe.errors import FcaffeError

WARM = 2  # times that work is done before it is captured: kernels are compiled then, plans chosen, memory made


@dataclass
class Recorded:
    """What is known of one piece of work: for which signature, how often done, whether it cannot be recorded, and its
    graph with the memory that the graph alone may use."""

    signature: Hashable
    done: int = 0
    refused: bool = False
    graph: Any = None
    pool: Any = None


class Graphs:
    """The CUDA graphs of an engine, on its stream.

    Work that is captured must do all its computing on the device: addresses and numbers that the host hands over are
    part of the graph for good. What changes from one time to the next is read from the device's memory; what else it
    depends on belongs into its signature. Graphs live no longer than the owner of their work, whose memory they use.
    """

    def __init__(self, cupy: Any, stream: Any) -> None:
        self.cupy, self.stream = cupy, stream
        self._owners: weakref.WeakKeyDictionary[Any, dict[str, Recorded]] = weakref.WeakKeyDictionary()

    def run(self, owner: Any, name: str, signature: Hashable, work: Callable[[], None]) -> None:
        """Do the work: at first as it is, from then on as a graph, for as long as the signature is the same."""
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
        self.cupy.get_default_memory_pool().free_all_blocks()  # what the work took before it had memory of its own
        with self.cupy.cuda.using_allocator(pool.malloc):
            self.stream.begin_capture()
            try:
                work()
            except (RuntimeError, MemoryError) as problem:  # as those of CUDA and its libraries are
                self._end_failed_capture()
                if isinstance(problem, FcaffeError) and not isinstance(problem, MemoryError):
                    raise
                recorded.refused = True
                log.warning(f"No CUDA graph of the {name}, it runs step by step: {' '.join(str(problem).split())}")
                return
            except BaseException:
                self._end_failed_capture()
                raise
            recorded.graph, recorded.pool = self.stream.end_capture(), pool

    def _end_failed_capture(self) -> None:
        with contextlib.suppress(self.cupy.cuda.runtime.CUDARuntimeError):  # it says again what made it invalid
            self.stream.end_capture()
