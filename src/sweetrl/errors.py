"""The exceptions of the project: what a user can put right, and what loses one dialogue and no more."""

from __future__ import annotations


class UserError(Exception):
    """Bad input or a bad machine state that the user can fix; the message is one clear sentence.

    Command lines print it without a traceback and exit with status 1. State what is wrong, where (file, row, key)
    and what to do about it.
    """


class EngineError(Exception):
    """One reply could not be had, and the message says why: this dialogue is lost, others go on."""


class NoRoom(EngineError):
    """The prompt leaves no room for a reply in the model's context; asking again changes nothing."""


class SimulatorError(Exception):
    """The user simulator cannot reply (a server failed, a recording ends): this dialogue is lost, others go on."""


class UserLeft(Exception):
    """The simulated user ends the dialogue without another word: the agent's last reply was its last."""
