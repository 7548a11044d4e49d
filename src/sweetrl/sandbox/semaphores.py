"""Locks of multiprocessing without processes: what its C module offers, between the threads of one process.

A child may start no process and has no /dev/shm, where named semaphores lie. But thread pools of multiprocessing, its
queues and its locks are made of them, and programs use these between threads. Loaded by the zygote on its own, in the
place of `_multiprocessing`: standard library only.
"""

from __future__ import annotations

import _thread

_MUTEX = 0  # the kind that its owner may take again; the other is a semaphore


class SemLock:
    """A semaphore, or a lock that its owner may take again."""

    SEM_VALUE_MAX = 2**31 - 1

    def __init__(self, kind: int, value: int, maxvalue: int, name: str, unlink: bool) -> None:
        import threading  # imported by multiprocessing already; other children do not pay for it

        self.kind, self.maxvalue = kind, maxvalue
        self.name = None  # nothing that must be removed
        self.handle = id(self)
        self._value = value
        self._changed = threading.Condition(threading.Lock())
        self._owner, self._times = 0, 0

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Take it; where `block`, wait for up to `timeout` seconds. Returns whether it was taken."""
        with self._changed:
            if self.kind != _MUTEX or not self._is_mine():
                wait = (None if timeout is None else max(0.0, timeout)) if block else 0.0
                if not self._changed.wait_for(lambda: self._value > 0, wait):
                    return False
                self._value -= 1
            self._owner, self._times = _thread.get_ident(), self._times + 1
            return True

    def release(self) -> None:
        """Give it back."""
        with self._changed:
            if self.kind == _MUTEX and not self._is_mine():
                raise AssertionError("attempt to release recursive lock not owned by thread")
            if self.kind != _MUTEX and self._value >= self.maxvalue:
                raise ValueError("semaphore or lock released too many times")
            self._times -= 1
            if self.kind != _MUTEX or not self._times:
                self._value += 1
                self._changed.notify()

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
