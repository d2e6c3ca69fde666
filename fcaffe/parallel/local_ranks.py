"""The ranks of one host as children of this process, without an mpiexec.

MPICH's library asks whoever started it for its place among the ranks by PMI-1, lines of text over a connected pair of
sockets. To answer it here takes a page, and what mpiexec brings along is gone: a process between the launcher and the
ranks whose death leaves them behind, a port that is open to the network, an exit code that does not say who died of
what. The kernel tells this process how each rank has ended, and ends the ranks if this process dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO

GRACE = 3.0  # seconds, after a rank was killed, that the guard has to say so and to end the others
TICK = 0.2  # seconds between two looks at the ranks, if none of them says anything

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


def dies_with(parent: int) -> Callable[[], None]:
    """For the child's side of a fork by process `parent`: the kernel kills the child when the parent dies."""

    def prepare() -> None:
        if _libc is not None:
            _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
            if os.getppid() != parent:  # it died before
                os._exit(1)

    return prepare


class LocalRanks:
    """`workers` processes of this host that run `program` as the ranks of one MPI job.

    `stdin` is that of rank 0; `stdout` and `stderr` are those of all. `first` is the rank that ended first without
    having left the job in order, `killed_by` the signal it died of, if any.
    """

    def __init__(self, program: Sequence[str], workers: int, environment: Mapping[str, str]) -> None:
        self.workers = workers
        self.first: int | None = None
        self.killed_by = 0
        self._code = 0
        self._deadline: float | None = None  # when those that are left are killed
        self._name = f"fcaffe_{secrets.token_hex(8)}"  # of which MPICH makes those of its shared memory: no other job's
        self._values = {"PMI_process_mapping": f"(vector,(0,1,{workers}))"}
        self._in_barrier: list[socket.socket] = []
        self._received: dict[int, bytes] = {}
        self._leaving: set[int] = set()
        self._sockets = selectors.DefaultSelector()
        self._processes: list[subprocess.Popen[bytes]] = []
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        self.stdout: IO[bytes] = os.fdopen(out, "rb")
        self.stderr: IO[bytes] = os.fdopen(err, "rb")
        try:
            for rank in range(workers):
                self._start(rank, program, environment, out_end, err_end)
        except OSError:
            self.kill()
            raise
        finally:
            os.close(out_end)
            os.close(err_end)
        stdin = self._processes[0].stdin
        assert stdin is not None
        self.stdin: IO[bytes] = stdin

    def _start(self, rank: int, program: Sequence[str], environment: Mapping[str, str], out: int, err: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            place = {
                "PMI_FD": str(theirs.fileno()),
                "PMI_RANK": str(rank),
                "PMI_SIZE": str(self.workers),
                "MPI_LOCALRANKID": str(rank),
                "MPI_LOCALNRANKS": str(self.workers),
            }
            self._processes.append(
                subprocess.Popen(
                    program,
                    env={**environment, **place},
                    stdin=subprocess.DEVNULL if rank else subprocess.PIPE,
                    stdout=out,
                    stderr=err,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # the terminal's Ctrl-C goes to the launcher alone
                    preexec_fn=dies_with(os.getpid()),
                )
            )
        self._received[rank] = b""
        self._sockets.register(ours, selectors.EVENT_READ, rank)

    def wait(self, seconds: float) -> int | None:
        """The exit code of the job, once all ranks have ended; None if that takes longer than so many seconds.

        It is that of MPI_Abort, or of the first rank that ended otherwise than in order: as a shell has it, 128 and the
        signal for one that was killed.
        """
        deadline = time.monotonic() + seconds
        while True:
            if self._have_ended():
                return self._code
            if time.monotonic() > deadline:
                return None
            if not self._listen(TICK):
                time.sleep(0.0 if self._sockets.get_map() else TICK / 10)

    def _listen(self, seconds: float) -> bool:
        """Answer what ranks ask; whether one has, within so many seconds."""
        ready = self._sockets.select(seconds) if self._sockets.get_map() else []
        for key, _ in ready:
            self._hear(key.data, key.fileobj)  # type: ignore[arg-type]
        return bool(ready)

    def _have_ended(self) -> bool:
        codes = [process.poll() for process in self._processes]
        while self._listen(0):
            pass  # the last words of those that have ended are still to be read
        for rank, code in enumerate(codes):
            in_order = code is None or (code == 0 and (rank in self._leaving or not any(c is None for c in codes)))
            if not in_order and self.first is None:
                assert code is not None
                self.first, self.killed_by = rank, max(0, -code)
                self._code = self._code or (128 - code if code < 0 else code or 1)
                # One that ended by itself has said why. Of one that was killed the guard knows what it was doing.
                self._deadline = time.monotonic() + (GRACE if code < 0 else TICK)
        if self._deadline is not None and time.monotonic() > self._deadline:
            self.kill()
        return None not in codes

    def kill(self) -> None:
        """End those that are left at once."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()

    def close(self) -> None:
        """After all have ended."""
        for key in list(self._sockets.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._sockets.close()
        with contextlib.suppress(OSError):
            self.stdin.close()

    # --- PMI-1 --------------------------------------------------------------------------------------------------------

    def _hear(self, rank: int, source: socket.socket) -> None:
        try:
            data = source.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._sockets.unregister(source)
            source.close()
            return
        *lines, self._received[rank] = (self._received[rank] + data).split(b"\n")
        for line in lines:
            answer = self._answer(rank, source, line.decode(errors="replace"))
            if answer:
                _send(source, answer)

    def _answer(self, rank: int, source: socket.socket, line: str) -> str:
        line, _, value = line.partition(" value=")  # which may have blanks
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        command = words.get("cmd", "")
        if command == "init":
            return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"
        if command == "get_maxes":
            return "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024 rc=0"
        if command == "get_appnum":
            return "cmd=appnum appnum=0 rc=0"
        if command == "get_my_kvsname":
            return f"cmd=my_kvsname kvsname={self._name} rc=0"
        if command == "get_universe_size":
            return f"cmd=universe_size size={self.workers} rc=0"
        if command == "put":
            self._values[words.get("key", "")] = value
            return "cmd=put_result rc=0 msg=success"
        if command == "get":
            found = self._values.get(words.get("key", ""))
            if found is None:
                return "cmd=get_result rc=-1 msg=key_not_found value=unknown"
            return f"cmd=get_result rc=0 msg=success value={found}"
        if command == "barrier_in":
            self._in_barrier.append(source)
            if len(self._in_barrier) == self.workers:
                for waiting in self._in_barrier:
                    _send(waiting, "cmd=barrier_out rc=0")
                self._in_barrier.clear()
            return ""
        if command == "finalize":
            self._leaving.add(rank)
            return "cmd=finalize_ack rc=0"
        if command == "abort":
            code = words.get("exitcode", "")
            self._code = self._code or (int(code) if code.isdecimal() else 1)
            self._deadline = time.monotonic()
            return ""
        return f"cmd={command}_result rc=-1 msg=unknown_command"


def _send(to: socket.socket, line: str) -> None:
    with contextlib.suppress(OSError):  # it has just died
        to.sendall(f"{line}\n".encode())
