"""A process that has imported torch already, and forks: children start in milliseconds.

A child that begins as `python -m` imports torch for two seconds. Where many are started one
after the other, as in tests, a server imports once and forks for each. A child is as if it had
been started afresh: its own pipes, environment, session, signal handlers and random state. The
server has one thread and computes nothing, so there is nothing that a fork could tear apart.

    with preloaded("torch", "distributed"):
        ...  # every `python -m kdlab.…` that subprocess.Popen is asked for is forked

kdlab knows nothing of it: `subprocess.Popen` is what it always calls. A process of a session of
its own (a run) gets a server of its own first, so that its children belong to its session and
process group as they otherwise would.
"""

import atexit
import contextlib
import fcntl
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from kdlab.codec import from_builtins, to_builtins

# What a running process has read of its environment once and for all.
_FIXED = ("PYTHON", "LD_", "MKL_", "CUDA_", "TORCH_", "MALLOC_")
_MAX_FDS = 64
_MESSAGE = 1 << 17  # bytes, of a request

_HERE = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); "
SERVER = (
    _HERE + "import fork_server; del sys.path[0]; fork_server.main"
)  # of a control socket

_server: "_Connection | None" = None  # of this process


@contextlib.contextmanager
def preloaded(*modules: str) -> Iterator[None]:
    """Have children of this process forked from a server that has imported these modules."""
    global _server  # noqa: PLW0603  # a process has one
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = subprocess.Popen(
        [sys.executable, "-c", f"{SERVER}({theirs.fileno()})", *modules],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
    )
    theirs.close()
    before, _server = _server, _Connection(ours)
    subprocess.Popen = _ForkingPopen  # type: ignore[misc]
    try:
        yield
    finally:
        _server = before
        ours.close()  # it ends by that
        server.wait()


def forked(
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    fds: Mapping[int, int],
    *,
    new_session: bool = False,
) -> "ForkedProcess | None":
    """A child of the server, which behaves as `python -m MODULE`; None where it cannot be made.

    `environment` is all of it; `fds` are the file descriptors it has, by the number in it. One of
    a session of its own gets a server of its own.
    """
    if _server is None or len(fds) > _MAX_FDS:
        return None
    if _fixed(environment) != _server.fixed:
        return None
    request = _ForkRequest(
        module=module,
        arguments=tuple(arguments),
        environment=environment,
        folder=os.getcwd(),
        fds=tuple(fds),
        new_session=new_session,
    )
    return _server.start(request, list(fds.values()))


_Popen = subprocess.Popen  # the library's own
_KNOWN = {"stdin", "stdout", "stderr", "pass_fds", "env", "start_new_session"}


class _ForkingPopen(_Popen):  # type: ignore[type-arg]
    """The library's, but a module of kdlab is forked where there is a server."""

    def __new__(cls, args: Sequence[str], **options: Any) -> Any:
        ours = list(args[:2]) == [sys.executable, "-m"] and args[2].startswith("kdlab.")
        process = (
            _opened(args[2], args[3:], **options)
            if ours and options.keys() <= _KNOWN
            else None
        )
        return process or super().__new__(cls)


def _opened(
    module: str,
    arguments: Sequence[str],
    *,
    stdin: Any = None,
    stdout: Any = None,
    stderr: Any = None,
    pass_fds: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
    start_new_session: bool = False,
) -> "ForkedProcess | None":
    """Start a module as `subprocess.Popen` does; None where it cannot be forked."""
    mine: dict[int, int] = {}  # by the child's number: our end of its pipe
    fds, theirs = {fd: fd for fd in pass_fds}, []
    for number, stream in enumerate((stdin, stdout, stderr)):
        if stream == subprocess.PIPE:
            reading, writing = os.pipe()
            mine[number], end = (reading, writing) if number else (writing, reading)
            theirs.append(end)
        else:
            end = (
                number
                if stream is None
                else stream
                if isinstance(stream, int)
                else stream.fileno()
            )
        fds[number] = end
    process = forked(
        module,
        arguments,
        os.environ if env is None else env,
        fds,
        new_session=start_new_session,
    )
    for end in (*theirs, *(() if process else mine.values())):
        os.close(end)
    if process:
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            if number in mine:
                setattr(process, name, os.fdopen(mine[number], "rb" if number else "wb"))
    return process


@dataclass(frozen=True, slots=True, kw_only=True)
class _ForkRequest:
    """A request of `forked` to the server."""

    module: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str
    fds: tuple[int, ...]  # numbers that those that come with it get
    new_session: bool


def _fixed(environment: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in environment.items() if k.startswith(_FIXED)}


class ForkedProcess:
    """A stand-in for `subprocess.Popen`: the parent of its process is the server."""

    stdin: IO[bytes] | None = None
    stdout: IO[bytes] | None = None
    stderr: IO[bytes] | None = None

    def __init__(self, module: str, pid: int, news: socket.socket) -> None:
        self.args, self.pid, self.returncode = module, pid, None
        self._news = news  # its exit status comes here
        self._lock = threading.Lock()  # several threads may wait for it

    returncode: int | None

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, when it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not, after so many seconds.
        """
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._news], [], [], timeout)[0]:
            with self._lock:
                self._learn()
        return self.returncode

    def _learn(self) -> None:
        if self.returncode is None:
            reply = self._news.recv(64).split()
            # Nothing: the server was killed, and nobody will ever know.
            status = int(reply[1]) if reply else signal.SIGKILL
            self.returncode = os.waitstatus_to_exitcode(status)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Connection:
    """A connection to the server; several threads may start children."""

    def __init__(self, control: socket.socket) -> None:
        self.control, self._lock = control, threading.Lock()
        self.fixed = _fixed(os.environ)  # as the server was started with

    def start(self, request: _ForkRequest, fds: list[int]) -> ForkedProcess | None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        message = json.dumps(to_builtins(request)).encode()
        if len(message) > _MESSAGE:
            return None
        try:
            with theirs, self._lock:
                socket.send_fds(self.control, [message], [theirs.fileno(), *fds])
            reply = ours.recv(64).split()
        except OSError:
            reply = []
        if reply[:1] != [b"up"]:  # no server, or it failed: it is started in the usual way
            ours.close()
            return None
        return ForkedProcess(request.module, int(reply[1]), ours)


# In the server


def main(control: int) -> None:
    """Import what the command line names; then fork whenever somebody asks."""
    _name("fork server")  # it finds its place now, while the environment is as it was
    for name in sys.argv[1:]:
        importlib.import_module(name)
    if threading.active_count() > 1:  # OpenBLAS's own, which it makes anew, do not count
        raise SystemExit(f"Threads run after {sys.argv[1:]}: that cannot be forked")
    _serve(socket.socket(fileno=control))


def _serve(control: socket.socket) -> None:
    """Fork until nobody can ask any more; returns in no process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for those who compute
    waking, woken = os.pipe()
    for end in (waking, woken):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    news: dict[int, socket.socket] = {}  # by child: who wants to know how it ended
    while True:
        ends: list[socket.socket | int] = [control, waking]
        ready, _, _ = select.select(ends, [], [])
        if waking in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(waking, 4096)
            _reap(news)
        if control in ready:
            request, fds, _, _ = socket.recv_fds(control, _MESSAGE, _MAX_FDS + 1)
            if not request:
                os._exit(0)
            asked = from_builtins(_ForkRequest, json.loads(request))
            _fork(asked, fds, news, (control.fileno(), waking, woken))


def _reap(news: dict[int, socket.socket]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            with contextlib.suppress(OSError), news.pop(pid) as asked:  # or nobody waits
                asked.send(f"ended {status}".encode())


def _fork(
    request: _ForkRequest,
    fds: list[int],
    news: dict[int, socket.socket],
    server_fds: Sequence[int],
) -> None:
    pid = os.fork()
    if pid:
        for fd in fds[1:]:
            os.close(fd)
        news[pid] = socket.socket(fileno=fds[0])
        return
    code = 1
    try:
        for fd in [*server_fds, *(one.detach() for one in news.values())]:
            os.close(fd)
        _settle(request, fds)
        code = _run(request.module)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _settle(request: _ForkRequest, fds: list[int]) -> None:
    """Make this process like one that was just started."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    above = max([*request.fds, *fds]) + 1
    # First out of the way: one may lie where another one has to be.
    asked, *moved = [_above(fd, above) for fd in fds]
    for fd, number in zip(moved, request.fds, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.argv = [request.module, *request.arguments]
    sys.path[0] = request.folder
    _name(" ".join([sys.executable, "-m", *sys.argv]))
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if request.new_session:
        os.setsid()
        _own_server(asked, [number for number in request.fds if number > 2])
    os.write(asked, f"up {os.getpid()}".encode())
    os.close(asked)


def _name(title: str) -> None:
    """Set the title that lists of processes show."""
    with contextlib.suppress(ImportError):
        from setproctitle import setproctitle

        setproctitle(title)


def _above(fd: int, least: int) -> int:
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
    os.close(fd)
    return int(moved)


def _own_server(asked: int, inherited: Sequence[int]) -> None:
    """Fork a server of this session, whose children belong to the session."""
    global _server  # noqa: PLW0603
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        theirs.close()
        _server = _Connection(ours)
        subprocess.Popen = _ForkingPopen  # type: ignore[misc]
        return
    ours.close()
    for end in (asked, *inherited):  # a lock is for the process alone
        os.close(end)
    with open(os.devnull, "r+b") as nothing:
        for end in (0, 1):
            os.dup2(nothing.fileno(), end)
    _serve(theirs)


def _run(module: str) -> int:
    """Run a module as `python -m` does; return its exit code."""
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        code = _code_of(error)
    except KeyboardInterrupt:
        traceback.print_exc()
        sys.stderr.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as an interpreter does
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _code_of(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code
    print(error.code, file=sys.stderr)  # noqa: T201
    return 1
