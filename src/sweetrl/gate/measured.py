"""What a version reached on the test tasks, as the gate compares it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sweetrl.errors import UserError


@dataclass(frozen=True)
class Measured:
    """One version on the test tasks, everything by task id: `rewards`, `turns` (the agent's), `tokens` (its own).

    `turns` and `tokens` are empty where they are not known. `groups`: column -> task id -> group, what can be sliced.
    """

    rewards: Mapping[str, float]
    turns: Mapping[str, float] = field(default_factory=dict)
    tokens: Mapping[str, float] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def on(self, tasks: Collection[str]) -> Measured:
        """Return the same on some of the tasks."""
        kept = set(tasks)

        def some(values: Mapping[str, float]) -> dict[str, float]:
            return {task: value for task, value in values.items() if task in kept}

        groups = {
            column: {task: group for task, group in found.items() if task in kept}
            for column, found in self.groups.items()
        }
        return Measured(some(self.rewards), some(self.turns), some(self.tokens), groups)

    def worth(self, turn_price: float, token_price: float) -> dict[str, float]:
        """Return each task's reward less the price of its dialogue; `token_price` is for 1,000 tokens.

        A price of what is not known is a UserError.
        """
        for price, values, name in ((turn_price, self.turns, "turn"), (token_price, self.tokens, "token")):
            if price and not values.keys() >= self.rewards.keys():
                raise UserError(
                    f"params.yaml: `gate.{name}_price` is {price:g}, and how many {name}s the dialogues of both "
                    "versions took is not known; evaluate both again (`python -m flows.evaluate MODEL/VERSION`), or "
                    "set the price to 0."
                )
        return {
            task: reward
            - (turn_price * self.turns[task] if turn_price else 0.0)
            - (token_price * self.tokens[task] / 1000.0 if token_price else 0.0)
            for task, reward in self.rewards.items()
        }
