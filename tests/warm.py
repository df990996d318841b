"""`mrecordlog` in its own process without the start of Python: forked by a process that has imported all it needs.

Imports are most of what a command costs, and tests start hundreds: `ls` takes 0.25 s of processor time, `serve` 0.45 s.
A command that is forked has its own process, arguments, environment, directory and standard files like any other, and
ends like it, but for its modules. What start and end of Python do is shown by those that are `cold`, by the pages and
by the examples.

1. Each process of the suite starts `python -m tests.warm` once, which imports what the commands use.
2. For each command it receives arguments and surroundings, with four files: the three standard ones, and a pipe.
3. It forks. The child writes its id into the pipe, and becomes the command; the process writes how it ended.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import pkgutil
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any, cast

import mrecordlog_async

ROOT = Path(__file__).parents[1]
REQUEST_BYTES_MAX = 1 << 20
NUMBER = struct.Struct("=i")
COLD_ROOMS = ("mrecordlog_async.spark", "mrecordlog_async.fastapi", "mrecordlog_async.__main__")
"""What needs a second to be imported and is used by few commands, and what runs when it is imported."""
COMMAND = "mrecordlog_async.__main__"
READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "SSL_CERT_")
"""How the names of variables begin that Python or an import reads: other values need a new start."""


def start(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    cold: bool = False,
    program: str = COMMAND,
    **options: Any,
) -> subprocess.Popen[Any]:
    """Start `mrecordlog` with *arguments*. Other *options* are those of `subprocess.Popen`: files and the directory.

    environment: all variables; by default those of this process. cold: start Python. program: another module to run;
    its function `run` reads `sys.argv` and returns the exit code.
    """
    whole = dict(os.environ if environment is None else environment)
    if cold or _read_at_start(whole) != _warm().environment:
        return subprocess.Popen([sys.executable, "-m", program, *arguments], env=whole, **options)
    return Forked([program, *arguments], env=whole, **options)


def run(
    arguments: Sequence[str], stdin: str | bytes, *, seconds_max: float = 60, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """Run `mrecordlog` to its end, and return what it printed. *options* are those of `start`."""
    pipe = subprocess.PIPE
    with start(arguments, stdin=pipe, stdout=pipe, stderr=pipe, text=isinstance(stdin, str), **options) as process:
        try:
            out, err = process.communicate(stdin, timeout=seconds_max)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_START)}


class Forked(subprocess.Popen[Any]):
    """A command that the warm process has forked. Its parent is that process: the pipe says how it ended."""

    def __init__(self, arguments: Sequence[str], **options: Any) -> None:
        self._ending = -1
        super().__init__(arguments, **options)

    def _execute_child(  # of `subprocess`, which documents neither this nor what the next methods replace
        self,
        arguments: Sequence[str],
        executable: object,
        preexec: object,
        close_files: object,
        passed_files: object,
        directory: str | os.PathLike[str] | None,
        environment: Mapping[str, str],
        startup: object,
        flags: object,
        shell: object,
        *files_and_rest: Any,
    ) -> None:
        files: list[int] = list(files_and_rest[:6])
        request = {
            "arguments": list(arguments),
            "directory": os.fspath(directory or Path.cwd()),
            "environment": dict(environment),
            "ignored": [number for number in INTERRUPTS if signal.getsignal(number) == signal.SIG_IGN],
            "new_session": files_and_rest[NEW_SESSION],
        }
        standard = [given if given >= 0 else own for own, given in enumerate((files[0], files[3], files[5]))]
        self._ending, written = os.pipe()
        try:
            _warm().send(request, [*standard, written])
        finally:
            os.close(written)
        self.pid = self._read_number()
        self._child_created = True
        self._close_pipe_fds(*files)  # type: ignore[attr-defined]  # as above

    def _internal_poll(self, *_: object, **__: object) -> int | None:
        lock: threading.Lock = self._waitpid_lock  # type: ignore[attr-defined]
        if lock.acquire(blocking=False):  # another thread may wait for the end, with the lock
            try:
                if self.returncode is None and self._child_created:
                    self._end(*self._try_wait(os.WNOHANG))
            finally:
                lock.release()
        return self.returncode

    def _try_wait(self, flags: int) -> tuple[int, int]:
        """Do what `os.waitpid` does."""
        if self.returncode is None and flags & os.WNOHANG and not select.select([self._ending], [], [], 0)[0]:
            return 0, 0
        status = self._read_number()
        os.close(self._ending)
        return self.pid, status

    def _end(self, process: int, status: int) -> None:
        if process:
            self._handle_exitstatus(status)  # type: ignore[attr-defined]

    def _read_number(self) -> int:
        read = b""
        while len(read) < NUMBER.size:
            read += (part := os.read(self._ending, NUMBER.size - len(read)))
            assert part, "the warm process has ended"
        return cast(int, NUMBER.unpack(read)[0])


INTERRUPTS = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
NEW_SESSION = 11
"""Where `_execute_child` receives `start_new_session`, after *shell*."""


class _Warm:
    """The warm process of this one."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES_MAX)
        with theirs:
            command = [sys.executable, "-m", "tests.warm", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
        self.environment = _read_at_start(os.environ)
        atexit.register(self.end)

    def send(self, request: dict[str, Any], files: list[int]) -> None:
        """Have a command forked; the files stay open here."""
        socket.send_fds(self._socket, [json.dumps(request).encode()], files)

    def end(self) -> None:
        """End the process; commands that run continue."""
        self._socket.close()
        self._process.wait()


_started: list[_Warm] = []
_lock = threading.Lock()


def _warm() -> _Warm:
    with _lock:
        if not _started:
            _started.append(_Warm())
    return _started[0]


# In the warm process.


def main(number: int) -> int:
    """Import what commands use; then fork one for each request, until nobody can send any."""
    import_module("tests.faulty_serve")
    for module in pkgutil.walk_packages(mrecordlog_async.__path__, "mrecordlog_async."):
        if not module.name.startswith(COLD_ROOMS):
            import_module(module.name)
    gc.collect()
    gc.freeze()  # collections in a child would copy these pages
    requests = socket.socket(fileno=number)
    polled = select.poll()
    polled.register(requests, select.POLLIN)
    endings: dict[int, tuple[int, int]] = {}  # handle of a child → its id and the pipe
    while True:
        for ready, _ in polled.poll():
            if ready != number:
                polled.unregister(ready)
                child, pipe = endings.pop(ready)
                _tell(pipe, os.waitpid(child, 0)[1])
                os.close(pipe)
                os.close(ready)
                continue
            request, files, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 4)
            if not request:
                return 0
            child = os.fork()
            if not child:
                return _end(_command(json.loads(request), files))
            for file in files[:3]:
                os.close(file)
            handle = os.pidfd_open(child)
            endings[handle] = child, files[3]
            polled.register(handle, select.POLLIN)


def _tell(pipe: int, number: int) -> None:
    with suppress(BrokenPipeError):  # nobody waits any more
        os.write(pipe, NUMBER.pack(number))


def _command(request: dict[str, Any], files: list[int]) -> int:
    """Become the command, in a child; return its exit code."""
    if request["new_session"]:
        os.setsid()
    _tell(files[3], os.getpid())
    for own, file in enumerate(files[:3]):
        os.dup2(file, own)
    os.closerange(3, 1_024)
    for number in INTERRUPTS:
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in request["ignored"] else default)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    program, *arguments = request["arguments"]
    sys.argv = ["mrecordlog", *arguments]
    _open_standard_files()
    try:
        return cast(int, import_module(program).run())
    except SystemExit as end:
        if not isinstance(end.code, int):
            raise
        return end.code


def _end(code: int) -> int:
    """End a command as Python does, but leave its modules: freeing them copies every page of the warm process, 40 ms.

    Returns *code* where only the end of Python itself does the rest: if what was printed cannot be written.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # `threading` documents neither this nor
    atexit._run_exitfuncs()  # what `atexit` calls
    gc.collect()  # objects that complain when they are freed
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return code
    os._exit(code)


def _open_standard_files() -> None:
    """Make `sys.stdin`, `sys.stdout` and `sys.stderr` for other files, as Python makes them when it starts."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = cast(TextIOWrapper, getattr(sys, name))
        lines = name == "stderr" or os.isatty(number)
        file = open(  # noqa: SIM115  # open until the process ends
            number,
            "w" if number else "r",
            encoding=old.encoding,
            errors=old.errors,
            closefd=False,
            buffering=1 if lines and number else -1,
        )
        setattr(sys, name, file)
        setattr(sys, f"__{name}__", file)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
