"""What the signals of a training ask for: SIGINT, SIGHUP, SIGTERM, and the clock of temporary snapshots."""

from __future__ import annotations

import signal
import time
from collections import deque
from types import FrameType
from typing import Any

from fcaffe.errors import UsageError
from fcaffe.solvers import Action

EFFECTS = {"stop": Action.STOP, "snapshot": Action.SNAPSHOT, "none": Action.NONE}


class Signals:
    """Within a `with`, signal handlers only record what was asked for; the training loop calls `requested`.

    Batch systems send SIGTERM some time before they kill. A temporary snapshot is asked for every `save_every` seconds,
    unless that is 0.
    """

    def __init__(self, sigint_effect: str, sighup_effect: str) -> None:
        self._effects = {signal.SIGTERM: Action.TERMINATE}
        for name, effect in (("sigint", sigint_effect), ("sighup", sighup_effect)):
            if effect not in EFFECTS:
                problem = f'Invalid signal effect "{effect}" was specified'
                raise UsageError(f"{problem}; give --{name}_effect one of {', '.join(EFFECTS)}")
            if hasattr(signal, name.upper()):  # Windows has no SIGHUP
                self._effects[signal.Signals[name.upper()]] = EFFECTS[effect]
        self._noted: deque[Action] = deque()  # appending is atomic, whenever a signal arrives
        self._before: dict[signal.Signals, Any] = {}
        self.terminated = False
        self.save_every = 0.0
        self._saved = time.monotonic()

    def requested(self) -> Action:
        """Return the most urgent effect of the signals since the last call."""
        action = Action.NONE
        if self.save_every and time.monotonic() > self._saved + self.save_every:
            self._saved, action = time.monotonic(), Action.SAVE
        while self._noted:
            action = max(action, self._noted.popleft())
        self.terminated |= action is Action.TERMINATE
        return action

    def stopping(self) -> list[signal.Signals]:
        """Return the signals that end a training."""
        return [number for number, action in self._effects.items() if action in (Action.STOP, Action.TERMINATE)]

    def __enter__(self) -> Signals:
        def note(number: int, frame: FrameType | None) -> None:
            self._noted.append(self._effects[signal.Signals(number)])

        self._before = {number: signal.signal(number, note) for number in self._effects}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
