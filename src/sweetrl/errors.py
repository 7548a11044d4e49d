"""One exception for everything a user can put right: what is wrong, where, and what to do."""

from __future__ import annotations


class UserError(Exception):
    """Bad input or a bad machine state that the user can mend; the message is one clear sentence.

    Command lines print it without a traceback and exit with status 1. State what is wrong, where (file, row, key)
    and what to do about it.
    """
