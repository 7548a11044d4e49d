"""Attacks by calls of the kernel that no honest program needs."""

from __future__ import annotations

from attack import Attacks

ATTACKS = Attacks()

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
    ATTACKS.tries("kernel", _name, _call, _SYSCALL)
_FCNTL = "import fcntl, os, signal, ctypes\nr, w = os.pipe()\n"
for name, body in {
    "fcntl F_SETOWN": "fcntl.fcntl(r, fcntl.F_SETOWN, os.getppid())",
    "fcntl F_SETSIG": "fcntl.fcntl(r, 10, signal.SIGKILL)",
    "fcntl O_ASYNC": "fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC)",
    "fcntl with a high bit": "assert ctypes.CDLL(None).syscall(72, r, ctypes.c_long(8 | 1 << 32), os.getppid()) == 0",
    "fcntl F_SETOWN_EX": "fcntl.fcntl(r, 15, bytes(8))",
    "fcntl F_NOTIFY": "fcntl.fcntl(os.open('.', 0), 1026, 1)",
}.items():
    ATTACKS.tries("kernel", name, body, _FCNTL)
for name, body in {
    "link out of the scratch folder": "os.symlink('/', 'out')",
    "hard link": "open('a', 'w').close(); os.link('a', 'b')",
}.items():
    ATTACKS.tries("kernel", name, body, "import os")
