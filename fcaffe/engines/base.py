"""The base of all operators: an array module, and work that an engine may repeat or split."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy

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
    derived: Any = None  # the values that the layer at work caches; see fcaffe.net.derived
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

    def of_weights(self, operator: Hashable, derive: Callable[[], Made], source: Any = None) -> Made | None:
        """The result of `derive` from `source`, an array of weights, or from all weights of the layer at work. None if
        the layer does not cache it: `source` may be another array."""
        return None if self.derived is None else self.derived.get(operator, derive, source)

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
