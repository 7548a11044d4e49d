"""The sandbox's data: limits, jobs and their outcomes, in frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

# How one call ended. "value": it returned and the value could be written down. The others carry a detail for people.
Kind = Literal["value", "exception", "timeout", "memory", "killed", "not_defined", "refused"]


@dataclass(frozen=True)
class Limits:
    """What one solution may spend. Memory, processes and disk bind every child of a Sandbox; the rest can differ by
    job.

    `wall_seconds` bounds the whole solution (all its calls together), `call_seconds` each call; both count the time
    that the code ran or slept, not the time it waited for a busy core (see docs/sandbox.md). `output_kib` bounds one
    returned value as it is written down, `nodes` how many values it may hold, `source_kib` the source with all its
    alternative readings, of which the first ones that fit are tried.
    """

    wall_seconds: float = 2.0
    call_seconds: float = 1.0
    memory_mib: int = 512
    processes: int = 64
    output_kib: int = 1024
    nodes: int = 100_000
    disk_mib: int = 16
    source_kib: int = 16384


@dataclass(frozen=True)
class Job:
    """One solution and the calls to make on it.

    `sources` are alternative readings of the solution; the first that compiles is run. `namespace` "one" executes it
    as a module; "split" gives it separate globals and locals, which is what the official evaluator does. The source is
    executed afresh before every call. `seed` seeds `random` and numpy.random, so that equal jobs give equal outcomes.
    """

    sources: tuple[str, ...]
    calls: tuple[str, ...]
    namespace: Literal["one", "split"] = "one"
    seed: int = 0
    limits: Limits | None = None


@dataclass(frozen=True)
class CallResult:
    """The result of one call: `tree` is the value as tagged JSON (see values.py) where `kind` is "value"."""

    kind: Kind
    tree: Any = None
    detail: str = ""


@dataclass(frozen=True)
class Outcome:
    """One CallResult for each call of the job, and how it was run. `isolation` names the layers that were active."""

    calls: tuple[CallResult, ...]
    isolation: str
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    children: int = 1
