"""Groups of tasks looked at apart: whoever wins on all tasks together may lose in a group that has few of them.

For each slice, with d_i the differences of its n tasks: the interval of their mean, made cautious by two tasks that
nobody has seen. Half a task that was only won, half a task that was only lost and one without a difference are added,
so that ten tasks without any difference do not rule out a loss, and the interval is Wald's for n + 2:

    mean' = sum d_i / (n + 2),   var' = (sum d_i^2 + s^2) / (n + 2) - mean'^2,   mean' +- z sqrt(var' / (n + 2))

(s = 1, or the largest difference where rewards are larger). With rewards of 0 and 1 that is half a task in each cell of
the paired table: Agresti & Min (2005), "Simple improved confidence intervals for comparing matched proportions",
Statistics in Medicine 24, 729-740.

Two questions, two ways of counting several slices. "Has it lost in a slice?" is asked of each, and one wrong yes is
too many: p-values are adjusted by Holm's procedure. "Can a loss of more than the margin be ruled out in all of them?"
needs a yes from each, which luck gives seldom enough: no adjustment (Berger (1982), "Multiparameter hypothesis testing
and acceptance sampling", Technometrics 24, 295-300, intersection-union tests).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sweetrl.config.settings import GateSettings
from sweetrl.errors import UserError
from sweetrl.evaluation.statistics import holm
from sweetrl.gate.power import quantile, tasks_for_margin
from sweetrl.text import printable

Status = Literal["safe", "loss", "unclear"]
LONGEST_NAME = 80
NAMED = 3  # slices that a sentence names; all of them are in the report


@dataclass(frozen=True)
class Slice:
    """One group of tasks. `difference` is what was measured on its `tasks`; `low` and `high` are its interval's ends.

    `p_value` is Holm's, of "there is no difference here". `status`: a loss of more than the margin is ruled out
    (safe), there is one (loss), or the tasks cannot tell (unclear); about `needed` tasks could.
    """

    column: str
    group: str
    tasks: int
    difference: float
    low: float
    high: float
    p_value: float
    status: Status
    needed: int

    @property
    def name(self) -> str:
        """The slice in one short line: groups are what somebody has written into a file."""
        return f"{self.column} {' '.join(printable(self.group).split())[:LONGEST_NAME]}"


def compare_slices(
    differences: Mapping[str, float],
    groups: Mapping[str, Mapping[str, str]],
    rules: GateSettings,
    confidence: float,
) -> tuple[Slice, ...]:
    """Look at every group of the columns `rules.slices`; `differences` and each of `groups` are by task id.

    A column in which all tasks are alike has no slices. One that the results do not have is a UserError.
    """
    if missing := [column for column in rules.slices if column not in groups]:
        raise UserError(f"gate.slices: no groups by `{missing[0]}`; there are {', '.join(sorted(groups)) or 'none'}.")
    scale = max([1.0, *(abs(value) for value in differences.values())])
    spread = sum(value**2 for value in differences.values()) / max(1, len(differences))
    # Where no task differs, what the two added tasks make of the interval is what must clear the margin.
    least = math.ceil(quantile((1 + confidence) / 2) * scale / rules.slice_margin) - 1
    needed = max(least, tasks_for_margin(rules.slice_margin, spread, 1 - confidence, rules.power))
    members: dict[tuple[str, str], list[float]] = {}
    for column in rules.slices:
        names = sorted({groups[column][task] for task in differences})
        if len(names) > 1:
            members |= {(column, name): [] for name in names}
            for task, value in differences.items():
                members[column, groups[column][task]].append(value)
    measured = [_cautious(values, scale, confidence) for values in members.values()]
    adjusted = holm([p_value for *_, p_value in measured])
    slices = []
    for (place, values), (low, high, _), p_value in zip(members.items(), measured, adjusted, strict=True):
        mean = sum(values) / len(values)
        status: Status = "safe" if low > -rules.slice_margin else "unclear"
        if mean < -rules.slice_margin and p_value < 1 - confidence:
            status = "loss"
        slices.append(Slice(*place, len(values), mean, low, high, p_value, status, max(needed, len(values) + 1)))
    return tuple(slices)


def _cautious(values: Sequence[float], scale: float, confidence: float) -> tuple[float, float, float]:
    """The interval of the mean with two tasks added (above), and the two-sided p of "it is 0"."""
    from scipy.stats import norm

    count = len(values) + 2
    mean = sum(values) / count
    error = math.sqrt(((sum(value**2 for value in values) + scale**2) / count - mean**2) / count)
    reach = quantile((1 + confidence) / 2) * error
    return mean - reach, mean + reach, float(2 * norm.sf(abs(mean) / error))


def few(words: Sequence[str]) -> str:
    """Return the first of `words`, and how many more there are."""
    rest = len(words) - NAMED
    return ", ".join(words[:NAMED]) + (f" and {rest} more" if rest > 0 else "")


def sentences(slices: Sequence[Slice], margin: float) -> list[str]:
    """Say what the slices show: losses first, then where nobody can tell, then what is ruled out."""
    notes = []
    for status, words, detail in (
        ("loss", "it loses more than", ": {0.low:+.3f} to {0.high:+.3f}"),
        ("unclear", "there are too few tasks to rule out a loss of more than", ", and about {0.needed:,} are needed"),
        ("safe", "the interval rules out a loss of more than", ""),
    ):
        parts = sorted((part for part in slices if part.status == status), key=lambda part: part.difference)
        named = [f"{part.name} ({part.difference:+.3f} on {part.tasks} tasks{detail.format(part)})" for part in parts]
        if parts:
            which = f": {few(named)}" if detail else ""
            notes.append(f"In {len(parts)} of {len(slices)} slices {words} {margin:g}{which}.")
    return notes
