"""Starts the browser isolated: no network, nothing of the machine's data, no rights of the user who started it.

Run as a script with the standard library only: `python -I -S launch.py IN_FD OUT_FD STATUS_FD MEMORY_MIB PROGRAM
ARGUMENT...`. It hands the two ends of the protocol to the program as its descriptors 3 and 4, makes namespaces
(network, mounts, IPC; for a user who is not root a user namespace, too), covers every folder that programs do not need
with an empty one, becomes nobody if it was root, and turns into the program. The browser's own sandbox then makes
further namespaces for the processes that meet a page. Whether it is isolated is written to STATUS_FD.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import sys

NOBODY = 65534
NEWNS, NEWIPC, NEWUSER, NEWNET = 0x00020000, 0x08000000, 0x10000000, 0x40000000
NOSUID, NODEV, BIND, REC, PRIVATE = 2, 4, 4096, 16384, 1 << 18
# What programs need; all other top folders (homes, mounted disks, work) are covered. /run holds sockets of services.
NEEDED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "proc", "sys", "dev", "nix", "tmp", "opt")
SHARED_MEMORY = "/dev/shm"
FONT_CACHE = "/var/cache/fontconfig"  # without it the browser would look at every font at its start

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Isolate as far as the machine lets us, say so, and become the program."""
    # Moved out of the way first: any of them may be 3 or 4 itself.
    inward, outward, status = (fcntl.fcntl(int(number), fcntl.F_DUPFD_CLOEXEC, 10) for number in sys.argv[1:4])
    for number in sys.argv[1:4]:
        os.close(int(number))
    memory, program, arguments = int(sys.argv[4]), sys.argv[5], sys.argv[5:]
    kept = [os.path.dirname(program), FONT_CACHE]
    isolated = _possible(kept)
    if isolated:
        _isolate(kept)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory:
        resource.setrlimit(resource.RLIMIT_DATA, (memory << 20, memory << 20))
    home = "/tmp" if isolated else os.environ["TMPDIR"]
    environment = {"HOME": home, "TMPDIR": home, "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "TZ": "UTC"}
    profile = os.path.join(home, f"profile-{os.getpid()}")
    os.mkdir(profile, 0o700)
    os.dup2(inward, 3)
    os.dup2(outward, 4)
    os.closerange(5, 10)
    os.write(status, b"isolated" if isolated else b"not isolated")
    os.chdir("/")
    os.execve(program, [*arguments, f"--user-data-dir={profile}"], environment)


def _possible(kept: list[str]) -> bool:
    """Whether this machine lets us isolate ourselves; a child tries, because it cannot be undone.

    Namespaces may be allowed, but not their use: containers and distributions forbid mounts or mappings.
    """
    child = os.fork()
    if not child:
        try:
            _isolate(kept)
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return status == 0


def _isolate(kept: list[str]) -> None:
    uid, gid = os.geteuid(), os.getegid()
    if _libc.unshare(NEWNS | NEWIPC | NEWNET | (NEWUSER if uid else 0)):
        raise OSError(ctypes.get_errno(), "unshare")
    if uid:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    _mount(None, "/", None, REC | PRIVATE)
    # Opened before they are covered, but in the new mount namespace: a bind cannot cross into it.
    folders = [(path, os.open(path, os.O_PATH)) for path in kept if os.path.isdir(path)]
    for name in sorted(os.listdir("/")):
        path = "/" + name
        if name not in NEEDED and os.path.isdir(path) and not os.path.islink(path):
            _mount("tmpfs", path, "tmpfs", NOSUID | NODEV, "size=64k,mode=755")
    _mount("tmpfs", "/tmp", "tmpfs", NOSUID | NODEV, "size=1g,mode=1777")
    try:  # pictures of megabytes come and go there: on huge pages that costs less than half the page faults
        _mount("tmpfs", SHARED_MEMORY, "tmpfs", NOSUID | NODEV, "size=1g,mode=1777,huge=within_size")
    except OSError:
        _mount("tmpfs", SHARED_MEMORY, "tmpfs", NOSUID | NODEV, "size=1g,mode=1777")
    for path, folder in folders:
        if not os.path.isdir(path):  # it was in a covered folder
            os.makedirs(path)
            _mount(f"/proc/self/fd/{folder}", path, None, BIND | REC)
        os.close(folder)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    if _libc.mount(*encoded, ctypes.c_ulong(flags), None if options is None else options.encode()):
        raise OSError(ctypes.get_errno(), f"mount {target}: {os.strerror(ctypes.get_errno())}")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


if __name__ == "__main__":
    main()
