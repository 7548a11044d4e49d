"""Attacks on what a program may use: time, processes, memory, disk, output; and ways to end early."""

from __future__ import annotations

from attack import Attacks

ATTACKS = Attacks()

# -- time ----------------------------------------------------------------------------------------------------------------
ATTACKS.always("time", "endless loop", "while True: pass")
ATTACKS.add("time", "endless loop at top level", "zero", "while True: pass\ndef square(x): return x * x")
ATTACKS.on_three("time", "loop on one input", "while True: pass\n")
ATTACKS.on_three("time", "sleep on one input", "import time\ntime.sleep(1000)\n")
ATTACKS.always("time", "sleep", "import time; time.sleep(1000)")
ATTACKS.on_three(
    "time",
    "bare except around the time-out",
    "while True:\n    try:\n        while True: pass\n    except BaseException: pass\n",
)
ATTACKS.on_three(
    "time",
    "alarm ignored",
    "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True: pass\n",
)
ATTACKS.on_three(
    "time", "timer off", "import signal\nsignal.alarm(0)\nsignal.setitimer(signal.ITIMER_REAL, 0)\nwhile True: pass\n"
)
ATTACKS.on_three(
    "time",
    "signals masked",
    "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\nwhile True: pass\n",
)
ATTACKS.always("time", "huge power", "y = 9 ** (9 ** 9)")
ATTACKS.always("time", "regex blow-up", "import re; re.match('(a+)+$', 'a' * 60 + 'b')")
ATTACKS.always("time", "deadlock", "import threading; l = threading.Lock(); l.acquire(); l.acquire()")
ATTACKS.always("time", "wait for a thread that never ends", "import threading; e = threading.Event(); e.wait()")
ATTACKS.always(
    "time",
    "join a looping thread",
    "t = threading.Thread(target=loop); t.start(); t.join()",
    setup="import threading\ndef loop():\n    while True: pass\n",
)
ATTACKS.always("time", "big range sum", "sum(range(10 ** 12))")
ATTACKS.always("time", "string search blow-up", "('a' * 10**6).replace('a', 'b' * 10**5)")
ATTACKS.on_three(
    "time", "slow __eq__ is never called", "class A:\n    def __eq__(s, o):\n        while True: pass\nreturn A()\n"
)
ATTACKS.on_three(
    "time", "slow __repr__ is never called", "class A:\n    def __repr__(s):\n        while True: pass\nreturn A()\n"
)
ATTACKS.on_three(
    "time",
    "exception with a looping __str__",
    "class E(Exception):\n    def __str__(s):\n        while True: pass\nraise E\n",
)
ATTACKS.on_three("time", "read of an empty standard input", "import sys\nsys.stdin.read()\nreturn -1\n")
ATTACKS.on_three("time", "pause", "import signal\nsignal.pause()\n")

# -- processes -----------------------------------------------------------------------------------------------------------
ATTACKS.always("processes", "fork bomb", "import os\nwhile True:\n    os.fork()")
ATTACKS.tries("processes", "fork", "pid = os.fork()\nif pid == 0: os._exit(0)", "import os")
ATTACKS.tries("processes", "vfork through libc", "assert ctypes.CDLL(None).vfork() > 0", "import ctypes")
ATTACKS.tries("processes", "subprocess", "subprocess.run(['/bin/true'], check=True)", "import subprocess")
ATTACKS.tries("processes", "os.system", "assert os.system('true') == 0", "import os")
ATTACKS.tries("processes", "execv", "os.execv('/bin/sh', ['sh', '-c', 'true'])", "import os")
ATTACKS.tries("processes", "posix_spawn", "os.posix_spawn('/bin/true', ['true'], {})", "import os")
ATTACKS.tries(
    "processes",
    "multiprocessing",
    "p = multiprocessing.Process(target=int); p.start(); p.join()",
    "import multiprocessing",
)
ATTACKS.tries("processes", "raw clone", "assert ctypes.CDLL(None).syscall(56, 17, 0, 0, 0, 0) > 0", "import ctypes")
ATTACKS.tries(
    "processes",
    "raw clone with a new user namespace",
    "assert ctypes.CDLL(None).syscall(56, 0x10000011, 0, 0, 0, 0) > 0",
    "import ctypes",
)
ATTACKS.tries("processes", "kill the zygote", "os.kill(os.getppid(), 9)", "import os")
ATTACKS.tries("processes", "kill everybody", "os.kill(-1, 9)", "import os")
ATTACKS.tries("processes", "kill process 1", "os.kill(1, 9)", "import os")
ATTACKS.tries("processes", "kill the group of the zygote", "os.killpg(os.getpgid(os.getppid()), 9)", "import os")
ATTACKS.tries("processes", "pidfd to the zygote", "os.pidfd_open(os.getppid())", "import os")
ATTACKS.tries(
    "processes", "rt_sigqueueinfo", "assert ctypes.CDLL(None).sigqueue(os.getppid(), 9, 0) == 0", "import ctypes, os"
)
ATTACKS.tries("processes", "new session", "os.setsid()", "import os")
ATTACKS.tries("processes", "wait for siblings", "os.waitpid(-1, os.WNOHANG)", "import os")
ATTACKS.tries(
    "processes", "real-time priority", "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))", "import os"
)
ATTACKS.tries("processes", "more of the processor", "os.setpriority(os.PRIO_PROCESS, 0, -20)", "import os")
ATTACKS.always(
    "processes",
    "thread that outlives the call",
    "threading.Thread(target=loop, daemon=True).start()",
    "full",
    "import threading\ndef loop():\n    import time\n    while True: time.sleep(0.01)\n",
)
ATTACKS.always(
    "processes",
    "thread bomb",
    "while True:\n    threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
    "zero",
    "import threading, time\nthreading.stack_size(65536)\n",
)

# -- memory and disk -----------------------------------------------------------------------------------------------------
ATTACKS.always("memory", "bytes bomb", "b = b'x' * (1 << 40)")
ATTACKS.always("memory", "list bomb", "l = [0] * (1 << 36)")
ATTACKS.always("memory", "gradual bomb", "l = []\nwhile True: l.append(bytearray(1 << 20))")
ATTACKS.always("memory", "string doubling", "s = 'x'\nwhile True: s += s")
ATTACKS.always("memory", "dictionary bomb", "d = {}\nwhile True: d[len(d)] = bytes(4096)")
ATTACKS.on_three("memory", "bomb on one input", "return bytearray(1 << 40)\n")
ATTACKS.on_three("memory", "bomb caught", "try:\n    b'x' * (1 << 40)\nexcept MemoryError:\n    return 'caught'\n")
ATTACKS.tries("memory", "memory file bomb", "fd = os.memfd_create('x'); os.ftruncate(fd, 1 << 40)", "import os")
ATTACKS.tries("memory", "raise the limit", "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))", "import resource")
ATTACKS.tries(
    "memory", "raise the limit by prlimit", "resource.prlimit(0, resource.RLIMIT_AS, (-1, -1))", "import resource"
)
ATTACKS.tries("memory", "shared memory", "m = mmap.mmap(-1, 1 << 34)", "import mmap")
ATTACKS.always(
    "disk",
    "fill the disk",
    "try:\n    with open('fill', 'wb') as f:\n        while True: f.write(bytes(1 << 20))\nexcept OSError: pass",
    "full",
)
ATTACKS.always(
    "disk", "many files", "try:\n    for i in range(100000): open(f'f{i}', 'w').close()\nexcept OSError: pass", "full"
)
ATTACKS.always(
    "disk",
    "deep folders",
    "try:\n    for i in range(500):\n        os.mkdir('d'); os.chdir('d')\nexcept OSError: pass",
    "full",
    "import os",
)
ATTACKS.always(
    "disk",
    "a folder that may not be read",
    "try:\n    os.mkdir('locked', 0o300); open('locked/file', 'w').close()\nexcept OSError: pass",
    "full",
    "import os",
)
ATTACKS.always(
    "disk",
    "a folder that may not be entered",
    "try:\n    os.mkdir('shut', 0o000)\nexcept OSError: pass",
    "full",
    "import os",
)
ATTACKS.tries("disk", "change the scratch folder's mode", "os.chmod('.', 0)", "import os")
ATTACKS.tries("disk", "a set-user-id bit", "open('s', 'w').close(); os.chmod('s', 0o4755)", "import os")
ATTACKS.tries("disk", "mode of an open file", "os.fchmod(0, 0o600)", "import os")
ATTACKS.tries("disk", "times of an open file", "os.utime(0)", "import os")
ATTACKS.tries("disk", "sparse file", "f = open('s', 'wb'); f.truncate(1 << 40)")
ATTACKS.always(  # a folder of the answer's own, or refused; the test looks at the real one
    "disk",
    "write to /tmp",
    "try:\n    with open('/tmp/sweetrl-hostile', 'w') as f: f.write('x')\nexcept OSError: pass",
    "full",
)
ATTACKS.tries(
    "disk", "write to the standard library", "open(os.path.dirname(os.__file__) + '/evil.py', 'w')", "import os"
)
ATTACKS.tries(
    "disk", "write to a library", "import numpy; open(os.path.dirname(numpy.__file__) + '/evil.py', 'w')", "import os"
)
ATTACKS.always("output", "standard output flood", "print('x' * 5_000_000)", "full")
ATTACKS.always("output", "standard error flood", "import sys; sys.stderr.write('x' * 5_000_000)", "full")
ATTACKS.always("output", "raw flood", "import os\nfor _ in range(500): os.write(1, b'x' * 4096)", "full")

# -- exits ---------------------------------------------------------------------------------------------------------------
ATTACKS.add("exits", "sys.exit at top level", "zero", "import sys\nsys.exit(0)\ndef square(x): return x * x")
ATTACKS.always("exits", "sys.exit in every call", "import sys; sys.exit(0)")
ATTACKS.on_three("exits", "SystemExit on one input", "raise SystemExit(0)\n")
ATTACKS.on_three("exits", "KeyboardInterrupt on one input", "raise KeyboardInterrupt\n")
ATTACKS.on_three("exits", "GeneratorExit on one input", "raise GeneratorExit\n")
ATTACKS.on_three("exits", "os._exit", "import os\nos._exit(0)\n")
ATTACKS.on_three("exits", "segmentation fault", "import ctypes\nctypes.string_at(0)\n")
ATTACKS.on_three("exits", "abort", "import os\nos.abort()\n")
ATTACKS.on_three("exits", "kill itself", "import os\nos.kill(os.getpid(), 9)\n")
ATTACKS.on_three("exits", "raise a signal", "import signal\nsignal.raise_signal(signal.SIGTERM)\n")
ATTACKS.on_three("exits", "stack overflow", "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f()\nf()\n")
ATTACKS.always("exits", "deep recursion", "def f(): return f()\nf()")
ATTACKS.add(
    "exits", "exit handler", "full", "import atexit, os\natexit.register(os._exit, 1)\ndef square(x): return x * x"
)
ATTACKS.on_three("exits", "a base exception of its own", "class B(BaseException): pass\nraise B\n")
ATTACKS.on_three(
    "exits", "exception with a hostile class name", "E = type('E' * 10**6, (Exception,), {})\nraise E('x' * 10**6)\n"
)
