"""Refs that git moves only from the value that was seen, here and on a server alike: compare and swap.

Of two who move such a ref at once, on whichever machines, the second one is told, and looks again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from sweetrl.errors import UserError
from tasks.workspace import git, head

# A server that is being restarted answers again soon.
patiently = Retrying(
    stop=stop_after_attempt(3), wait=wait_exponential(1, max=4), retry=retry_if_exception_type(UserError), reraise=True
)


@dataclass(frozen=True)
class Chain:
    """The commits that end at `ref`. A refusal says what `cannot` be done, and to do `what` with --no-push."""

    ref: str
    cannot: str
    what: str

    def shared(self, home: Path, remote: str) -> str:
        """Return the remote's end of the chain, whose commits are here then; "" where there is none, or no remote."""
        if not remote:
            return ""
        listed: str = patiently(self._ask, home, remote, "ls-remote", remote, self.ref)
        tip = listed.partition("\t")[0]
        if tip and not head(home, tip):
            patiently(self._ask, home, remote, "fetch", "-q", "--no-write-fetch-head", remote, self.ref)
        return tip

    def pushed(self, home: Path, remote: str, commit: str, seen: str) -> bool:
        """Move the remote's ref from `seen` to `commit`; False where another one has moved it first."""
        done = git(home, "push", "-q", remote, f"{commit}:{self.ref}", check=False)
        if not done.returncode:
            return True
        now = self.shared(home, remote)
        if now == seen:
            raise UserError(self._refusal(home, remote, done.stderr))
        return now == commit

    def _ask(self, home: Path, remote: str, *arguments: str) -> str:
        done = git(home, *arguments, check=False)
        if done.returncode:
            raise UserError(self._refusal(home, remote, done.stderr))
        return done.stdout

    def _refusal(self, home: Path, remote: str, said: str) -> str:
        lines = said.strip().splitlines() or ["no message"]
        reason = next((line for line in lines if line.startswith(("fatal: ", "error: ", "remote: "))), lines[-1])
        return (
            f"{home}: {self.cannot} where others see it: git's remote {remote} says: {reason}; try again when it "
            f"answers, or {self.what} with --no-push, for this machine alone."
        )
