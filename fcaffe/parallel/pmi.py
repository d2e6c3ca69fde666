"""PMI-1 server: MPICH's library asks whoever started it by this protocol for its rank and its peers' addresses.

It is lines of text over a connected pair of sockets for each rank. Since they are answered here, ranks of one host need
no mpiexec: there is no process between agent and ranks, and no port that is open to the network.
"""

from __future__ import annotations

import contextlib
import secrets
import socket


class PmiServer:
    """Serves `size` ranks of one host. `leaving` are those that have finalized; `aborted` is MPI_Abort's exit code."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.leaving: set[int] = set()
        self.aborted: int | None = None
        self._name = f"fcaffe_{secrets.token_hex(8)}"  # MPICH names its shared memory by it: unlike any other job's
        self._values = {"PMI_process_mapping": f"(vector,(0,1,{size}))"}
        self._in_barrier: list[socket.socket] = []
        self._received: dict[socket.socket, bytes] = {}

    def environment(self, rank: int, descriptor: int) -> dict[str, str]:
        """What tells a rank's library its rank, and the descriptor of its end of the sockets."""
        return {
            "PMI_FD": str(descriptor),
            "PMI_RANK": str(rank),
            "PMI_SIZE": str(self.size),
            "MPI_LOCALRANKID": str(rank),
            "MPI_LOCALNRANKS": str(self.size),
        }

    def serve(self, rank: int, source: socket.socket) -> bool:
        """Answer what has come from a rank; whether its connection is still open."""
        try:
            data = source.recv(1 << 16)
        except OSError:
            data = b""
        *lines, self._received[source] = (self._received.get(source, b"") + data).split(b"\n")
        for line in lines:
            answer = self._answer(rank, source, line.decode(errors="replace"))
            if answer:
                _send(source, answer)
        return bool(data)

    def _answer(self, rank: int, source: socket.socket, line: str) -> str:
        line, _, value = line.partition(" value=")  # which may have blanks
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        command = words.get("cmd", "")
        if command == "put":
            self._values[words.get("key", "")] = value
        elif command == "get":
            found = self._values.get(words.get("key", ""))
            if found is None:
                return "cmd=get_result rc=-1 msg=key_not_found value=unknown"
            return f"cmd=get_result rc=0 msg=success value={found}"
        elif command == "barrier_in":
            self._in_barrier.append(source)
            if len(self._in_barrier) == self.size:
                for waiting in self._in_barrier:
                    _send(waiting, "cmd=barrier_out rc=0")
                self._in_barrier.clear()
        elif command == "finalize":
            self.leaving.add(rank)
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


def _send(to: socket.socket, line: str) -> None:
    with contextlib.suppress(OSError):  # it has just died
        to.sendall(f"{line}\n".encode())
