"""A method of one's own: imitate the best attempt at each task, wherever it is clearly better than the others.

Rejection Fine-Tuning imitates every attempt with enough reward; this one learns at most once from a task, and nothing
from tasks whose attempts are all alike. It needs no critic and ranks no replies, so those stages are skipped:

    method: examples.best_attempt:BestAttempt
    method_options: {learning_rate: 1.0e-03, epochs: 4, lead: 0.1}
    sources: {method: examples/best_attempt.py}
"""

from pydantic import Field

from sweetrl import Method, TrainerSettings


class Options(TrainerSettings):
    """What `method_options` may say: everything about training, and how far the best attempt must lead."""

    epochs: float = Field(4.0, gt=0)
    lead: float = Field(0.1, ge=0)


class BestAttempt(Method):
    """Imitate the best attempt at each task."""

    settings_type = Options
    needs = frozenset({"trajectories"})

    def data(self, job):
        """Lay out the best attempts; the default trainer imitates their replies."""
        lead = job.settings.lead
        attempts = {}
        for attempt in job.inputs.trajectories():
            if attempt.reward is not None:
                attempts.setdefault(attempt.task.id, []).append(attempt)
        best = []
        for group in attempts.values():
            group.sort(key=lambda attempt: -attempt.reward)
            mean = sum(attempt.reward for attempt in group) / len(group)
            if group[0].reward - mean >= lead:
                best.append(group[0])
        return job.rows(best)
