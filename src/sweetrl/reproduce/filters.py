"""Controls that are methods of their own: a filter that does not know which questions the user refused."""

from __future__ import annotations

from sweetrl.methods.baselines import AnsweredTurns


class EveryQuestion(AnsweredTurns):
    """Imitation of every question, and of successes' final replies.

    What `answered-turns` comes to where it does not know the words that a user refuses with.
    """

    def refuses(self, words: str) -> bool:
        """Nothing is taken for a refusal."""
        return False
