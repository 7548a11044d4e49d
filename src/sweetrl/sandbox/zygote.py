"""The zygote: a small process, exec'd by the client and never forked from it, that forks a fresh child for each
solution.

It isolates itself once (namespaces, Landlock, no capabilities, limits), attacks itself, reports, and then serves. It
never sees a job or a result: the client sends a job to whoever waits at a socket, and that is a child behind its
seccomp filter. The zygote only starts, kills and reaps.

Run as a script, with the standard library and the files beside it and nothing else: python -S -s -P zygote.py CONFIG
(marshalled, as hexadecimal text). What it imports, every child inherits and pays for: no wrapper is imported here for
which a module written in C will do.
"""

from __future__ import annotations

import _socket
import ctypes
import gc
import marshal
import os
import resource
import select
import struct
import sys
import time
from importlib.machinery import PathFinder

TYPE_CHECKING = False  # what typing says of it, without importing that
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Callable
    from typing import Any

MESSAGE = struct.Struct(">QQ")  # with a job's memory file: its number, its length
NUMBER = struct.Struct(">Q")
REPORT = struct.Struct(">cQi?dq")  # a job is over: number, wait status, clean, CPU seconds, memory in KiB
TIME = struct.Struct(">cQdq?")  # so far: number, CPU seconds, process id, whether the child has its job
HERE = os.path.dirname(os.path.abspath(__file__))
# Modules that solutions often import and that cost next to nothing: loaded once here, so that no child has to.
COMMON = "bisect collections functools heapq itertools math operator random time".split()
_RIGHTS_SIZE = _socket.CMSG_SPACE(4)
_KILL = 9

# _Fork leaves out what a process with one thread does not need: every page that it does not touch is one less to copy.
_libc = ctypes.PyDLL(None, use_errno=True)
fork: Callable[[], int] = getattr(_libc, "_Fork", os.fork)


def load(name: str) -> Any:
    """Load a file that lies beside this one, as a module of its own."""
    module = sys.modules["sandbox_" + name] = type(sys)("sandbox_" + name)
    module.__file__ = os.path.join(HERE, name + ".py")
    with open(module.__file__, "rb") as file:
        exec(compile(file.read(), module.__file__, "exec"), module.__dict__)
    return module


class Libraries:
    """Finds the allowed third-party modules, and no others: the folder that they lie in is not on the path."""

    def __init__(self, paths: list[str]) -> None:
        self.folders = {os.path.basename(path).removesuffix(".py"): os.path.dirname(path) for path in reversed(paths)}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The protocol of sys.meta_path."""
        folder = self.folders.get(name)
        return None if folder is None or path is not None else PathFinder.find_spec(name, [folder])


class Child:
    """A child of the zygote: it waits for a job, does it, and ends."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.watch = os.pidfd_open(pid)

    def kill(self, group: bool) -> None:
        """Kill it, with the process group that it leads if it does."""
        for kill in (os.killpg, os.kill) if group else (os.kill,):
            try:
                kill(self.pid, _KILL)
            except (ProcessLookupError, PermissionError):
                pass

    def reap(self) -> tuple[int, Any]:
        """Wait for its end; its wait status and resource usage."""
        _, status, usage = os.wait4(self.pid, 0)
        os.close(self.watch)
        return status, usage


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
        self.values = load("values")
        with open(os.path.join(HERE, "canaries.py"), "rb") as file:
            self.canaries = compile(file.read(), "canaries.py", "exec")
        guards = load("guards")
        modules = {name: load(name) for name in ("landlock", "namespaces", "seccomp")}
        self.guards = guards.Guards(config, modules)
        self.number = 0  # of the job that the present child has taken or will take
        self.wasted = 0  # children in a row that ended before they had a job

    def warm_up(self) -> None:
        """Do a job of no importance a few times: the pages that the interpreter adapts now, no child has to copy."""
        source = "import math\ndef f(x):\n    return [x, {'a': math.floor(x)}, (x + 1.5, None)]"
        calls = (*(f"f({n})" for n in range(10)), "g(1)", "1 / 0")
        for namespace in ("one", "split") * 8:
            file = os.memfd_create("job")
            body = marshal.dumps(((source,), calls, namespace, self.child.SEED, 1 << 20, 99))
            os.write(file, body)
            self.child.run_job(file, len(body), self.values)
            os.close(file)
        self.child.random.seed(self.child.SEED)

    def spawn(self, keep: int, body: Any) -> Child:
        """Fork a child that locks itself in, with one descriptor to `keep`, and then runs `body`."""
        parent, leave, status = os.getpid(), os._exit, 1
        pid = fork()
        if pid:
            return Child(pid)
        try:
            self.guards.lock_child(parent, keep)
            body()
            status = 0
        finally:
            leave(status)

    def _work(self) -> None:
        """In the child: wait for a job and do it."""
        message, ancillary, _, _ = self.jobs.recvmsg(MESSAGE.size, _RIGHTS_SIZE)
        os.close(self.jobs.fileno())
        file = int.from_bytes(ancillary[0][2], sys.byteorder)
        self.child.run_job(file, MESSAGE.unpack(message)[1], self.values)

    def attack(self) -> tuple[str, bool]:
        """Make the attacks of canaries.py in a child like any other.

        Returns what came of them as JSON (nothing if they ended the child) and whether the scratch folder was clean.
        """
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        memory = (self.config["limits"]["memory_mib"] + 64) << 20

        def attack() -> None:
            space: dict[str, Any] = {"__name__": "canaries", "__file__": os.path.join(HERE, "canaries.py")}
            exec(self.canaries, space)
            space["attack"](theirs, memory)

        child = self.spawn(theirs.fileno(), attack)
        theirs.close()
        message = ours.recv(1 << 16) if select.select([ours], [], [], 20)[0] else b""
        ours.close()
        child.kill(self.guards.groups)
        child.reap()
        return message.decode(), self.guards.clean_scratch()

    def serve(self) -> None:
        """Answer the client until it goes away, however it goes."""
        poll = select.poll()
        control, jobs = self.control.fileno(), self.jobs.fileno()
        poll.register(control, select.POLLIN)
        while True:
            child = self.spawn(jobs, self._work)
            poll.register(child.watch, select.POLLIN)
            over = killed = False
            while not over:
                for ready, _ in poll.poll():
                    if ready != control:
                        over = True
                        continue
                    message = self.control.recv(64)
                    if not message:
                        return
                    if message[:1] != b"K":
                        self._answer(message[:1], child)
                    elif NUMBER.unpack(message[1:])[0] == self.number:
                        child.kill(self.guards.groups)
                        over = killed = True
            poll.unregister(child.watch)
            self._finish(child, killed)

    def _answer(self, question: bytes, child: Child) -> None:
        if question == b"C":
            # A process's CPU clock by its id: the kernel's make_process_cpuclock(pid, CPUCLOCK_SCHED).
            try:
                cpu = time.clock_gettime((~child.pid << 3) | 2)
            except OSError:
                cpu = 0.0
            self.control.send(TIME.pack(b"T", self.number, cpu, child.pid, self._had_job(False)))
        elif question == b"S":
            own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
            self.control.send(b"U" + self.child.to_json({"cpu": seconds, "rss_kib": own.ru_maxrss}).encode())

    def _finish(self, child: Child, killed: bool) -> None:
        """Reap the child, clean up after it, report. Who leaves anything behind takes the zygote along."""
        if self.guards.groups:
            child.kill(True)
        status, usage = child.reap()
        if status and not self._had_job(killed):
            self.wasted += 1
            if self.wasted > 20:
                os._exit(4)
            return
        self.wasted = 0
        clean = self.guards.clean_scratch()
        seconds = usage.ru_utime + usage.ru_stime
        self.control.send(REPORT.pack(b"D", self.number, status, clean, seconds, usage.ru_maxrss))
        if not clean:  # leave it to the client to start another zygote on fresh ground
            os._exit(3)
        self.number += 1

    def _had_job(self, killed: bool) -> bool:
        """Whether the child has taken its job, as the queue tells and not the child. If it was `killed` on request, the
        job counts as taken either way."""
        try:
            message = self.jobs.recv(MESSAGE.size, _socket.MSG_PEEK | _socket.MSG_DONTWAIT)
            if MESSAGE.unpack(message)[0] != self.number:
                return True
            if killed:
                self.jobs.recv(MESSAGE.size)
            return killed
        except BlockingIOError:
            return True


def main() -> None:
    """Isolate, attack, report, serve."""
    config = marshal.loads(bytes.fromhex(sys.argv[1]))
    zygote = Zygote(_socket.socket(fileno=config["control"]), _socket.socket(fileno=config["jobs"]), config)
    try:
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
        null = os.open("/dev/null", os.O_RDWR)
        zygote.warm_up()
        layers = zygote.guards.lock_zygote()
        for number in (0, 1, 2):
            os.dup2(null, number)
        os.close(null)
        gc.collect()
        gc.freeze()
        attacks, clean = zygote.attack() if config["canaries"] else ("{}", True)
        hello = {"layers": layers, "attacks": attacks, "clean": clean, "python": sys.version.split()[0]}
    except BaseException as error:
        hello = {"error": f"{type(error).__name__}: {error}"}
    zygote.control.send(zygote.child.to_json(hello).encode())
    if "error" not in hello:
        zygote.serve()
    os._exit(0)


if __name__ == "__main__":
    main()
