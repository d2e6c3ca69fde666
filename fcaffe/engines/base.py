"""The base of all operators: an array module, derived weights, and work that an engine may repeat or split."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy

from fcaffe.engines.memory import address

Made = TypeVar("Made")


class Pending:
    """A copy or a computation that may not be complete yet. This base is complete."""

    def __init__(self, value: Any = None) -> None:
        self._value = value

    @property
    def done(self) -> bool:
        return True

    def wait(self) -> None:
        """Wait until it is complete."""

    def value(self) -> Any:
        """Wait for the result and return it."""
        self.wait()
        return self._value


DONE = Pending()


class WeightCache:
    """Reordered or folded weights, by the addresses of the weights and the kind of derivation.

    `changing` are addresses of weights that may change between two passes and are not cached. `token` is
    replaced when an entry is dropped, so users of the entries' memory can detect that by identity.
    """

    def __init__(self) -> None:
        self.changing: Collection[int] = ()
        self.token = object()
        self._addresses: set[int] = set()  # of all weights from which something was derived
        self._entries: dict[tuple[tuple[int, ...], Hashable], Any] = {}

    def get(self, addresses: tuple[int, ...], kind: Hashable, derive: Callable[[], Made]) -> Made | None:
        """The result of `derive`, which runs once for each kind; None if one of the weights may change."""
        if self.changing and any(address in self.changing for address in addresses):
            return None
        found: Made | None = self._entries.get((addresses, kind))
        if found is None:
            found = self._entries[addresses, kind] = derive()
            self._addresses.update(addresses)
        return found

    def drop(self, address: int) -> None:
        """Drop the entries that were derived from the weights at this address."""
        if address not in self._addresses:
            return
        stale = [key for key in self._entries if address in key[0]]
        for key in stale:
            del self._entries[key]
        if stale:
            self.token = object()

    def clear(self) -> None:
        """Drop all entries."""
        self._entries.clear()
        self.token = object()


class EngineBase:
    """What operators work with, on the array module `xp`.

    Operators of an `asynchronous` engine return before they have run. They run in the order of the calls.
    Activations have its 16-bit `half_dtype` if all layers that touch them support it. None: float32.
    """

    name = "plain"
    asynchronous = False
    parameter_step = 1  # parameters begin at multiples of so many values of a flat buffer
    weights_channels_last = False  # weights of convolutions have the memory order (outputs, kernel..., inputs)
    half_dtype: numpy.dtype[Any] | None = None
    half_arithmetic = True  # `xp` computes with arrays of that dtype
    records = False  # see recorded
    cache: WeightCache | None = None  # set while weights do not change
    host_views: Any = None  # see fcaffe.net.script.host_arrays
    updates_at_once = False  # update_all updates all parameters in one call
    loss_scale: Any = None  # of an engine whose gradients have 16 bits; see scale_losses

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    def make_current(self) -> None:
        """Prepare the calling thread for work on the engine's arrays."""

    def another(self) -> Any:
        """An engine of the same kind that another thread may use at the same time."""
        raise NotImplementedError

    @property
    def fixed(self) -> object | None:
        """The same object for as long as no weights have changed; None while they may change between two passes."""
        return None if self.cache is None or self.cache.changing else self.cache.token

    def fixed_weights(self, cache: WeightCache | None = None) -> contextlib.AbstractContextManager[None]:
        """While the body runs, weights do not change, so derived weights are cached: in `cache`, or only for the
        body."""
        return self._caching(cache or self.cache or WeightCache())

    def other_weights(self) -> contextlib.AbstractContextManager[None]:
        """While the body runs, weights change or move. The body may be inside that of `fixed_weights`."""
        return self._caching(None)

    @contextlib.contextmanager
    def _caching(self, cache: WeightCache | None) -> Iterator[None]:
        before, self.cache = self.cache, cache
        try:
            yield
        finally:
            self.cache = before

    def of_weights(self, sources: Sequence[Any], kind: Hashable, derive: Callable[[], Made]) -> Made | None:
        """The result of `derive` from these weights, cached for as long as they are fixed; None if they are not."""
        if self.cache is None or self.asynchronous:
            return None
        return self.cache.get(tuple([address(array) for array in sources]), kind, derive)

    def recorded(self, work: Callable[[], None], arrays: Sequence[Any]) -> Any:
        """Do work on these arrays, and return what repeats the engine's own calls when it is called, and appends those
        of a later one by `join`. It is valid while the arrays are not moved. None if the calls used other memory. Only
        calls of the engine's library are recorded."""
        work()
        return None

    def repeat(self, owner: Any, name: str, signature: Hashable, work: Callable[[], None]) -> None:
        """Do work that its owner repeats under this name: the same operators on the same memory while the signature
        stays the same. An engine may record the work and replay it instead of calling `work` again."""
        work()

    def read_later(self, array: Any) -> Pending:
        """The values of a small array after all work so far: a float if it has one value, else a NumPy array."""
        values = self.to_numpy(array)
        return Pending(float(values.reshape(-1)[0]) if values.size == 1 else numpy.array(values))

    def host_array(self, shape: tuple[int, ...], dtype: Any = numpy.float32) -> numpy.ndarray:
        """Uninitialised host memory, from which `upload` is fastest. For any thread."""
        return numpy.empty(shape, dtype)

    def upload(self, host: numpy.ndarray, target: Any) -> Pending:
        """target[...] = host, of one shape; `host` must stay as it is until the result is done."""
        target[...] = self.from_numpy(host)
        return DONE

    def is_finite(self, values: Any) -> bool:
        """Whether all values of a float32 array are finite."""
        return bool(self.xp.isfinite(values).all())

    def synchronize(self) -> None:
        """Wait until all operators have run."""

    def scale_losses(self, tops: Iterable[tuple[Any, float]]) -> None:
        """Before a backward pass: fill the gradient of each loss. `tops` has the gradients and weights of the losses.

        This base leaves the gradients, which hold the weights. An engine whose gradients have 16 bits may multiply them
        by a factor, and divide by it in the update."""

    def gradient_scale(self) -> float:
        """The factor of scale_losses in the gradients of the last backward pass. Waits for the device."""
        return 1.0

    def state(self) -> dict[str, numpy.ndarray]:
        """The engine's own state that later passes and updates depend on."""
        return {}

    def restore_state(self, state: dict[str, numpy.ndarray]) -> None:
        """Continue from the `state` of an engine, possibly of another kind."""

    def set_counters(self, *counters: int) -> None:
        """Set what the noise of the next pass depends on, for engines that draw it themselves: the first sample, then
        number, iteration and net of the `Moment`."""

    def for_each(self, work: Callable[..., None], items: Sequence[tuple[Any, ...]]) -> None:
        """Call work(*item) for each item, in any order; concurrently if there are many."""
        for item in items:
            work(*item)

    @contextlib.contextmanager
    def in_float32(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Iterator[list[Any]]:
        """Yields the inputs, then the outputs; as float32 copies if `xp` cannot compute with their type. Copies of
        outputs are copied back after the body."""
        yield [*inputs, *outputs]

    def from_numpy(self, array: numpy.ndarray) -> Any:
        """The array in the memory of this engine."""
        return self.xp.asarray(array)

    def to_numpy(self, array: Any) -> numpy.ndarray:
        """The array in host memory."""
        return numpy.asarray(array)
