"""Untrusted Python: run code that nobody has read, get values back, let nothing out. Independent of ColBench.

`Sandbox` is the client; `Job` says what to run, `Outcome` what it returned. docs/sandbox.md explains the layers.
"""

from sweetrl.sandbox.client import Sandbox
from sweetrl.sandbox.compare import Rules, equal, render
from sweetrl.sandbox.limits import CallResult, Job, Limits, Outcome
from sweetrl.sandbox.run import run_file

__all__ = ["CallResult", "Job", "Limits", "Outcome", "Rules", "Sandbox", "equal", "render", "run_file"]
