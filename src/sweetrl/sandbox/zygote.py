"""The zygote: a small process, exec'd by the client and never forked from it, that forks a fresh child for each
solution.

It isolates itself once (namespaces, Landlock, no capabilities, limits), attacks itself, reports, and then serves. It
never sees a job or a result: the client sends each job to a socket where only a child waits, behind its seccomp
filter. The zygote only starts, kills and reaps.

Executed by the client in a fresh `python -S -s -P`, which calls `main` with what its standard input holds: what to do,
and the code of the files beside this one (worker.py). What it imports, every child inherits and pays for: no wrapper is
imported here for which a module written in C will do.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import ctypes
import gc
import marshal
import os
import select
import struct
import sys
import time
from importlib.machinery import PathFinder

TYPE_CHECKING = False  # what typing says of it, without importing that
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Callable
    from types import CodeType
    from typing import Any

PARTS: dict[str, CodeType] = {}  # the files beside this one, until they have been loaded

MESSAGE = struct.Struct(">QQ")  # with a job's memory file: its number, its length
NUMBER = struct.Struct(">Q")
REPORT = struct.Struct(">cQi?d")  # a job is over: number, wait status, clean, CPU seconds
TIME = struct.Struct(">cQdq?")  # so far: number, CPU seconds, process id, whether the child has its job
# Modules that solutions often import and that cost next to nothing: loaded once here, so that no child has to.
COMMON = "bisect collections functools heapq itertools math operator random time".split()
_RIGHTS_SIZE = _socket.CMSG_SPACE(4)
_KILL = 9

# _Fork leaves out what a process with one thread does not need: every page that it does not touch is one less to copy.
_libc = ctypes.PyDLL(None)
fork: Callable[[], int] = getattr(_libc, "_Fork", os.fork)


def load(name: str) -> Any:
    """Execute one of PARTS, as a module of its own."""
    module = sys.modules["sandbox_" + name] = type(sys)("sandbox_" + name)
    code = PARTS.pop(name)
    module.__file__ = code.co_filename
    exec(code, module.__dict__)
    return module


class Libraries:
    """Finds the allowed third-party modules, and no others: the folder that they lie in is not on the path."""

    def __init__(self, paths: list[str]) -> None:
        self.folders = {os.path.basename(path).removesuffix(".py"): os.path.dirname(path) for path in reversed(paths)}
        self.metadata = [path for path in paths if path.endswith(".dist-info")]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The protocol of sys.meta_path."""
        folder = self.folders.get(name)
        return None if folder is None or path is not None else PathFinder.find_spec(name, [folder])

    def find_distributions(self, context: Any) -> Any:
        """The protocol of importlib.metadata."""
        from importlib.metadata import PathDistribution
        from pathlib import Path

        for path in self.metadata:
            name = os.path.basename(path).split("-")[0]
            if context.name is None or context.name.replace("-", "_").replace(".", "_").lower() == name.lower():
                yield PathDistribution(Path(path))


class Zygote:
    """Serves one client, one solution at a time.

    The jobs come over the socket `jobs`, numbered from 0, and the child that waits there takes the next one: child and
    job have the same number. `control` carries what the client wants to know or to have killed, and a report for every
    job that is over.
    """

    def __init__(self, control: socket, jobs: socket, config: dict[str, Any]) -> None:
        self.control = control
        self.jobs = jobs
        self.config = config
        self.child = load("child")
        self.run_job = self.child.runner(load("values"), load("official"))
        self.canaries = marshal.dumps(PARTS.pop("canaries"))
        guards = load("guards")
        modules = {name: load(name) for name in ("landlock", "namespaces", "seccomp")}
        self.guards = guards.Guards(config, modules)

    def warm_up(self) -> None:
        """Do a trivial job a few times: no child has to copy the pages that the interpreter adapts now."""
        source = "import math\ndef f(x):\n    return [x, {'a': math.floor(x)}, (x + 1.5, None)]"
        calls = marshal.dumps([(call, compile(call, "", "eval")) for call in (*["f(1)"] * 10, "g(1)", "1 / 0")])
        for namespace in ("one", "split") * 8:
            file = os.memfd_create("job")
            body = marshal.dumps(((source,), calls, namespace, self.child.SEED, 1 << 20, 99))
            os.write(file, body)
            self.run_job(file, len(body))
            os.close(file)
        self.child.reseed(self.child.SEED)

    def starter(self, keep: int, body: Callable[[], None]) -> Callable[[], int]:
        """A function that forks a child, which locks itself in, with one descriptor to `keep`, and then runs `body`.

        It returns the child's process id, and never returns in the child.
        """
        lock, parent, leave, start = self.guards.child_lock(keep), os.getpid(), os._exit, fork

        def spawn() -> int:
            pid = start()
            for _ in range(600):
                if pid >= 0:
                    break
                time.sleep(0.1)  # others have taken all processes that the machine allows
                pid = start()
            if pid == 0:
                status = 1
                try:
                    lock(parent)
                    body()
                    status = 0
                finally:
                    leave(status)
            return pid

        return spawn

    def worker(self) -> Callable[[], None]:
        """What a child does behind its filter: wait for a job and do it."""
        receive, close, descriptor, run = self.jobs.recvmsg, os.close, self.jobs.fileno(), self.run_job
        length, rights, unpack = MESSAGE.size, _RIGHTS_SIZE, MESSAGE.unpack
        number, order = int.from_bytes, sys.byteorder

        def work() -> None:
            message, ancillary, _, _ = receive(length, rights)
            close(descriptor)
            run(number(ancillary[0][2], order), unpack(message)[1])

        return work

    def attack(self) -> tuple[str, bool]:
        """Make the attacks of canaries.py in a child like any other.

        Returns their results as JSON (nothing if they ended the child) and whether the scratch folder was clean.
        """
        receiver, sender = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        memory = (self.config["limits"]["memory_mib"] + 64) << 20

        def attack() -> None:
            code = marshal.loads(self.canaries)
            space: dict[str, Any] = {"__name__": "canaries", "__file__": code.co_filename}
            exec(code, space)
            space["attack"](sender, memory, self.config["bait"])

        pid = self.starter(sender.fileno(), attack)()
        sender.close()
        message = receiver.recv(1 << 16) if select.select([receiver], [], [], 20)[0] else b""
        receiver.close()
        self._kill(pid)
        os.waitpid(pid, 0)
        return message.decode(), self.guards.clean_scratch()

    def serve(self) -> None:
        """Answer the client until its end of the socket is closed.

        One function with everything at hand: after each fork the zygote copies every page that it writes to, too.
        """
        spawn, watch, wait, close = self.starter(self.jobs.fileno(), self.worker()), os.pidfd_open, os.waitpid, os.close
        send, receive, clean_up, pack = self.control.send, self.control.recv, self.guards.clean_scratch, REPORT.pack
        spent, groups, letter, poll = cpu_of, self.guards.groups, b"D", select.poll()
        control, watched, number, wasted = self.control.fileno(), -1, 0, 0
        poll.register(control, select.POLLIN)
        events = poll.poll
        while True:
            pid = spawn()
            descriptor = watch(pid)
            if descriptor != watched:  # nearly always it has the number of the last one
                if watched >= 0:
                    poll.unregister(watched)
                poll.register(descriptor, select.POLLIN)
                watched = descriptor
            over = killed = False
            while not over:
                for ready, _ in events():
                    if ready != control:
                        over = True
                        continue
                    message = receive(64)
                    if not message:
                        return
                    if message[:1] == b"C":
                        send(TIME.pack(b"T", number, spent(pid), pid, self._had_job(number, False)))
                    elif NUMBER.unpack(message[1:])[0] == number:
                        self._kill(pid)
                        killed = True
            if groups:
                self._kill(pid)
            seconds = spent(pid)
            _, status = wait(pid, 0)
            close(descriptor)
            if status and not self._had_job(number, killed):
                wasted += 1
                if wasted > 20:
                    os._exit(4)
                continue
            wasted = 0
            clean = clean_up()
            send(pack(letter, number, status, clean, seconds))
            if not clean:  # a child that leaves anything behind ends the zygote, too: a fresh one takes its place
                os._exit(3)
            number += 1

    def _kill(self, pid: int) -> None:
        """Kill a child, with the process group that it leads if it does."""
        for kill in (os.killpg, os.kill) if self.guards.groups else (os.kill,):
            try:
                kill(pid, _KILL)
            except (ProcessLookupError, PermissionError):
                pass

    def _had_job(self, number: int, killed: bool) -> bool:
        """Whether child `number` has taken its job, by the queue and not by the child's own word. If it was `killed` on
        request, the job counts as taken either way."""
        try:
            message = self.jobs.recv(MESSAGE.size, _socket.MSG_PEEK | _socket.MSG_DONTWAIT)
            if MESSAGE.unpack(message)[0] != number:
                return True
            if killed:
                self.jobs.recv(MESSAGE.size)
            return killed
        except BlockingIOError:
            return True


def cpu_of(pid: int, clock: Callable[[int], float] = time.clock_gettime) -> float:
    """CPU seconds of a child that has not been reaped.

    By its process's clock, the kernel's make_process_cpuclock(pid, CPUCLOCK_SCHED).
    """
    try:
        return clock((~pid << 3) | 2)
    except OSError:
        return 0.0


def main(config: dict[str, Any], parts: dict[str, CodeType]) -> None:
    """Isolate, attack, report, serve."""
    usual_start()
    control = _socket.socket(fileno=config["control"])
    PARTS.update(parts)
    parts.clear()
    try:
        zygote, hello = prepare(control, config)
    except BaseException as error:
        child = sys.modules.get("sandbox_child") or load("child")
        control.send(child.to_json({"error": f"{type(error).__name__}: {error}"}).encode())
    else:
        control.send(zygote.child.to_json(hello).encode())
        zygote.serve()
    os._exit(0)


def usual_start() -> None:
    """Take signals, and make files, as a program does that is started at a terminal.

    What the client was started with is inherited, and would decide what programs do: signals that are ignored (children
    that nobody can wait for, a Ctrl-C that never comes) or blocked (timers), and the umask.
    """
    os.umask(0o022)
    os.environ.pop("LD_LIBRARY_PATH", None)  # the loader has read it
    del sys.argv[1:], sys.orig_argv[1:]  # the path of this file, which a parser of arguments would read as an argument
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    for number in _signal.valid_signals():
        by_python = number in (_signal.SIGPIPE, _signal.SIGXFSZ)  # which gets an error instead
        if not by_python and _signal.getsignal(number) == _signal.SIG_IGN:
            _signal.signal(number, _signal.default_int_handler if number == _signal.SIGINT else _signal.SIG_DFL)


def prepare(control: socket, config: dict[str, Any]) -> tuple[Zygote, dict[str, Any]]:
    """A zygote that has isolated and attacked itself, and its report of that."""
    sys.meta_path.append(Libraries(config["libraries"]))
    # What modules would do after every fork (new seeds, new locks) is not needed here: a zygote has one thread, and
    # every job brings its seed.
    register, os.register_at_fork = os.register_at_fork, lambda **_: None
    for name in (*COMMON, *config["preload"]):
        try:
            __import__(name)
        except ImportError:  # not every library is installed
            continue
    os.register_at_fork = register
    sys.modules["_multiprocessing"] = load("semaphores")
    zygote = Zygote(control, _socket.socket(fileno=config["jobs"]), config)
    null = os.open("/dev/null", os.O_RDWR)
    zygote.warm_up()
    layers = zygote.guards.lock_zygote()
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)
    gc.collect()
    gc.freeze()
    attacks, clean = zygote.attack() if config["canaries"] else ("{}", True)
    return zygote, {"layers": layers, "attacks": attacks, "clean": clean}
