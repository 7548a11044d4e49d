"""Programs that tests start and interrupt."""

from __future__ import annotations

import signal


def as_at_a_terminal() -> None:
    """In the child: take SIGINT, which whoever runs the tests in the background may have had ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
