"""The engine's operators, as a layer calls them, on a tape: what they make primitives do, or else they themselves.

Between two primitives of a small net Python takes a third of their time: to find out which blobs lie where, what has
been made for such shapes, and at which addresses. All of that is the same in the next pass.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fcaffe.engines.convolution import PlainConvolution
from fcaffe.engines.elementwise import PlainElementwise
from fcaffe.engines.engine import Engine
from fcaffe.engines.inner_product import PlainInnerProduct
from fcaffe.engines.memory import address
from fcaffe.engines.normalization import PlainNormalization
from fcaffe.engines.onednn.calls import Calls
from fcaffe.engines.onednn.tape import Tape, lie_in
from fcaffe.engines.pooling import PlainPooling

Array = Any

KINDS = (PlainConvolution, PlainPooling, PlainNormalization, PlainInnerProduct, PlainElementwise)
OPERATORS = [
    name
    for kind in KINDS
    for name, function in inspect.getmembers(kind, inspect.isfunction)
    if not name.startswith("_") and inspect.signature(function).return_annotation == "None"
]


class OperatorTape:
    """Takes down the operators that are called while it is `listening`, all of which have to work on these arrays and
    on the library's temporary memory.

    Of an operator the calls of primitives are taken down if they do all of its work: it must get by without writing its
    arrays by NumPy, and when the calls are made again, alone and on the arrays as they were, with NaN in all temporary
    memory, the arrays must come to the same bits. Any other is itself called again.
    """

    def __init__(self, engine: Engine, library: Calls, arrays: Sequence[Array]) -> None:
        self.tape = Tape(library)
        self.counts = True  # whether all arrays lie where they will lie the next time
        self._engine, self._library, self._arrays = engine, library, arrays

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        self._start()
        try:
            yield
        finally:
            self._stop()

    def _start(self) -> None:
        taken = {name: functools.partial(self._take, getattr(self._engine, name)) for name in OPERATORS}
        vars(self._engine).update(taken)  # in front of the methods of these names

    def _stop(self) -> None:
        for name in OPERATORS:
            vars(self._engine).pop(name, None)

    def _take(self, operator: Callable[..., None], *arguments: Any, **named: Any) -> None:
        self._stop()  # what operators call within is part of them
        if named:
            operator = functools.partial(operator, **named)
        try:
            given = list(_arrays(arguments))
            if not lie_in(map(address, given), [*self._arrays, *self._library.temporaries()]):
                self.counts = False
                operator(*arguments)
                return
            before = [array.copy() for array in given]
            calls = self._calls(operator, arguments, given, before)
            if calls is not None:
                self.tape.append(calls)
                return
            _restore(given, before)
            operator(*arguments)
            self.tape.add_operator(operator, arguments)
        finally:
            self._start()

    def _calls(
        self, operator: Callable[..., None], arguments: tuple[Any, ...], given: list[Array], before: list[Array]
    ) -> Tape | None:
        """The operator's calls of primitives, if they do all of its work; it may have done some of it if not."""
        library = self._library
        library.tape = tape = Tape(library)
        try:
            operator(*map(_protected, arguments))
        except ValueError:  # NumPy's, of what is protected
            return None
        finally:
            library.tape = None
        temporaries = library.temporaries()
        if tape.is_empty or not tape.works_on([*given, *temporaries]):
            return None
        after, between = [array.copy() for array in given], [memory.copy() for memory in temporaries]
        for memory in temporaries:
            memory.view(np.uint8)[...] = 255
        _restore(given, before)
        tape()
        same = all(map(_same_bits, given, after))
        _restore(temporaries, between)
        return tape if same else None


def _arrays(arguments: Sequence[Any]) -> Iterator[Array]:
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            yield argument
        elif isinstance(argument, list):
            yield from _arrays(argument)


def _protected(argument: Any) -> Any:
    """A view that NumPy does not write."""
    if isinstance(argument, list):
        return [_protected(each) for each in argument]
    if not isinstance(argument, np.ndarray):
        return argument
    view = argument.view()
    view.flags.writeable = False
    return view


def _restore(arrays: list[Array], before: list[Array]) -> None:
    for array, values in zip(arrays, before, strict=True):
        array[...] = values


def _same_bits(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes()
