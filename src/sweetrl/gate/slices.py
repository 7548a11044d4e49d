"""Groups of tasks looked at apart: whoever wins on the whole may lose where few look, or where few tasks are.

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
        """The slice in words, in one line: groups are what somebody has written into a file."""
        group = " ".join(printable(self.group).split())
        return f"{self.column} {group if len(group) <= LONGEST_NAME else group[:LONGEST_NAME] + '...'}"


def compare_slices(
    differences: Mapping[str, float],
    groups: Mapping[str, Mapping[str, str]],
    rules: GateSettings,
    confidence: float,
) -> tuple[Slice, ...]:
    """Look at every group of the columns `rules.slices`; `differences` and each of `groups` are by task id.

    A column in which all tasks are alike has no slices. One that the results do not have is a UserError.
    """
    for column in rules.slices:
        if column not in groups:
            known = ", ".join(sorted(groups)) or "none"
            raise UserError(
                f"params.yaml: `gate.slices` names `{column}`, which the results of the versions do not have, or which "
                f"says what became of a task and not which one it is; of those named only these are groups: {known}."
            )
    scale = max([1.0, *(abs(value) for value in differences.values())])
    spread = sum(value**2 for value in differences.values()) / max(1, len(differences))
    # Where no task differs, what the two added tasks make of the interval is what must clear the margin.
    least = math.ceil(quantile((1 + confidence) / 2) * scale / rules.slice_margin) - 1
    needed = max(least, tasks_for_margin(rules.slice_margin, spread, 1 - confidence, rules.power))
    measured = []
    for column in rules.slices:
        members: dict[str, list[float]] = {}
        for task, value in differences.items():
            members.setdefault(groups[column][task], []).append(value)
        if len(members) > 1:
            measured += [
                (column, name, members[name], *_cautious(members[name], scale, confidence)) for name in sorted(members)
            ]
    adjusted = holm([p_value for *_, p_value in measured])
    slices = []
    for (column, name, values, low, high, _), p_value in zip(measured, adjusted, strict=True):
        mean = sum(values) / len(values)
        status: Status = "safe" if low > -rules.slice_margin else "unclear"
        if mean < -rules.slice_margin and p_value < 1 - confidence:
            status = "loss"
        slices.append(Slice(column, name, len(values), mean, low, high, p_value, status, max(needed, len(values) + 1)))
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


def sentences(slices: Sequence[Slice], margin: float, confidence: float) -> list[str]:
    """Say what the slices show: losses first, then where nobody can tell, then what is ruled out."""
    if not slices:
        return []
    said = []
    lost = sorted((part for part in slices if part.status == "loss"), key=lambda part: part.difference)
    unclear = sorted((part for part in slices if part.status == "unclear"), key=lambda part: part.difference)
    if lost:
        shown = [
            f"{part.name} ({part.difference:+.3f} on {part.tasks} tasks, {100 * confidence:.6g} % interval "
            f"{part.low:+.3f} to {part.high:+.3f})"
            for part in lost
        ]
        said.append(f"It loses more than {margin:g} in {len(lost)} of {len(slices)} slices: {few(shown)}.")
    if unclear:
        shown = [
            f"{part.name} ({part.difference:+.3f} on {part.tasks}, and about {part.needed:,} are needed)"
            for part in unclear
        ]
        said.append(
            f"In {len(unclear)} of {len(slices)} slices there are too few tasks to rule out a loss of more than "
            f"{margin:g}: {few(shown)}."
        )
    if safe := len(slices) - len(lost) - len(unclear):
        said.append(f"In {safe} of {len(slices)} slices a loss of more than {margin:g} is ruled out.")
    return said
