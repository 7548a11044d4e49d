"""Attacks on what a program may use: time, processes, memory, disk, output; and ways to end early."""

from __future__ import annotations

from attack import Attacks

ATTACKS = Attacks()

for name, body in {
    "endless loop": "while True: pass",
    "sleep": "import time; time.sleep(1000)",
    "huge power": "y = 9 ** (9 ** 9)",
    "regex blow-up": "import re; re.match('(a+)+$', 'a' * 60 + 'b')",
    "deadlock": "import threading; l = threading.Lock(); l.acquire(); l.acquire()",
    "wait for a thread that never ends": "import threading; e = threading.Event(); e.wait()",
    "big range sum": "sum(range(10 ** 12))",
    "string search blow-up": "('a' * 10**6).replace('a', 'b' * 10**5)",
}.items():
    ATTACKS.always("time", name, body)
ATTACKS.add("time", "endless loop at top level", "zero", "while True: pass\ndef square(x): return x * x")
for name, body in {
    "loop on one input": "while True: pass\n",
    "sleep on one input": "import time\ntime.sleep(1000)\n",
    "bare except around the time-out": "while True:\n    try:\n        while True: pass\n    except BaseException: pass\n",
    "alarm ignored": "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True: pass\n",
    "timer off": "import signal\nsignal.alarm(0)\nsignal.setitimer(signal.ITIMER_REAL, 0)\nwhile True: pass\n",
    "signals masked": "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\nwhile True: pass\n",
    "slow __eq__ is never called": "class A:\n    def __eq__(s, o):\n        while True: pass\nreturn A()\n",
    "slow __repr__ is never called": "class A:\n    def __repr__(s):\n        while True: pass\nreturn A()\n",
    "exception with a looping __str__": "class E(Exception):\n    def __str__(s):\n        while True: pass\nraise E\n",
    "read of an empty standard input": "import sys\nsys.stdin.read()\nreturn -1\n",
    "pause": "import signal\nsignal.pause()\n",
}.items():
    ATTACKS.on_three("time", name, body)
ATTACKS.always(
    "time",
    "join a looping thread",
    "t = threading.Thread(target=loop); t.start(); t.join()",
    setup="import threading\ndef loop():\n    while True: pass\n",
)
ATTACKS.always("processes", "fork bomb", "import os\nwhile True:\n    os.fork()")
for name, body in {
    "fork": "pid = os.fork()\nif pid == 0: os._exit(0)",
    "os.system": "assert os.system('true') == 0",
    "execv": "os.execv('/bin/sh', ['sh', '-c', 'true'])",
    "posix_spawn": "os.posix_spawn('/bin/true', ['true'], {})",
    "kill the zygote": "os.kill(os.getppid(), 9)",
    "kill everybody": "os.kill(-1, 9)",
    "kill process 1": "os.kill(1, 9)",
    "kill the group of the zygote": "os.killpg(os.getpgid(os.getppid()), 9)",
    "pidfd to the zygote": "os.pidfd_open(os.getppid())",
    "new session": "os.setsid()",
    "wait for siblings": "os.waitpid(-1, os.WNOHANG)",
    "real-time priority": "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))",
    "more of the processor": "os.setpriority(os.PRIO_PROCESS, 0, -20)",
    "vfork through libc": "assert ctypes.CDLL(None).vfork() > 0",
    "raw clone": "assert ctypes.CDLL(None).syscall(56, 17, 0, 0, 0, 0) > 0",
    "raw clone with a new user namespace": "assert ctypes.CDLL(None).syscall(56, 0x10000011, 0, 0, 0, 0) > 0",
    "subprocess": "import subprocess; subprocess.run(['/bin/true'], check=True)",
    "multiprocessing": "import multiprocessing; p = multiprocessing.Process(target=int); p.start(); p.join()",
    "rt_sigqueueinfo": "assert ctypes.CDLL(None).sigqueue(os.getppid(), 9, 0) == 0",
}.items():
    ATTACKS.tries("processes", name, body, "import ctypes, os")
ATTACKS.always(
    "processes",
    "thread that outlives the call",
    "threading.Thread(target=loop, daemon=True).start()",
    outcome="full",
    setup="import threading\ndef loop():\n    import time\n    while True: time.sleep(0.01)\n",
)
ATTACKS.always(
    "processes",
    "thread bomb",
    "while True:\n    threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
    setup="import threading, time\nthreading.stack_size(65536)\n",
)
for name, body in {
    "bytes bomb": "b = b'x' * (1 << 40)",
    "list bomb": "l = [0] * (1 << 36)",
    "gradual bomb": "l = []\nwhile True: l.append(bytearray(1 << 20))",
    "string doubling": "s = 'x'\nwhile True: s += s",
    "dictionary bomb": "d = {}\nwhile True: d[len(d)] = bytes(4096)",
}.items():
    ATTACKS.always("memory", name, body)
for name, body in {
    "bomb on one input": "return bytearray(1 << 40)\n",
    "bomb caught": "try:\n    b'x' * (1 << 40)\nexcept MemoryError:\n    return 'caught'\n",
}.items():
    ATTACKS.on_three("memory", name, body)
for name, body in {
    "memory file bomb": "fd = os.memfd_create('x'); os.ftruncate(fd, 1 << 40)",
    "raise the limit": "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "raise the limit by prlimit": "import resource; resource.prlimit(0, resource.RLIMIT_AS, (-1, -1))",
    "shared memory": "import mmap; m = mmap.mmap(-1, 1 << 34)",
}.items():
    ATTACKS.tries("memory", name, body, "import os")
for name, body in {
    "fill the disk": "try:\n    with open('fill', 'wb') as f:\n        while True: f.write(bytes(1 << 20))\nexcept OSError: pass",
    "many files": "try:\n    for i in range(100000): open(f'f{i}', 'w').close()\nexcept OSError: pass",
    # A folder of the answer's own, or refused: the test looks at the real one.
    "write to /tmp": "try:\n    with open('/tmp/sweetrl-hostile', 'w') as f: f.write('x')\nexcept OSError: pass",
}.items():
    ATTACKS.always("disk", name, body, outcome="full")
for name, body in {
    "deep folders": "try:\n    for i in range(500):\n        os.mkdir('d'); os.chdir('d')\nexcept OSError: pass",
    "a folder that may not be read": "try:\n    os.mkdir('locked', 0o300); open('locked/file', 'w').close()\nexcept OSError: pass",
    "a folder that may not be entered": "try:\n    os.mkdir('shut', 0o000)\nexcept OSError: pass",
}.items():
    ATTACKS.always("disk", name, body, outcome="full", setup="import os")
for name, body in {
    "change the scratch folder's mode": "os.chmod('.', 0)",
    "a set-user-id bit": "open('s', 'w').close(); os.chmod('s', 0o4755)",
    "mode of an open file": "os.fchmod(0, 0o600)",
    "times of an open file": "os.utime(0)",
    "write to the standard library": "open(os.path.dirname(os.__file__) + '/evil.py', 'w')",
    "write to a library": "import numpy; open(os.path.dirname(numpy.__file__) + '/evil.py', 'w')",
    "sparse file": "f = open('s', 'wb'); f.truncate(1 << 40)",
}.items():
    ATTACKS.tries("disk", name, body, "import os")
for name, body in {
    "standard output flood": "print('x' * 5_000_000)",
    "standard error flood": "import sys; sys.stderr.write('x' * 5_000_000)",
    "raw flood": "import os\nfor _ in range(500): os.write(1, b'x' * 4096)",
}.items():
    ATTACKS.always("output", name, body, outcome="full")
ATTACKS.add("exits", "sys.exit at top level", "zero", "import sys\nsys.exit(0)\ndef square(x): return x * x")
for name, body in {
    "sys.exit in every call": "import sys; sys.exit(0)",
    "deep recursion": "def f(): return f()\nf()",
}.items():
    ATTACKS.always("exits", name, body)
for name, body in {
    "SystemExit on one input": "raise SystemExit(0)\n",
    "KeyboardInterrupt on one input": "raise KeyboardInterrupt\n",
    "GeneratorExit on one input": "raise GeneratorExit\n",
    "os._exit": "import os\nos._exit(0)\n",
    "segmentation fault": "import ctypes\nctypes.string_at(0)\n",
    "abort": "import os\nos.abort()\n",
    "kill itself": "import os\nos.kill(os.getpid(), 9)\n",
    "raise a signal": "import signal\nsignal.raise_signal(signal.SIGTERM)\n",
    "stack overflow": "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f()\nf()\n",
    "a base exception of its own": "class B(BaseException): pass\nraise B\n",
    "exception with a hostile class name": "E = type('E' * 10**6, (Exception,), {})\nraise E('x' * 10**6)\n",
}.items():
    ATTACKS.on_three("exits", name, body)
ATTACKS.add(
    "exits", "exit handler", "full", "import atexit, os\natexit.register(os._exit, 1)\ndef square(x): return x * x"
)

# No attack, but what an honest program does; tests/sandbox/honest has more of them.
ATTACKS.always(
    "legitimate",
    "libraries, threads, time zones and a file",
    """
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(abs, [-x] * 8)) == [x] * 8
    assert numpy.linalg.det(numpy.eye(x)) == 1 and bs4.BeautifulSoup("<b>1</b>", "html.parser").b.text == "1"
    zone = zoneinfo.ZoneInfo("Europe/Vienna")
    assert datetime.datetime(2020, 1, 1, tzinfo=zone).utcoffset().seconds == 3600
    try:
        open("note", "w").write("hello")
    except PermissionError:
        pass
    """,
    "full",
    "import bs4, datetime, numpy, zoneinfo\nfrom concurrent.futures import ThreadPoolExecutor",
)
