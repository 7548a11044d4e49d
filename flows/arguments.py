"""The small command lines of the flows: `python -m flows.<name> ...`."""

from __future__ import annotations

import argparse

from sweetrl.changes import parse_changes as parameter_changes

__all__ = ["parameter_changes", "parser"]


def parser(module: str, what: str) -> argparse.ArgumentParser:
    """Return a parser for `python -m flows.<module>`."""
    return argparse.ArgumentParser(prog=f"python -m flows.{module}", description=what)
