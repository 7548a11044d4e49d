"""Faults that people's servers have: an S3 that refuses, breaks off or says nothing, and a full disk."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from pathlib import Path

from tests.services.servers import own_port

REFUSALS = {
    403: ("Forbidden", "AccessDenied", "Access Denied"),
    503: ("Service Unavailable", "SlowDown", "Please reduce your request rate."),
}


class Proxy:
    """A TCP proxy before the server at `port`; `refuse` lets it answer every request with an S3's refusal.

    A change of `refuse` breaks all connections that are open, as a load balancer does.
    """

    def __init__(self, port: int) -> None:
        self.behind, self.port = port, own_port()
        self.status = 0
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def refuse(self, status: int) -> None:
        """Answer with `status` (403, 503) from now on; 0 lets requests through again."""
        self.status = status
        self.cut()

    def cut(self) -> None:
        """Break the connections that are open."""
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), self._tracked(client):
            if self.status:
                self._answer(client)
                return
            with socket.create_connection(("127.0.0.1", self.behind), timeout=5) as server, self._tracked(server):
                server.settimeout(None)
                back = threading.Thread(target=self._pump, args=(server, client), daemon=True)
                back.start()
                self._pump(client, server)
                back.join()

    @contextlib.contextmanager
    def _tracked(self, connection: socket.socket):
        with self._lock:
            self._open.add(connection)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(connection)

    @staticmethod
    def _pump(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                target.sendall(chunk)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _answer(self, client: socket.socket) -> None:
        """Read one request to its end, and refuse it as an S3 does."""
        client.settimeout(5)
        received = b""
        while b"\r\n\r\n" not in received:
            chunk = client.recv(65536)
            if not chunk:
                return
            received += chunk
        head, _, body = received.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
        if b"100-continue" not in fields.get(b"expect", b""):
            left = int(fields.get(b"content-length", b"0")) - len(body)
            while left > 0 and (chunk := client.recv(65536)):
                left -= len(chunk)
        reason, code, message = REFUSALS[self.status]
        text = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'
        if head.startswith(b"HEAD"):
            text = ""
        head_lines = [f"HTTP/1.1 {self.status} {reason}", "Content-Type: application/xml", "Connection: close"]
        client.sendall("\r\n".join([*head_lines, f"Content-Length: {len(text)}", "", text]).encode())


class SmallDisk:
    """A tmpfs of `mib` MiB at `folder`, which can be filled up; root alone can mount one."""

    def __init__(self, folder: Path, mib: int) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(folder)], check=True)

    def fill(self, leave_kib: int) -> None:
        """Take all room but `leave_kib` KiB."""
        disk = os.statvfs(self.folder)
        room = disk.f_bavail * disk.f_frsize - leave_kib * 1024
        with (self.folder / "filler").open("wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, max(room, 1))

    def free(self) -> None:
        (self.folder / "filler").unlink(missing_ok=True)

    def remove(self) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], check=False)
