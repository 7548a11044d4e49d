"""Run a command as an ordinary user who can reach this interpreter, wherever it is installed: a script, needs root.

argv: paths that the user must be able to reach, "--", the command. In a mount namespace of its own, folders on the way that
others may not enter are covered by ones that they may, with the paths bound in. With SWEETRL_NO_NAMESPACES=1 the command
also runs where the kernel refuses every further user namespace.
"""

import ctypes
import os
import sys

libc = ctypes.CDLL(None, use_errno=True)


def mount(source, target, kind, flags, data=None):
    if libc.mount(source and source.encode(), target.encode(), kind and kind.encode(), flags, data and data.encode()):
        raise OSError(ctypes.get_errno(), f"mount {target}")


def closed_root(path):
    """The highest folder on the way to `path` that others may not enter."""
    parts = path.strip("/").split("/")
    for i in range(1, len(parts)):
        folder = "/" + "/".join(parts[:i])
        if not os.stat(folder).st_mode & 0o001:
            return folder
    return None


def main():
    split = sys.argv.index("--")
    paths, command = [os.path.realpath(p) for p in sys.argv[1:split]], sys.argv[split + 1 :]
    libc.unshare(0x00020000)
    mount(None, "/", None, 16384 | 1 << 18)
    covered = {}
    for path in paths:
        folder = closed_root(path)
        if folder:
            covered.setdefault(folder, []).append((path, os.open(path, os.O_PATH)))
    for folder, inside in covered.items():
        mount("tmpfs", folder, "tmpfs", 0, "mode=755")
        for path, descriptor in inside:
            os.makedirs(path)
            mount(f"/proc/self/fd/{descriptor}", path, None, 4096)
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    libc.prctl(4, 1, 0, 0, 0)  # dumpable again, or /proc/self belongs to root
    if os.environ.pop("SWEETRL_NO_NAMESPACES", ""):
        if libc.unshare(0x10000000):
            raise OSError(ctypes.get_errno(), "unshare")
        for name, text in (("setgroups", "deny"), ("uid_map", "0 65534 1"), ("gid_map", "0 65534 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        with open("/proc/sys/user/max_user_namespaces", "w") as file:
            file.write("0")
    os.environ["HOME"] = "/"
    os.execv(command[0], command)


main()
