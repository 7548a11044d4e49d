"""Attacks that look for what a program must not see: files, the network, expected values."""

from __future__ import annotations

from attack import Attacks

ATTACKS = Attacks()

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
    ATTACKS.tries("leaks", f"read {_path}", f"open({_path!r}).read()")
ATTACKS.tries("leaks", "list the root", "assert {'proc', 'sys', 'boot', 'home'} & set(os.listdir('/'))", "import os")
ATTACKS.tries("leaks", "list the devices", "assert os.listdir('/dev') != ['null']", "import os")
ATTACKS.tries("leaks", "list /proc", "os.listdir('/proc')", "import os")
ATTACKS.tries("leaks", "secret in the environment", "assert 'SWEETRL_TEST_SECRET' in os.environ", "import os")
ATTACKS.tries("leaks", "standard input", "assert sys.stdin.read()", "import sys")
ATTACKS.tries("leaks", "internet socket", "socket.socket()", "import socket")
ATTACKS.tries("leaks", "raw socket", "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)", "import socket")
ATTACKS.tries("leaks", "name look-up", "socket.getaddrinfo('example.org', 80)", "import socket")
ATTACKS.tries("leaks", "http", "urllib.request.urlopen('http://127.0.0.1:1', timeout=1)", "import urllib.request")
ATTACKS.tries(
    "leaks", "abstract unix socket", "s = socket.socket(socket.AF_UNIX); s.bind('\\0hostile')", "import socket"
)
ATTACKS.tries(
    "leaks",
    "datagram to an abstract name",
    "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.sendto(b'x', '\\0name')",
    "import socket",
)
ATTACKS.tries("leaks", "netlink socket", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)", "import socket")
ATTACKS.always(
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
ATTACKS.add(
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
