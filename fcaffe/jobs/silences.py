"""All seconds in this package that decide something: how long a party may say nothing, and what its silence means.

A party that is stopped, such as a launcher after Ctrl-Z, is waited for, however long: its kernel keeps the connection
open. A cut link closes no connection. So carriers (`carrier.py`) at both ends of a link between hosts send one another
a sign of life every second, and close the connection on both sides when none comes.

| who says nothing                                              | for how long         | then                          |
|---------------------------------------------------------------|----------------------|-------------------------------|
| the carrier of another host                                   | SILENCE              | the link is cut               |
| a remote shell, before that carrier's first sign              | CALL                 | the host cannot be reached    |
| a rank in training that could run, and does not wait          | `--timeout`          | it hangs: the job ends        |
| all ranks, since they wait for one another                    | `--timeout`          | they hang: the job ends       |
| an agent, while the job ends after its cause is known         | SILENCE              | it is killed                  |
| other agents, after a rank has lost its peer, or crashed      | SILENCE              | nobody knows a better cause   |
| threads of user code, after a rank is done                    | LEAVE, or `--timeout` | the rank is killed           |
| processes of user code, after the ranks                       | STRAY                | they are killed               |
| a killed process, which the kernel does not let go            | KILLING              | an error names it             |
| the reader of the launcher's output, after the job            | READER               | the rest is dropped, and said |
| a host that `--restarts` or `--elastic` needs                 | PATIENCE             | the job ends                  |
| mpiexec, after a rank of its own has lost its peer            | NEWS                 | the rank reports it           |
"""

from __future__ import annotations

SILENCE, LEAST_SILENCE = 20.0, 5.0  # the latter if `--timeout` is less
CALL = 60.0
LEAVE = 30.0
STRAY = 5.0
KILLING = 8.0
READER = 5.0
PATIENCE = 900.0
NEWS = 3.0


def silence_of(timeout: float) -> float:
    """Seconds without a sign after which a link counts as cut, in a job with this `--timeout`."""
    return max(LEAST_SILENCE, min(SILENCE, timeout or SILENCE))
