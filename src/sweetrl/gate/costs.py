"""What a dialogue with the challenger takes more than one with the champion: the agent's turns, and its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sweetrl.errors import UserError
from sweetrl.evaluation.statistics import t_interval
from sweetrl.gate.measured import Measured
from sweetrl.settings import GateSettings


@dataclass(frozen=True)
class Extra:
    """One cost a dialogue: `what` ("agent turns", ...), its means, and the mean difference with its interval's ends.

    `limit` is the most that is allowed (None: any), `over` whether more than that cannot be ruled out.
    """

    what: str
    key: str
    champion: float
    challenger: float
    low: float
    high: float
    limit: float | None

    @property
    def difference(self) -> float:
        """How many more the challenger takes."""
        return self.challenger - self.champion

    @property
    def over(self) -> bool:
        """Whether the challenger is not shown to stay within the limit."""
        return self.limit is not None and self.high > self.limit


def compare_costs(
    champion: Measured, challenger: Measured, rules: GateSettings, confidence: float
) -> tuple[Extra, ...]:
    """Compare what is known of both versions' dialogues, on the same tasks, with Student's interval of the difference.

    A limit on what is not known of one of them is a UserError.
    """
    found = []
    for key, what, before, after, limit in (
        ("turns", "agent turns", champion.turns, challenger.turns, rules.extra_turns),
        ("tokens", "generated tokens", champion.tokens, challenger.tokens, rules.extra_tokens),
    ):
        tasks = sorted(challenger.rewards)
        if len(tasks) < 2 or not all(values.keys() >= set(tasks) for values in (before, after)):
            if limit is not None:
                raise UserError(
                    f"params.yaml: `gate.extra_{key}` is {limit:g}, and how many {what} the dialogues of both versions "
                    "took is not known; evaluate both again (`python -m flows.evaluate MODEL/VERSION`), or leave it "
                    "empty."
                )
            continue
        interval = t_interval([after[task] - before[task] for task in tasks], confidence)
        assert interval is not None
        old, new = (sum(values[task] for task in tasks) / len(tasks) for values in (before, after))
        found.append(Extra(what, key, old, new, *interval, limit))
    return tuple(found)


def sentences(costs: Sequence[Extra]) -> list[str]:
    """Say what a dialogue takes more or less."""
    said = []
    for one in costs:
        if one.difference == 0.0:
            text = f"A dialogue takes as many {one.what} as with the champion ({one.champion:.2f})"
        else:
            change = f"{abs(one.difference):.2f} {'more' if one.difference > 0 else 'fewer'}"
            means = f"{one.challenger:.2f}, not {one.champion:.2f}"
            text = f"A dialogue takes {change} {one.what} than with the champion ({means})"
        if one.limit is not None:
            words = "is not shown to keep within" if one.over else "keeps within"
            text += f"; that {words} gate.extra_{one.key} ({one.limit:g}: with all uncertainty it is {one.high:+.2f})"
        said.append(text + ".")
    return said
