"""The system calls that untrusted code may make: a short allowlist, with arguments checked, as a classic BPF program.

Everything else fails with EPERM (clone3 with ENOSYS, so that the C library falls back to clone, whose flags can be
checked). Comparing 64-bit arguments as a whole or the 32 bits that the kernel reads makes `cmd | 1 << 32` useless
here: what is not exactly on the list is refused. A path is text in the caller's memory, which a filter cannot see; so
calls that change a file by its path are on the list only where nothing but the scratch folder can be changed anyway.
The list is put on in two steps, because the kernel compiles a long one slowly: the zygote binds itself to it plus what
it needs to start and end children, and each child takes those few away again. Loaded by the zygote on its own:
standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

TYPE_CHECKING = False  # what typing says of it, without importing that
if TYPE_CHECKING:
    from collections.abc import Callable

# name: (x86_64, aarch64); -1 where the architecture does not have it
_NUMBERS = {
    name: (int(x86), int(arm))
    for name, x86, arm in (
        entry.split(":")
        for entry in """
read:0:63 write:1:64 readv:19:65 writev:20:66 pread64:17:67 pwrite64:18:68 lseek:8:62 close:3:57 fstat:5:80 stat:4:-1
lstat:6:-1 newfstatat:262:79 statx:332:291 open:2:-1 openat:257:56 access:21:-1 faccessat:269:48 faccessat2:439:439
readlink:89:-1 readlinkat:267:78 getcwd:79:17 chdir:80:49 fchdir:81:50 getdents64:217:61 mkdir:83:-1 mkdirat:258:34
unlink:87:-1 unlinkat:263:35 rmdir:84:-1 rename:82:-1 renameat:264:38 renameat2:316:276 ftruncate:77:46 truncate:76:45
fsync:74:82 fdatasync:75:83 dup:32:23 dup2:33:-1 dup3:292:24 pipe:22:-1 pipe2:293:59 poll:7:-1 ppoll:271:73 select:23:-1
pselect6:270:72 epoll_create1:291:20 epoll_ctl:233:21 epoll_wait:232:-1 epoll_pwait:281:22 eventfd2:290:19
recvfrom:45:207 recvmsg:47:212 getsockopt:55:209 getsockname:51:204 shutdown:48:210 mmap:9:222 munmap:11:215
mprotect:10:226 mremap:25:216 madvise:28:233 brk:12:214 futex:202:98 set_robust_list:273:99 rseq:334:293 exit:60:93
exit_group:231:94 rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139 sigaltstack:131:132
rt_sigtimedwait:128:137 rt_sigpending:127:136 setitimer:38:103 getitimer:36:102 alarm:37:-1 pause:34:-1
nanosleep:35:101 clock_nanosleep:230:115 clock_gettime:228:113 clock_getres:229:114 gettimeofday:96:169 time:201:-1
times:100:153 getpid:39:172 getppid:110:173 gettid:186:178 getuid:102:174 geteuid:107:175 getgid:104:176
getegid:108:177 getgroups:115:158 getpgrp:111:-1 getpgid:121:155 getsid:124:156 getrusage:98:165 getrlimit:97:163
sysinfo:99:179 uname:63:160 getrandom:318:278 sched_yield:24:124 sched_getaffinity:204:123 getcpu:309:168 umask:95:166
restart_syscall:219:128 membarrier:324:283 statfs:137:43 fstatfs:138:44 get_robust_list:274:100 getpriority:140:141
timerfd_create:283:85 timerfd_settime:286:86 fcntl:72:25 ioctl:16:29 clone:56:220 clone3:435:435 socketpair:53:199
sendto:44:206 prctl:157:167 prlimit64:302:261 tgkill:234:131 kill:62:129
wait4:61:260 sendmsg:46:211 setpgid:109:154 pidfd_open:434:434 setrlimit:160:164 close_range:436:436 chmod:90:-1
fchmodat:268:53 utimensat:280:88 flock:73:32 msync:26:227 listxattr:194:11 llistxattr:195:12
""".split()
    )
}
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
# What only the zygote may do ...
_ZYGOTE_ONLY = ("wait4", "sendmsg", "setpgid", "pidfd_open", "setrlimit", "close_range")
# ... and what it may do with any argument, but a child only with those that _child_body lets through.
_NARROWED = ("clone", "prctl", "prlimit64", "tgkill", "kill")
# Landlock says nothing of these, so they need a root of the zygote's own, where only the scratch folder can be written
# to ("truncate" it knows from version 3 on, and needs no more there).
_BY_PATH = ("chmod", "fchmodat", "utimensat", "truncate")
_OPENING = {"open": 1, "openat": 2}  # and the argument that holds the flags
# shutil copies extended attributes where a file system has them: here it has none.
_UNSUPPORTED = ("listxattr", "llistxattr")

_LOAD, _JUMP_EQUAL, _JUMP_SET, _AND, _RETURN = 0x20, 0x15, 0x45, 0x54, 0x06
_ALLOW, _KILL, _DENY = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
_NO_SYSTEM_CALL, _NOT_SUPPORTED = 0x00050000 | errno.ENOSYS, 0x00050000 | errno.ENOTSUP
_THREAD_FLAGS = (0x3D0F00, 0x7D0F00)  # what pthread_create of glibc and of musl pass: a thread and nothing else
_FCNTL = (0, 1, 2, 3, 5, 6, 7, 1030)  # duplicate, read or set close-on-exec, lock; F_SETFL is checked further
# is it a terminal, how much is there, non-blocking, close-on-exec
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
_PRCTL = (15, 16)  # a thread's name
_F_SETFL, _O_ASYNC, _O_TRUNC, _ACCESS, _WRITING = 4, 0x2000, 0x200, 3, (1, 2)
_OWNER_READS, _SPECIAL_MODES = 0o400, 0o7000
_OWN_PID = 0x7EADBEEF  # stands in the program for the child's own process id until it is known
_MARK = struct.pack("I", _OWN_PID)

_libc = ctypes.PyDLL(None, use_errno=True)
_plain = ctypes.PyDLL(None)  # what a child calls: to keep the error number would cost it pages


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


class Filter:
    """The allowlist of this machine; `supported` is False where its architecture or kernel has none."""

    def __init__(self) -> None:
        self.supported = os.uname().machine in _ARCHITECTURES and struct.pack("H", 1) == b"\1\0" and _available()
        if self.supported:
            column, _ = _ARCHITECTURES[os.uname().machine]
            self._child = _Compiled(_assemble_child(column))

    def install_zygote(self, own_root: bool, truncation: bool) -> None:
        """Bind this process and everything it starts to the list and what a zygote needs. Never undone.

        `own_root`: of the files that a path can reach, only those in the scratch folder can be changed. `truncation`:
        nor can others be emptied by opening them; where this does not hold, O_TRUNC is refused unless a file is opened
        for writing.
        """
        column, architecture = _ARCHITECTURES[os.uname().machine]
        _Compiled(_assemble_zygote(column, architecture, own_root, truncation)).installer()(0)

    def child_installer(self) -> Callable[[int], None]:
        """What a child calls with its own process id, to take away from itself what only a zygote needs."""
        return self._child.installer()


class _Compiled:
    """A program where the kernel can read it. Made before the fork: every page that a child need not touch counts."""

    def __init__(self, code: bytes) -> None:
        self._places = [i // 4 + 1 for i in range(0, len(code), 8) if code[i + 4 : i + 8] == _MARK]
        self._buffer = ctypes.create_string_buffer(code, len(code))
        program = _Program(len(code) // 8, ctypes.cast(self._buffer, ctypes.c_void_p))
        self._pointer = ctypes.cast(ctypes.pointer(program), ctypes.c_void_p)
        self._keep = program

    def installer(self) -> Callable[[int], None]:
        """A function that puts the program on, with the process id that it is given in the place of the mark."""
        words, places, call = memoryview(self._buffer).cast("B").cast("I"), tuple(self._places), _plain.prctl
        operation, mode, none = ctypes.c_int(22), ctypes.c_ulong(2), ctypes.c_ulong(0)  # PR_SET_SECCOMP, ..._FILTER
        pointer, hold = self._pointer, self._keep

        def install(pid: int) -> None:
            for place in places:
                words[place] = pid
            if call(operation, mode, pointer, none, none) != 0:
                raise OSError(f"the kernel refuses the seccomp filter of {hold.length} steps")

        return install


def _available() -> bool:
    # The kernel checks the pointer last: EFAULT says that filters exist.
    _libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS, without which an ordinary user may not
    return _libc.prctl(22, 2, None, 0, 0) == -1 and ctypes.get_errno() == errno.EFAULT


def _numbers(column: int) -> dict[str, int]:
    return {name: pair[column] for name, pair in _NUMBERS.items() if pair[column] >= 0}


def _assemble_zygote(column: int, architecture: int, own_root: bool, truncation: bool) -> bytes:
    code = [(_LOAD, 0, 0, 4), (_JUMP_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    for name, number in _numbers(column).items():
        if name in _BY_PATH and not own_root:
            continue
        body = _body(name, truncation)
        code += [(_JUMP_EQUAL, 0, len(body), number), *body]
    code.append((_RETURN, 0, 0, _DENY))
    return _pack(code)


def _assemble_child(column: int) -> bytes:
    """Runs beside the zygote's program; the stricter answer counts, so this one allows whatever it does not name."""
    numbers = _numbers(column)
    code = [(_LOAD, 0, 0, 0)]
    for name in _NARROWED:
        body = _child_body(name)
        code += [(_JUMP_EQUAL, 0, len(body), numbers[name]), *body]
    for name in _ZYGOTE_ONLY:
        if name in numbers:
            code += [(_JUMP_EQUAL, 0, 1, numbers[name]), (_RETURN, 0, 0, _DENY)]
    code.append((_RETURN, 0, 0, _ALLOW))
    return _pack(code)


def _pack(code: list[tuple[int, int, int, int]]) -> bytes:
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def _low(argument: int) -> tuple[int, int, int, int]:
    return (_LOAD, 0, 0, 16 + 8 * argument)


def _high(argument: int) -> tuple[int, int, int, int]:
    return (_LOAD, 0, 0, 20 + 8 * argument)


def _one_of(values: tuple[int, ...]) -> list[tuple[int, int, int, int]]:
    """Allow if the accumulator is one of `values`, else fall through."""
    return [step for value in values for step in ((_JUMP_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW))]


def _body(name: str, truncation: bool) -> list[tuple[int, int, int, int]]:
    """The checks of one system call, if it has any; runs to a return in every case."""
    allow, deny = (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _DENY)
    if name == "fcntl":
        return [
            _low(1),
            *_one_of(_FCNTL),
            (_JUMP_EQUAL, 1, 0, _F_SETFL),
            deny,
            _low(2),
            (_JUMP_SET, 0, 1, _O_ASYNC),  # would send signals, even to a process that is not ours
            deny,
            allow,
        ]
    if name == "ioctl":
        return [_low(1), *_one_of(_IOCTL), deny]
    if name == "clone3":
        return [(_RETURN, 0, 0, _NO_SYSTEM_CALL)]
    if name in _UNSUPPORTED:
        return [(_RETURN, 0, 0, _NOT_SUPPORTED)]
    if name in _OPENING and not truncation:
        # Landlock looks first at what is opened to be written to, but at nothing else that is emptied.
        emptied = [(_AND, 0, 0, _ACCESS), *_one_of(_WRITING), deny]
        return [_low(_OPENING[name]), (_JUMP_SET, 0, len(emptied), _O_TRUNC), *emptied, allow]
    if name in ("chmod", "fchmodat"):  # no mode with which the zygote could not empty a folder
        mode = _low(1 if name == "chmod" else 2)
        return [mode, (_JUMP_SET, 0, 1, _SPECIAL_MODES), deny, (_JUMP_SET, 0, 1, _OWNER_READS), allow, deny]
    if name == "utimensat":  # by a path: an open file can be one that was handed in
        return [_low(1), (_JUMP_EQUAL, 0, 1, 0), _high(1), (_JUMP_EQUAL, 0, 1, 0), deny, allow]
    if name == "socketpair":
        return [_low(0), *_one_of((1,)), deny]  # AF_UNIX
    if name == "sendto":  # never to an address
        return [_low(4), (_JUMP_EQUAL, 1, 0, 0), deny, _high(4), *_one_of((0,)), deny]
    return [allow]


def _child_body(name: str) -> list[tuple[int, int, int, int]]:
    deny = (_RETURN, 0, 0, _DENY)
    if name == "clone":
        return [_high(0), (_JUMP_EQUAL, 1, 0, 0), deny, _low(0), *_one_of(_THREAD_FLAGS), deny]
    if name == "prctl":
        return [_low(0), *_one_of(_PRCTL), deny]
    if name == "prlimit64":  # read, of itself
        zero = [(_JUMP_EQUAL, 1, 0, 0), deny]
        return [_low(2), *zero, _high(2), *zero, _low(0), *_one_of((0, _OWN_PID)), deny]
    return [_low(0), *_one_of((_OWN_PID,)), deny]  # tgkill, kill: itself only
