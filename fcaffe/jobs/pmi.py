"""PMI-1 server: MPICH's library asks its parent process by this protocol for its rank and its peers' addresses.

The protocol sends lines of text over a pair of connected sockets for each rank. Since the agent answers them, the ranks
need no mpiexec, and no port is open to the network. Each host has a server. At a barrier each server sends the values
of its ranks to the launcher, which sends the values of all ranks back to every server.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

Answer = Callable[[bytes], object]


def process_mapping(counts: Sequence[int]) -> str:
    """MPICH's description of so many consecutive ranks on each host: blocks of (first host, hosts, ranks on each)."""
    blocks, first = [], 0
    for count, same in itertools.groupby(counts):
        number = len(list(same))
        blocks.append(f"({first},{number},{count})")
        first += number
    return f"(vector,{','.join(blocks)})"


class PmiServer:
    """Serves `count` ranks of this host, from rank `first` on, of a job of `size` ranks.

    `name` is the job's; MPICH names its shared memory by it. When all of these ranks are in a barrier, and they are not
    all ranks of the job, `meet` is called with the values that they have put; `release` lets them out. `aborted` is
    the exit code with which a rank has called MPI_Abort.
    """

    def __init__(
        self, name: str, first: int, count: int, size: int, mapping: str, meet: Callable[[dict[str, str]], None]
    ) -> None:
        self.count = count
        self.size = size
        self.meet = meet
        self.aborted: int | None = None
        self._first = first
        self._name = f"fcaffe_{name}"
        self._values = {"PMI_process_mapping": mapping}
        self._put: dict[str, str] = {}
        self._in_barrier: list[Answer] = []

    def environment(self, rank: int) -> dict[str, str]:
        """The variables that tell a rank's library its rank."""
        return {
            "PMI_RANK": str(rank),
            "PMI_SIZE": str(self.size),
            "MPI_LOCALRANKID": str(rank - self._first),
            "MPI_LOCALNRANKS": str(self.count),
        }

    def serve(self, answer: Answer, text: bytes) -> None:
        """Answer the lines of a rank by this function, which sends bytes to it."""
        for line in text.decode(errors="replace").splitlines():
            if said := self._answer(answer, line):
                answer(f"{said}\n".encode())

    def release(self, values: dict[str, str]) -> None:
        """Let the ranks out of the barrier, with the values that all ranks of the job have put before it."""
        self._values |= values
        waiting, self._in_barrier = self._in_barrier, []
        for answer in waiting:
            answer(b"cmd=barrier_out rc=0\n")

    def _answer(self, answer: Answer, line: str) -> str:
        line, _, value = line.partition(" value=")  # which may have blanks
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        command = words.get("cmd", "")
        if command == "put":
            self._put[words.get("key", "")] = value
        elif command == "get":
            found = self._values.get(words.get("key", ""))
            if found is None:
                return "cmd=get_result rc=-1 msg=key_not_found value=unknown"
            return f"cmd=get_result rc=0 msg=success value={found}"
        elif command == "barrier_in":
            self._in_barrier.append(answer)
            if len(self._in_barrier) == self.count:
                put, self._put = self._put, {}
                (self.release if self.count == self.size else self.meet)(put)
        elif command == "abort":
            code = words.get("exitcode", "")
            self.aborted = int(code) if code.isdecimal() else 1
        answers = {
            "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            "get_maxes": "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024 rc=0",
            "get_appnum": "cmd=appnum appnum=0 rc=0",
            "get_my_kvsname": f"cmd=my_kvsname kvsname={self._name} rc=0",
            "get_universe_size": f"cmd=universe_size size={self.size} rc=0",
            "put": "cmd=put_result rc=0 msg=success",
            "barrier_in": "",
            "finalize": "cmd=finalize_ack rc=0",
            "abort": "",
        }
        return answers.get(command, f"cmd={command}_result rc=-1 msg=unknown_command")
