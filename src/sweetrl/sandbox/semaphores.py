"""Locks of multiprocessing without processes: what its C module offers, between the threads of one process.

A child may start no process and has no /dev/shm, where named semaphores lie. But thread pools of multiprocessing, its
queues and its locks are made of them, and programs use these between threads. Loaded by the zygote on its own, in the
place of `_multiprocessing`: standard library only.
"""

from __future__ import annotations

import _thread
import time

TYPE_CHECKING = False  # what typing says of it, without importing that
if TYPE_CHECKING:
    from typing import Any

_MUTEX = 0  # the kind that its owner may take again; the other is a semaphore


class SemLock:
    """A semaphore, or a lock that its owner may take again."""

    SEM_VALUE_MAX = 2**31 - 1

    def __init__(self, kind: int, value: int, maxvalue: int, name: str, unlink: bool) -> None:
        self.kind, self.maxvalue = kind, maxvalue
        self.name = None  # nothing that somebody must remove
        self.handle = id(self)
        self._value = value
        self._guard = _thread.allocate_lock()
        self._waiting: list[Any] = []  # locks that are held, one for each thread that waits
        self._owner, self._times = 0, 0

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Take one; wait until `timeout` (seconds) where `block`. Returns whether it was got."""
        own = _thread.get_ident()
        end = None if timeout is None else time.monotonic() + max(0.0, timeout)
        while True:
            with self._guard:
                if self.kind == _MUTEX and self._owner == own and self._times:
                    self._times += 1
                    return True
                if self._value > 0:
                    self._value -= 1
                    self._owner, self._times = own, self._times + 1
                    return True
                left = -1.0 if end is None else end - time.monotonic()
                if not block or (end is not None and left <= 0):
                    return False
                turn = _thread.allocate_lock()
                turn.acquire()
                self._waiting.append(turn)
            turn.acquire(True, left)
            with self._guard:
                if turn in self._waiting:
                    self._waiting.remove(turn)

    def release(self) -> None:
        """Give one back."""
        with self._guard:
            if self.kind == _MUTEX:
                if self._owner != _thread.get_ident() or not self._times:
                    raise AssertionError("attempt to release recursive lock not owned by thread")
                self._times -= 1
                if self._times:
                    return
            else:
                if self._value >= self.maxvalue:
                    raise ValueError("semaphore or lock released too many times")
                self._times -= 1
            self._value += 1
            if self._waiting:
                self._waiting.pop(0).release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _count(self) -> int:
        return self._times

    def _is_mine(self) -> bool:
        return self._times > 0 and self._owner == _thread.get_ident()

    def _get_value(self) -> int:
        return self._value

    def _is_zero(self) -> bool:
        return self._value == 0


def sem_unlink(name: str) -> None:
    """Nothing has a name here."""
    raise FileNotFoundError(name)
