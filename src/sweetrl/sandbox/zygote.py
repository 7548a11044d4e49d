"""The zygote: a small process, exec'd by the client and never forked from it, that forks a fresh child for each
solution.

It isolates itself once (namespaces, Landlock, no capabilities, limits), attacks itself, reports, and then serves. It
never sees a job or a result: the client passes it two file descriptors, which it hands on to a spare child that
already waits behind its seccomp filter. It only starts, kills and reaps. Run as a script, with the standard library
and the files beside it and nothing else:  python -S -s -P zygote.py CONFIG-JSON
"""

from __future__ import annotations

import array
import gc
import importlib
import importlib.util
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))  # pathlib would cost start-up time
# Modules that solutions often import: loaded once here, so that no child pays for them.
COMMON = (
    "bisect calendar collections copy datetime decimal fractions functools heapq itertools json math operator random "
    "re statistics string time typing"
).split()


def load(name: str) -> Any:
    """Load a file that lies beside this one, as a module of its own."""
    spec = importlib.util.spec_from_file_location("sandbox_" + name, os.path.join(HERE, name + ".py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Libraries:
    """Finds the allowed third-party modules, and no others: the folder that they lie in is not on the path."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = {os.path.basename(path).removesuffix(".py"): path for path in reversed(paths)}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The protocol of sys.meta_path."""
        place = self.paths.get(name)
        if place is None or path is not None:
            return None
        if place.endswith(".py"):
            return importlib.util.spec_from_file_location(name, place)
        start = os.path.join(place, "__init__.py")
        return importlib.util.spec_from_file_location(name, start, submodule_search_locations=[place])


class Spare:
    """A child that waits for a job."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self.channel = channel
        self.watch = os.pidfd_open(pid)

    def hand_over(self, descriptors: list[int]) -> bool:
        """Pass the job's descriptors on; False if the spare is no longer there."""
        try:
            self.channel.sendmsg(
                [b"J"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors).tobytes())]
            )
            return True
        except OSError:
            return False
        finally:
            self.channel.close()

    def end(self) -> tuple[int, Any]:
        """Kill it (it leads a process group of its own), reap it, and return its wait status and resource usage."""
        for kill in (os.killpg, os.kill):
            try:
                kill(self.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        _, status, usage = os.wait4(self.pid, 0)
        os.close(self.watch)
        return status, usage


class Zygote:
    """Serves one client over `control`, one solution at a time."""

    def __init__(self, control: socket.socket, config: dict[str, Any]) -> None:
        self.control = control
        self.config = config
        self.child = load("child")
        self.values = load("values")
        self.canaries = load("canaries")
        guards = load("guards")
        modules = {name: load(name) for name in ("landlock", "namespaces", "seccomp")}
        self.guards = guards.Guards(config, modules)
        self.current: Spare | None = None
        self.spare: Spare | None = None
        self.deadline = 0.0

    def warm_up(self) -> None:
        """Do a job of no importance a few times: the pages that the interpreter adapts now, no child has to copy."""
        source = "import math\ndef f(x):\n    return [x, {'a': math.floor(x)}, (x + 1.5, None)]"
        calls = [f"f({n})" for n in range(10)] + ["g(1)", "1 / 0"]
        for namespace in ("one", "split") * 8:
            job, null = os.memfd_create("job"), os.open("/dev/null", os.O_WRONLY)
            body = {
                "sources": [source],
                "calls": calls,
                "namespace": namespace,
                "seed": 0,
                "output": 1 << 20,
                "nodes": 99,
            }
            os.write(job, json.dumps(body).encode())
            self.child.run_job(job, null, self.values)
            os.close(null)

    def spawn(self, body: Any = None) -> Spare:
        """Fork a child that locks itself in and then waits for its job (or runs `body` instead, for the canaries)."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        pid = os.fork()
        if pid:
            theirs.close()
            return Spare(pid, ours)
        try:
            os.setpgid(0, 0)
            self.guards.lock_child(parent, keep=theirs.fileno())
            if body is not None:
                body(theirs)
            else:
                _, ancillary, _, _ = theirs.recvmsg(1, socket.CMSG_SPACE(8), socket.MSG_CMSG_CLOEXEC)
                descriptors = array.array("i", ancillary[0][2]) if ancillary else None
                theirs.close()
                if descriptors:
                    self.child.run_job(descriptors[0], descriptors[1], self.values)
        finally:
            os._exit(0)

    def serve(self) -> None:
        """Answer the client until it goes away, however it goes."""
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        self.spare = self.spawn()
        while True:
            wait = None
            if self.current is not None:
                wait = max(0.0, self.deadline - time.monotonic()) * 1000
            for number, _ in poll.poll(wait):
                if number == self.control.fileno():
                    if not self._answer(poll):
                        return
                elif self.current is not None and number == self.current.watch:
                    self._finish(poll)
            if self.current is not None and time.monotonic() >= self.deadline:
                self._finish(poll)

    def _answer(self, poll: Any) -> bool:
        message, ancillary, _, _ = self.control.recvmsg(64, socket.CMSG_SPACE(8), socket.MSG_CMSG_CLOEXEC)
        if not message:
            return False
        if message[:1] == b"R":
            descriptors = list(array.array("i", ancillary[0][2]))
            (seconds,) = struct.unpack(">d", message[1:])
            while self.spare is None or not self.spare.hand_over(descriptors):
                if self.spare is not None:
                    self.spare.end()
                self.spare = self.spawn()
            for descriptor in descriptors:
                os.close(descriptor)
            self.current, self.spare = self.spare, None
            self.deadline = time.monotonic() + seconds
            poll.register(self.current.watch, select.POLLIN)
            self.spare = self.spawn()  # while the solution runs
        elif message[:1] == b"K":
            if self.current is not None:
                self._finish(poll)
        elif message[:1] == b"C":
            cpu = 0.0
            if self.current is not None:
                # A process's CPU clock by its id: the kernel's make_process_cpuclock(pid, CPUCLOCK_SCHED).
                try:
                    cpu = time.clock_gettime((~self.current.pid << 3) | 2)
                except OSError:
                    cpu = 0.0
            inside = 0 if self.current is None else self.current.pid
            self.control.send(b"T" + struct.pack(">dq", cpu, inside))
        elif message[:1] == b"S":
            own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
            self.control.send(b"U" + json.dumps({"cpu": seconds, "rss_kib": own.ru_maxrss}).encode())
        return True

    def _finish(self, poll: Any) -> None:
        assert self.current is not None
        poll.unregister(self.current.watch)
        status, usage = self.current.end()
        self.current = None
        clean = self.guards.clean_scratch()
        self.control.send(b"D" + struct.pack(">i?dq", status, clean, usage.ru_utime + usage.ru_stime, usage.ru_maxrss))
        if not clean:  # leave it to the client to start another zygote on fresh ground
            os._exit(3)


def main() -> None:
    """Isolate, attack, report, serve."""
    config = json.loads(sys.argv[1])
    control = socket.socket(fileno=config["control"])
    try:
        sys.meta_path.append(Libraries(config["libraries"]))
        # What modules would do after every fork (new seeds, new locks) is not needed here: a zygote has one thread, and
        # every job brings its seed.
        register, os.register_at_fork = os.register_at_fork, lambda **_: None
        for name in (*COMMON, *config["preload"]):
            importlib.import_module(name)
        os.register_at_fork = register
        null = os.open("/dev/null", os.O_RDWR)
        zygote = Zygote(control, config)
        zygote.warm_up()
        layers = zygote.guards.lock_zygote()
        for number in (0, 1, 2):
            os.dup2(null, number)
        os.close(null)
        gc.collect()
        gc.freeze()
        canaries = zygote.canaries.attack(zygote) if config["canaries"] else {}
        hello = {"layers": layers, "canaries": canaries, "pid": os.getpid(), "python": sys.version.split()[0]}
    except BaseException as error:
        hello = {"error": f"{type(error).__name__}: {error}"}
    control.send(json.dumps(hello).encode())
    if "error" not in hello:
        zygote.serve()
    os._exit(0)


if __name__ == "__main__":
    main()
