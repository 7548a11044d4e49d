"""Attacks that look for what a program must not see: files, the network, expected values."""

from __future__ import annotations

from attack import Attacks

ATTACKS = Attacks()

for _path in (
    *("/etc/passwd", "/etc/hostname", "/proc/self/environ", "/proc/self/maps", "/proc/1/cmdline", "/dev/mem"),
    *("/sys/kernel/uevent_seqnum", "/root/.bashrc", "{here}", "{data}"),
):
    ATTACKS.tries("leaks", f"read {_path}", f"open({_path!r}).read()")
for name, body in {
    "list the root": "assert {'proc', 'sys', 'boot', 'home'} & set(os.listdir('/'))",
    "list the devices": "assert os.listdir('/dev') != ['null']",
    "list /proc": "os.listdir('/proc')",
    "secret in the environment": "assert 'SWEETRL_TEST_SECRET' in os.environ",
    "standard input": "assert sys.stdin.read()",
    "internet socket": "socket.socket()",
    "raw socket": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "name look-up": "socket.getaddrinfo('example.org', 80)",
    "abstract unix socket": "s = socket.socket(socket.AF_UNIX); s.bind('\\0hostile')",
    "datagram to an abstract name": "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.sendto(b'x', '\\0name')",
    "netlink socket": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
    "http": "import urllib.request; urllib.request.urlopen('http://127.0.0.1:1', timeout=1)",
}.items():
    ATTACKS.tries("leaks", name, body, "import os, socket, sys")
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
