"""Attacks on the scorer, each a solution to `square(x)` with tests x = 2..6, and what a correct scorer gives it.

Outcomes: "zero" nothing passes; "part" only the test x = 3 is lost; "full" the attack does not change the verdict.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass


@dataclass(frozen=True)
class Attack:
    family: str
    name: str
    outcome: str
    source: str


ATTACKS: list[Attack] = []


def _add(family: str, name: str, outcome: str, source: str) -> None:
    ATTACKS.append(Attack(family, name, outcome, textwrap.dedent(source).strip() + "\n"))


def _on_three(family: str, name: str, body: str, outcome: str = "part", setup: str = "") -> None:
    """`body` runs for x = 3 only."""
    source = (
        textwrap.dedent(setup)
        + "\ndef square(x):\n    if x == 3:\n"
        + textwrap.indent(textwrap.dedent(body), "        ")
    )
    ATTACKS.append(Attack(family, name, outcome, source.rstrip() + "\n    return x * x\n"))


def _always(family: str, name: str, body: str, outcome: str = "zero", setup: str = "") -> None:
    """`body` runs at every call, then the right answer is returned."""
    source = textwrap.dedent(setup) + "\ndef square(x):\n" + textwrap.indent(textwrap.dedent(body).strip(), "    ")
    ATTACKS.append(Attack(family, name, outcome, source.rstrip() + "\n    return x * x\n"))


def _tries(family: str, name: str, attempt: str, setup: str = "") -> None:
    """`attempt` must raise, or the solution gives itself away: it returns a wrong value if the attempt got through."""
    body = (
        "try:\n"
        + textwrap.indent(textwrap.dedent(attempt).strip(), "    ")
        + "\nexcept BaseException:\n    pass\nelse:\n    return -1\n"
    )
    _always(family, name, body, "full", setup)


# -- time ----------------------------------------------------------------------------------------------------------------
_always("time", "endless loop", "while True: pass")
_add("time", "endless loop at top level", "zero", "while True: pass\ndef square(x): return x * x")
_on_three("time", "loop on one input", "while True: pass\n")
_on_three("time", "sleep on one input", "import time\ntime.sleep(1000)\n")
_always("time", "sleep", "import time; time.sleep(1000)")
_on_three(
    "time",
    "bare except around the time-out",
    "while True:\n    try:\n        while True: pass\n    except BaseException: pass\n",
)
_on_three(
    "time",
    "alarm ignored",
    "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True: pass\n",
)
_on_three(
    "time", "timer off", "import signal\nsignal.alarm(0)\nsignal.setitimer(signal.ITIMER_REAL, 0)\nwhile True: pass\n"
)
_on_three(
    "time",
    "signals masked",
    "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\nwhile True: pass\n",
)
_always("time", "huge power", "y = 9 ** (9 ** 9)")
_always("time", "regex blow-up", "import re; re.match('(a+)+$', 'a' * 60 + 'b')")
_always("time", "deadlock", "import threading; l = threading.Lock(); l.acquire(); l.acquire()")
_always("time", "wait for a thread that never ends", "import threading; e = threading.Event(); e.wait()")
_always(
    "time",
    "join a looping thread",
    "t = threading.Thread(target=loop); t.start(); t.join()",
    setup="import threading\ndef loop():\n    while True: pass\n",
)
_always("time", "big range sum", "sum(range(10 ** 12))")
_always("time", "string search blow-up", "('a' * 10**6).replace('a', 'b' * 10**5)")
_on_three(
    "time", "slow __eq__ is never called", "class A:\n    def __eq__(s, o):\n        while True: pass\nreturn A()\n"
)
_on_three(
    "time", "slow __repr__ is never called", "class A:\n    def __repr__(s):\n        while True: pass\nreturn A()\n"
)
_on_three(
    "time",
    "exception with a looping __str__",
    "class E(Exception):\n    def __str__(s):\n        while True: pass\nraise E\n",
)
_on_three("time", "read of an empty standard input", "import sys\nsys.stdin.read()\nreturn -1\n")
_on_three("time", "pause", "import signal\nsignal.pause()\n")

# -- processes -----------------------------------------------------------------------------------------------------------
_always("processes", "fork bomb", "import os\nwhile True:\n    os.fork()")
_tries("processes", "fork", "pid = os.fork()\nif pid == 0: os._exit(0)", "import os")
_tries("processes", "vfork through libc", "assert ctypes.CDLL(None).vfork() > 0", "import ctypes")
_tries("processes", "subprocess", "subprocess.run(['/bin/true'], check=True)", "import subprocess")
_tries("processes", "os.system", "assert os.system('true') == 0", "import os")
_tries("processes", "execv", "os.execv('/bin/sh', ['sh', '-c', 'true'])", "import os")
_tries("processes", "posix_spawn", "os.posix_spawn('/bin/true', ['true'], {})", "import os")
_tries(
    "processes",
    "multiprocessing",
    "p = multiprocessing.Process(target=int); p.start(); p.join()",
    "import multiprocessing",
)
_tries("processes", "raw clone", "assert ctypes.CDLL(None).syscall(56, 17, 0, 0, 0, 0) > 0", "import ctypes")
_tries(
    "processes",
    "raw clone with a new user namespace",
    "assert ctypes.CDLL(None).syscall(56, 0x10000011, 0, 0, 0, 0) > 0",
    "import ctypes",
)
_tries("processes", "kill the zygote", "os.kill(os.getppid(), 9)", "import os")
_tries("processes", "kill everybody", "os.kill(-1, 9)", "import os")
_tries("processes", "kill process 1", "os.kill(1, 9)", "import os")
_tries("processes", "kill the group of the zygote", "os.killpg(os.getpgid(os.getppid()), 9)", "import os")
_tries("processes", "pidfd to the zygote", "os.pidfd_open(os.getppid())", "import os")
_tries(
    "processes", "rt_sigqueueinfo", "assert ctypes.CDLL(None).sigqueue(os.getppid(), 9, 0) == 0", "import ctypes, os"
)
_tries("processes", "new session", "os.setsid()", "import os")
_tries("processes", "wait for siblings", "os.waitpid(-1, os.WNOHANG)", "import os")
_tries("processes", "real-time priority", "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))", "import os")
_tries("processes", "more of the processor", "os.setpriority(os.PRIO_PROCESS, 0, -20)", "import os")
_always(
    "processes",
    "thread that outlives the call",
    "threading.Thread(target=loop, daemon=True).start()",
    "full",
    "import threading\ndef loop():\n    import time\n    while True: time.sleep(0.01)\n",
)
_always(
    "processes",
    "thread bomb",
    "while True:\n    threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
    "zero",
    "import threading, time\nthreading.stack_size(65536)\n",
)

# -- memory and disk -----------------------------------------------------------------------------------------------------
_always("memory", "bytes bomb", "b = b'x' * (1 << 40)")
_always("memory", "list bomb", "l = [0] * (1 << 36)")
_always("memory", "gradual bomb", "l = []\nwhile True: l.append(bytearray(1 << 20))")
_always("memory", "string doubling", "s = 'x'\nwhile True: s += s")
_always("memory", "dictionary bomb", "d = {}\nwhile True: d[len(d)] = bytes(4096)")
_on_three("memory", "bomb on one input", "return bytearray(1 << 40)\n")
_on_three("memory", "bomb caught", "try:\n    b'x' * (1 << 40)\nexcept MemoryError:\n    return 'caught'\n")
_tries("memory", "memory file bomb", "fd = os.memfd_create('x'); os.ftruncate(fd, 1 << 40)", "import os")
_tries("memory", "raise the limit", "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))", "import resource")
_tries("memory", "raise the limit by prlimit", "resource.prlimit(0, resource.RLIMIT_AS, (-1, -1))", "import resource")
_tries("memory", "shared memory", "m = mmap.mmap(-1, 1 << 34)", "import mmap")
_always(
    "disk",
    "fill the disk",
    "try:\n    with open('fill', 'wb') as f:\n        while True: f.write(bytes(1 << 20))\nexcept OSError: pass",
    "full",
)
_always(
    "disk", "many files", "try:\n    for i in range(100000): open(f'f{i}', 'w').close()\nexcept OSError: pass", "full"
)
_always(
    "disk",
    "deep folders",
    "try:\n    for i in range(500):\n        os.mkdir('d'); os.chdir('d')\nexcept OSError: pass",
    "full",
    "import os",
)
_always(
    "disk",
    "a folder that may not be read",
    "try:\n    os.mkdir('locked', 0o300); open('locked/file', 'w').close()\nexcept OSError: pass",
    "full",
    "import os",
)
_always(
    "disk",
    "a folder that may not be entered",
    "try:\n    os.mkdir('shut', 0o000)\nexcept OSError: pass",
    "full",
    "import os",
)
_tries("disk", "change the scratch folder's mode", "os.chmod('.', 0)", "import os")
_tries("disk", "a set-user-id bit", "open('s', 'w').close(); os.chmod('s', 0o4755)", "import os")
_tries("disk", "mode of an open file", "os.fchmod(0, 0o600)", "import os")
_tries("disk", "times of an open file", "os.utime(0)", "import os")
_tries("disk", "sparse file", "f = open('s', 'wb'); f.truncate(1 << 40)")
_always(  # a folder of the answer's own, or refused; the test looks at the real one
    "disk",
    "write to /tmp",
    "try:\n    with open('/tmp/sweetrl-hostile', 'w') as f: f.write('x')\nexcept OSError: pass",
    "full",
)
_tries("disk", "write to the standard library", "open(os.path.dirname(os.__file__) + '/evil.py', 'w')", "import os")
_tries(
    "disk", "write to a library", "import numpy; open(os.path.dirname(numpy.__file__) + '/evil.py', 'w')", "import os"
)
_always("output", "standard output flood", "print('x' * 5_000_000)", "full")
_always("output", "standard error flood", "import sys; sys.stderr.write('x' * 5_000_000)", "full")
_always("output", "raw flood", "import os\nfor _ in range(500): os.write(1, b'x' * 4096)", "full")

# -- exits ---------------------------------------------------------------------------------------------------------------
_add("exits", "sys.exit at top level", "zero", "import sys\nsys.exit(0)\ndef square(x): return x * x")
_always("exits", "sys.exit in every call", "import sys; sys.exit(0)")
_on_three("exits", "SystemExit on one input", "raise SystemExit(0)\n")
_on_three("exits", "KeyboardInterrupt on one input", "raise KeyboardInterrupt\n")
_on_three("exits", "GeneratorExit on one input", "raise GeneratorExit\n")
_on_three("exits", "os._exit", "import os\nos._exit(0)\n")
_on_three("exits", "segmentation fault", "import ctypes\nctypes.string_at(0)\n")
_on_three("exits", "abort", "import os\nos.abort()\n")
_on_three("exits", "kill itself", "import os\nos.kill(os.getpid(), 9)\n")
_on_three("exits", "raise a signal", "import signal\nsignal.raise_signal(signal.SIGTERM)\n")
_on_three("exits", "stack overflow", "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f()\nf()\n")
_always("exits", "deep recursion", "def f(): return f()\nf()")
_add("exits", "exit handler", "full", "import atexit, os\natexit.register(os._exit, 1)\ndef square(x): return x * x")
_on_three("exits", "a base exception of its own", "class B(BaseException): pass\nraise B\n")
_on_three(
    "exits", "exception with a hostile class name", "E = type('E' * 10**6, (Exception,), {})\nraise E('x' * 10**6)\n"
)

# -- leaks ---------------------------------------------------------------------------------------------------------------
for _path in (
    "/etc/passwd",
    "/etc/hostname",
    "/proc/self/environ",
    "/proc/self/maps",
    "/proc/1/cmdline",
    "/sys/kernel/uevent_seqnum",
    "/dev/mem",
    "/root/.bashrc",
    "{here}",
    "{data}",
):
    _tries("leaks", f"read {_path}", f"open({_path!r}).read()")
_tries("leaks", "list the root", "assert {'proc', 'sys', 'boot', 'home'} & set(os.listdir('/'))", "import os")
_tries("leaks", "list the devices", "assert os.listdir('/dev') != ['null']", "import os")
_tries("leaks", "list /proc", "os.listdir('/proc')", "import os")
_tries("leaks", "secret in the environment", "assert 'SWEETRL_TEST_SECRET' in os.environ", "import os")
_tries("leaks", "standard input", "assert sys.stdin.read()", "import sys")
_tries("leaks", "internet socket", "socket.socket()", "import socket")
_tries("leaks", "raw socket", "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)", "import socket")
_tries("leaks", "name look-up", "socket.getaddrinfo('example.org', 80)", "import socket")
_tries("leaks", "http", "urllib.request.urlopen('http://127.0.0.1:1', timeout=1)", "import urllib.request")
_tries("leaks", "abstract unix socket", "s = socket.socket(socket.AF_UNIX); s.bind('\\0hostile')", "import socket")
_tries(
    "leaks",
    "datagram to an abstract name",
    "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.sendto(b'x', '\\0name')",
    "import socket",
)
_tries("leaks", "netlink socket", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)", "import socket")
_always(
    "leaks",
    "expected values by the frames",
    """
    f = sys._getframe()
    while f:
        for v in list(f.f_locals.values()) + list(f.f_globals.values()):
            if isinstance(v, (int, float)) and v == x * x + 0.5: return v
        f = f.f_back
    text = repr([o for o in gc.get_objects() if isinstance(o, dict) and 'expected' in o])
    if '-'.join(['REFERENCE', 'MARK']) in text: return 0
    """,
    "full",
    "import sys, gc",
)
_add(
    "leaks",
    "the reference's text in memory",
    "full",
    """
    import gc, sys
    def square(x):
        mark = '-'.join(['REFERENCE', 'MARK'])
        seen = [o for o in gc.get_objects() if isinstance(o, (list, tuple, dict))]
        if any(isinstance(v, str) and mark in v for o in seen for v in (o.values() if isinstance(o, dict) else o)):
            return -1
        return x * x
    """,
)

# -- forging -------------------------------------------------------------------------------------------------------------
_always("forging", "equal to everything", "class A:\n    def __eq__(s, o): return True\nreturn A()")
_always(
    "forging",
    "int subclass equal to everything",
    "class A(int):\n    def __eq__(s, o): return True\n    __hash__ = int.__hash__\nreturn A(0)",
)
_always(
    "forging",
    "str subclass equal to everything",
    "class A(str):\n    def __eq__(s, o): return True\n    __hash__ = str.__hash__\nreturn A('0')",
)
_always(
    "forging",
    "int subclass by its value",
    "class A(int):\n    def __eq__(s, o): return False\n    __hash__ = int.__hash__\nreturn A(x * x)",
    "full",
)
_always(
    "forging",
    "lying __class__",
    "class A:\n    __class__ = int\n    def __int__(s): return 4\n    def __index__(s): return 4\nreturn A()",
)
_always(
    "forging",
    "float subclass",
    "class F(float):\n    def __eq__(s, o): return True\n    def hex(s): return '0x0p0'\nreturn F(-1)",
)
_always(
    "forging",
    "metaclass that claims int",
    "class M(type):\n    def __subclasscheck__(c, o): return True\n    def __instancecheck__(c, o): return True\n    __mro__ = (int, object)\nclass A(metaclass=M): pass\nreturn A()",
)
_always(
    "forging",
    "patched isinstance",
    "import builtins\nbuiltins.isinstance = lambda *a: True\nbuiltins.issubclass = lambda *a: True\nreturn 'x'",
)
_always(
    "forging",
    "patched json",
    "import json\njson.dumps = lambda *a, **k: '{\"v\": 1}'\njson.JSONEncoder.encode = lambda *a: '{\"v\": 1}'\nreturn 0",
)
_always("forging", "mocked everything", "from unittest import mock\nreturn mock.ANY")
_always("forging", "pickle gadget", "class A:\n    def __reduce__(s): return (print, ('got in',))\nreturn A()")
for _name, _bytes, _outcome in (
    ("wrong frame for every test", "b'\\x00\\x00\\x00\\x07{\"v\":1}' * 5", "zero"),
    ("oversized frame", "b'\\x7f\\xff\\xff\\xff' + b'x' * 100", "any"),
    ("frame that is not JSON", "b'\\x00\\x00\\x00\\x03abc'", "any"),
    ("frame of deep JSON", "struct.pack('>I', 200000) + b'[' * 200000", "any"),
    ("frame with a verdict", "struct.pack('>I', 15) + b'{\"passed\": true}'[:15]", "any"),
    ("frame with a huge number", "struct.pack('>I', 100006) + b'{\"v\":' + b'9' * 100000 + b'}'", "any"),
    ("frame with equal keys", "struct.pack('>I', 15) + b'{\"v\":1,\"v\":999}'", "any"),
    ("frame of a tag without its value", "struct.pack('>I', 11) + b'{\"v\":[\"i\"]}'", "any"),
    ("frame of nested lists", "struct.pack('>I', 6 + 5 * 99999) + b'{\"v\":' + b'[\"l\",' * 99999", "any"),
    ("frame of nested objects", "struct.pack('>I', 5 * 99999) + b'{\"a\":' * 99999", "any"),
    ("frame of empty objects", "struct.pack('>I', 900011) + b'{\"v\":[\"l\"' + b',{}' * 300000 + b']}'", "any"),
    ("frame of many dimensions", "struct.pack('>I', 100019) + b'{\"v\":[\"nd\",[' + b'1,' * 50000 + b'1],16]}'", "any"),
    ("frame of NaN", "struct.pack('>I', 9) + b'{\"v\":NaN}'", "any"),
):
    _add(
        "forging",
        _name,
        _outcome,
        f"""
        import os, struct
        def square(x):
            for fd in range(3, 64):
                try: os.write(fd, {_bytes})
                except OSError: pass
            return -1
        """,
    )
_add(
    "forging",
    "frame flood",
    "any",
    """
    import os
    def square(x):
        while True:
            for fd in range(3, 64):
                try: os.write(fd, b'\\x00\\x00\\x00\\x07{"v":-1}' * 1000)
                except OSError: pass
    """,
)
_add(
    "forging",
    "half a frame, slowly",
    "any",
    """
    import os, time
    def square(x):
        for b in (b'\\x00', b'\\x00', b'\\x00', b'\\x07', b'{'):
            for fd in range(3, 64):
                try: os.write(fd, b)
                except OSError: pass
            time.sleep(0.05)
        time.sleep(100)
    """,
)
_add("output", "half a surrogate pair in an exception", "zero", "def square(x): raise ValueError(chr(0xd800) * 9)")
_add("output", "half a surrogate pair as the value", "zero", "def square(x): return chr(0xdfff)")
_always("forging", "close every descriptor", "import os\nos.closerange(0, 64)")
_always(
    "forging",
    "a result file cut short",
    "for fd in range(3, 64):\n    try: os.ftruncate(fd, 0)\n    except OSError: pass\nos.kill(os.getpid(), 9)",
    "zero",
    "import os",
)
_always(
    "forging",
    "descriptors passed over a socket",
    "a, b = socket.socketpair()\ntry:\n    socket.send_fds(a, [b'x'], [0])\nexcept OSError: pass",
    "full",
    "import socket",
)

# -- results -------------------------------------------------------------------------------------------------------------
for _name, _value in (
    ("NaN", "float('nan')"),
    ("None", "None"),
    ("a list around it", "[x * x]"),
    ("a tuple around it", "(x * x,)"),
    ("text of it", "str(x * x)"),
    ("a generator", "(y for y in [x * x])"),
    ("a huge integer", "1 << 5_000_000"),
    ("a huge decimal", "__import__('decimal').Decimal('1E+999999')"),
    ("a fraction to reduce", "__import__('fractions').Fraction(10**4000, 7**4000)"),
    ("a depth of 100,000", "__import__('functools').reduce(lambda a, _: [a], range(10**5), 0)"),
    ("itself", "(lambda l: l.append(l) or l)([])"),
    ("a width that explodes", "__import__('functools').reduce(lambda a, _: [a] * 10, range(30), 0)"),
    ("a million items", "list(range(10**6))"),
    ("colliding integers", "{i * (2**61 - 1) for i in range(20000)}"),
    ("colliding keys", "{i * (2**61 - 1): 0 for i in range(20000)}"),
    ("lone surrogates", "'\\ud800' * 10"),
    ("a long text", "'x' * (1 << 24)"),
    ("a module", "__import__('os')"),
    ("a function", "square"),
    ("a lambda", "lambda: x * x"),
    ("a class", "type('int', (int,), {})"),
    ("an open file", "open('f', 'w')"),
    ("a memory view", "memoryview(b'xyz')"),
    ("infinity", "float('inf')"),
    ("the wrong sign", "-x * x"),
):
    _add("results", f"returns {_name}", "zero", f"def square(x):\n    return {_value}")
_add("results", "a coroutine", "zero", "async def square(x): return x * x")
_add("results", "a generator function", "zero", "def square(x): yield x * x")
_add("results", "True for one", "zero", "def square(x): return True")
_add("results", "a float that is equal", "full", "def square(x): return float(x * x)")
_add("results", "a complex number that is equal", "full", "def square(x): return complex(x * x)")

# -- source --------------------------------------------------------------------------------------------------------------
_add("source", "wrong name", "zero", "def sqare(x): return x * x")
_add("source", "homoglyph", "zero", "def squаre(x): return x * x")
_add("source", "NUL", "zero", "def square(x): return x * x\0")
_add("source", "parser nesting bomb", "zero", "def square(x): return " + "(" * 5000 + "x" + ")" * 5000)
_add("source", "unary nesting bomb", "any", "y = " + "-" * 200_000 + "1\ndef square(x): return -1")
_add("source", "list nesting bomb", "any", "y = " + "[" * 100_000 + "]" * 100_000 + "\ndef square(x): return -1")
_add("source", "attribute chain bomb", "any", "def f(): return a" + ".b" * 100_000 + "\ndef square(x): return -1")
_add(
    "source",
    "constant folding bomb",
    "any",
    "def square(x):\n    y = ((1 << 127) ** 120, 'x' * 4096 * 4096, (0,) * 99999999)\n    return -1",
)
_add(
    "source",
    "indentation bomb",
    "zero",
    "\n".join(" " * i + "if 1:" for i in range(200)) + "\n" + " " * 200 + "square = 1",
)
_add("source", "not Python", "zero", "I would return x * x, of course.")
_add("source", "lambda", "full", "square = lambda x: x * x")
_add(
    "source",
    "encoding trick",
    "any",
    "# -*- coding: utf-7 -*-\ndef square(x): return -1\n+AAo-def square(x): return x*x",
)
_add("source", "a megabyte of comments", "full", "# " + "x" * 1_000_000 + "\ndef square(x): return x * x")
_add("source", "name defined as None", "zero", "square = None")
_add("source", "trap on import", "full", "import sys\nsys.modules['math'] = None\ndef square(x): return x * x")

# -- kernel --------------------------------------------------------------------------------------------------------------
_SYSCALL = (
    "import ctypes, os\ndef call(*a):\n    l = ctypes.CDLL(None, use_errno=True)\n    assert l.syscall(*a) >= 0\n"
)
for _name, _call in (
    ("io_uring_setup", "call(425, 8, ctypes.create_string_buffer(256))"),
    ("ptrace", "call(101, 16, os.getppid(), 0, 0)"),
    ("bpf", "call(321, 0, ctypes.create_string_buffer(128), 128)"),
    ("userfaultfd", "call(323, 1)"),
    ("perf_event_open", "call(298, ctypes.create_string_buffer(128), 0, -1, -1, 0)"),
    ("unshare", "call(272, 0x10000000)"),
    ("setns", "call(308, 0, 0)"),
    ("mount", "call(165, b'tmpfs', b'/', b'tmpfs', 0, 0)"),
    ("umount", "call(166, b'/', 2)"),
    ("pivot_root", "call(155, b'.', b'.')"),
    ("chroot", "os.chroot('.')"),
    ("mknod", "os.mknod('dev', 0o600 | 0o020000, 259)"),
    ("keyctl", "call(250, 0, -3, 0)"),
    ("process_vm_readv", "call(310, os.getppid(), 0, 0, 0, 0, 0)"),
    ("seccomp", "call(317, 1, 0, 0)"),
    ("prctl dumpable", "call(157, 4, 1, 0, 0, 0)"),
    ("prctl death signal", "call(157, 1, 0, 0, 0, 0)"),
    ("setuid", "call(105, 1)"),
    ("personality", "call(135, 0x0040000)"),
    ("kexec", "call(246, 0, 0, 0, 0)"),
    ("init_module", "call(175, 0, 0, b'')"),
    ("clone3", "call(435, ctypes.create_string_buffer(88), 88)"),
    ("x32 call", "call(0x40000000 + 39)"),
    ("setxattr", "call(188, b'.', b'user.a', b'b', 1, 0)"),
    ("inotify", "call(294, 0)"),
    ("fanotify", "call(300, 0, 0)"),
    ("semaphores", "call(64, 0, 1, 0o1600)"),
    ("shared memory", "call(29, 0, 4096, 0o1600)"),
    ("message queue", "call(68, 0, 0o1600)"),
    ("ioctl TIOCSTI", "call(16, 0, 0x5412, b'x')"),
    ("ioctl with high bits", "call(16, 0, ctypes.c_long(0x5412 | 1 << 32), b'x')"),
):
    _tries("kernel", _name, _call, _SYSCALL)
_FCNTL = "import fcntl, os, signal, ctypes\nr, w = os.pipe()\n"
_tries("kernel", "fcntl F_SETOWN", "fcntl.fcntl(r, fcntl.F_SETOWN, os.getppid())", _FCNTL)
_tries("kernel", "fcntl F_SETSIG", "fcntl.fcntl(r, 10, signal.SIGKILL)", _FCNTL)
_tries("kernel", "fcntl O_ASYNC", "fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC)", _FCNTL)
_tries(
    "kernel",
    "fcntl with a high bit",
    "assert ctypes.CDLL(None).syscall(72, r, ctypes.c_long(8 | 1 << 32), os.getppid()) == 0",
    _FCNTL,
)
_tries("kernel", "fcntl F_SETOWN_EX", "fcntl.fcntl(r, 15, bytes(8))", _FCNTL)
_tries("kernel", "fcntl F_NOTIFY", "fcntl.fcntl(os.open('.', 0), 1026, 1)", _FCNTL)
_tries("kernel", "link out of the scratch folder", "os.symlink('/', 'out')", "import os")
_tries("kernel", "hard link", "open('a', 'w').close(); os.link('a', 'b')", "import os")

# -- legitimate code that must work --------------------------------------------------------------------------------------
_always(
    "legitimate",
    "asyncio",
    "async def f(): await asyncio.sleep(0.001); return x\nassert asyncio.run(f()) == x",
    "full",
    "import asyncio",
)
_always(
    "legitimate",
    "thread pool",
    "with ThreadPoolExecutor(4) as p: assert list(p.map(abs, [-x] * 8)) == [x] * 8",
    "full",
    "from concurrent.futures import ThreadPoolExecutor",
)
_always(
    "legitimate",
    "a file of its own",
    "try:\n    with open('note', 'w') as f: f.write('hello')\n    assert open('note').read() == 'hello'\nexcept PermissionError: pass",
    "full",
)
_always(
    "legitimate",
    "dataclass",
    "assert P(x).y == x",
    "full",
    "from dataclasses import dataclass\n@dataclass\nclass P:\n    y: int\n",
)
_always(
    "legitimate",
    "decimal, fractions, datetime",
    "assert Decimal(x) == Fraction(x) and date(2020, 1, x).day == x",
    "full",
    "from decimal import Decimal\nfrom fractions import Fraction\nfrom datetime import date",
)
_always(
    "legitimate",
    "sqlite in memory",
    "assert sqlite3.connect(':memory:').execute('select ?', (x,)).fetchone() == (x,)",
    "full",
    "import sqlite3",
)
_always(
    "legitimate",
    "numpy",
    "assert (numpy.arange(x) ** 2).sum() >= 0 and numpy.linalg.det(numpy.eye(x)) == 1",
    "full",
    "import numpy",
)
_always("legitimate", "bs4", "assert bs4.BeautifulSoup('<b>1</b>', 'html.parser').b.text == '1'", "full", "import bs4")
_always(
    "legitimate",
    "time zones",
    "assert datetime.datetime(2020, 1, 1, tzinfo=zoneinfo.ZoneInfo('Europe/Vienna')).utcoffset().seconds == 3600",
    "full",
    "import datetime, zoneinfo",
)
_always(
    "legitimate",
    "regular expressions and hashing",
    "assert re.sub('a', 'b', 'a') == 'b' and len(hashlib.sha256(b'').hexdigest()) == 64",
    "full",
    "import re, hashlib",
)
_always("legitimate", "recursion", "def f(n): return 0 if n == 0 else 1 + f(n - 1)\nassert f(800) == 800", "full")
_always(
    "legitimate",
    "an alarm of its own",
    "signal.signal(signal.SIGALRM, lambda *a: None)\nsignal.setitimer(signal.ITIMER_REAL, 0.001)\nsignal.pause()",
    "full",
    "import signal",
)
