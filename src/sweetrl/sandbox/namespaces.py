"""Isolation of the zygote: user, mount, pid, network, ipc and uts namespaces, and a root that holds only Python.

The new root is a tmpfs with the standard library and the allowed libraries bound read-only at their usual paths, and a
small scratch folder without exec, which is /tmp, too. Of /dev there is /dev/null, and there is no /proc and no /etc.
Loaded by the zygote on its own: standard library only.
"""

from __future__ import annotations

import _socket
import ctypes
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket

SCRATCH, NULL = "/scratch", "/dev/null"
NOBODY = 65534
_NEW = 0x10000000 | 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000  # user mnt pid net ipc uts
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT = 1, 2, 4, 8, 32
_BIND, _REC, _PRIVATE, _NOATIME = 4096, 16384, 1 << 18, 1024
_MOUNT_SETATTR, _PIVOT_ROOT = 442, {"x86_64": 155, "aarch64": 41}
_BASE = "/tmp"  # only a place to mount on, in a mount namespace of our own

_libc = ctypes.PyDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def enter(readable: list[str], hidden: list[str], disk_mib: int) -> None:
    """Move this process into namespaces of its own; returns in their process 1, a child. Raises OSError if refused.

    The calling process stays outside, waits for that child and ends with it. `hidden` folders are covered by empty
    ones. A refusal leaves the calling process unfit for anything but exit: try it in a fork first (`possible`).
    """
    links = [(path, os.readlink(path)) for path in ("/lib", "/lib64", "/lib32") if os.path.islink(path)]
    if not any(path.startswith("/tmp/") for path in readable):  # where Python lies there, it is read-only
        links.append(("/tmp", SCRATCH))
    _write("/proc/self/oom_score_adj", "1000")
    change = _new_user()
    # Opened in the new mount namespace (a bind cannot cross into it), but still as the user who may walk there.
    there = [path for path in (*readable, NULL) if os.path.exists(path)]
    descriptors = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in there]
    if change:
        _become_nobody()
    _libc.sethostname(b"sandbox", 7)
    _new_root(descriptors, links, hidden, disk_mib)
    for _, descriptor in descriptors:
        os.close(descriptor)
    _become_first()


def possible() -> bool:
    """Whether this machine lets this process make the namespaces and mount in them (tried in a fork)."""
    pid = os.fork()
    if pid == 0:
        try:
            if _new_user():
                _become_nobody()
            _mount(None, "/", None, _REC | _PRIVATE)
            _mount("tmpfs", _BASE, "tmpfs", _NOSUID | _NODEV, "size=64k")
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    return status == 0


def _new_user() -> bool:
    """Unshare, and map the user nobody: to itself for root, who must still become it (True), else to the caller."""
    uid, gid = os.geteuid(), os.getegid()
    helper, channel = (0, None) if uid else _helper()
    if _libc.unshare(_NEW) != 0:
        number = ctypes.get_errno()
        if channel is not None:
            channel.close()
            os.waitpid(helper, 0)
        raise OSError(number, f"namespaces: {os.strerror(number)}")
    mapped = False
    if channel is not None:
        channel.send(b"x")
        mapped = channel.recv(1) == b"y"
        channel.close()
        os.waitpid(helper, 0)
    if not mapped:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{NOBODY} {uid} 1")
        _write("/proc/self/gid_map", f"{NOBODY} {gid} 1")
    return mapped


def _become_nobody() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def _helper() -> tuple[int, socket]:
    """A process that stays outside and has the right to map another user than its own into the new namespace."""
    caller_end, helper_end = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    target = os.getpid()
    pid = os.fork()
    if pid:
        helper_end.close()
        return pid, caller_end
    caller_end.close()
    try:
        if helper_end.recv(1):
            _write(f"/proc/{target}/gid_map", f"{NOBODY} {NOBODY} 1")
            _write(f"/proc/{target}/uid_map", f"{NOBODY} {NOBODY} 1")
            helper_end.send(b"y")
    finally:
        os._exit(0)


def _new_root(
    descriptors: list[tuple[str, int]], links: list[tuple[str, str]], hidden: list[str], disk_mib: int
) -> None:
    _mount(None, "/", None, _REC | _PRIVATE)
    _mount("tmpfs", _BASE, "tmpfs", _NOSUID | _NODEV, f"size=4m,nr_inodes=8192,mode=755,uid={NOBODY},gid={NOBODY}")
    for path, target in links:
        os.symlink(target, _BASE + path)
    covered: list[str] = []
    for path, descriptor in descriptors:
        place = _BASE + path
        for folder in hidden:
            if path.startswith(folder + "/") and folder not in covered:
                _cover(_BASE + folder)
                covered.append(folder)
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            os.makedirs(place, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            if not os.path.exists(place):
                os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o600))
        _mount(f"/proc/self/fd/{descriptor}", place, None, _BIND | _REC)
        _read_only(place, _NOEXEC if path == NULL else _NODEV)
    for folder in hidden:
        if folder not in covered and os.path.isdir(_BASE + folder):
            _cover(_BASE + folder)
            covered.append(folder)
    for folder in covered:
        _mount(None, _BASE + folder, None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)
    scratch = _BASE + SCRATCH
    os.mkdir(scratch, 0o700)
    options = f"size={disk_mib}m,nr_inodes=1024,mode=700,uid={NOBODY},gid={NOBODY}"
    _mount("tmpfs", scratch, "tmpfs", _NOSUID | _NODEV | _NOEXEC | _NOATIME, options)
    _mount(None, _BASE, None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)
    os.chdir(_BASE)
    number = _PIVOT_ROOT[os.uname().machine]
    if _libc.syscall(number, b".", b".") != 0 or _libc.umount2(b".", 2) != 0:  # MNT_DETACH
        raise OSError(ctypes.get_errno(), "pivot_root")
    os.chdir(SCRATCH)


def _cover(place: str) -> None:
    """Hide what a read-only folder holds under an empty one."""
    if os.path.isdir(place):
        _mount("tmpfs", place, "tmpfs", _NOSUID | _NODEV, f"size=64k,mode=755,uid={NOBODY},gid={NOBODY}")


def _read_only(place: str, also: int) -> None:
    attributes = struct.pack("4Q", _RDONLY | _NOSUID | also, 0, 0, 0)  # the same numbers as those of mount()
    size = ctypes.c_size_t(len(attributes))
    if _libc.syscall(_MOUNT_SETATTR, -100, place.encode(), 0x8000, attributes, size) == 0:
        return
    flags = os.statvfs(place).f_flag  # an older kernel: the flags that are locked must be given again
    keep = flags & (_NOSUID | _NODEV | _NOEXEC) | (flags & 1024) | (flags & 2048)
    if flags & 4096:
        keep |= 1 << 21  # relatime
    _mount(None, place, None, _REMOUNT | _BIND | _RDONLY | _NOSUID | also | keep)


def _become_first() -> None:
    """Fork into the new pid namespace; the process outside only waits."""
    pid = os.fork()
    if pid == 0:
        _libc.prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG
        return
    os.closerange(3, 4096)
    os.waitpid(pid, 0)
    os._exit(0)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    data = None if options is None else options.encode()
    if _libc.mount(*encoded, ctypes.c_ulong(flags), data) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {target}: {os.strerror(number)}")


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
