"""What the next comparison at the gate could see, before anything is trained: tasks, limit, differences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sweetrl.config.settings import GateSettings, TrackingSettings
from sweetrl.errors import UserError
from sweetrl.file_hashes import file_hash
from sweetrl.gate.power import detectable_difference, level, required_tasks, tasks_for_margin
from sweetrl.paths import TEST_TASKS
from sweetrl.tracking.comparisons import noted
from sweetrl.tracking.registry import CHAMPION, Registry
from sweetrl.tracking.store import embedded_database, tracking_enabled


@dataclass(frozen=True)
class Plan:
    """The next comparison with the `champion` (None: there is none yet) on `tasks` test tasks.

    It is comparison `number` and may be wrong with the chance `alpha`. `discordance` is the mean squared difference on
    a task, as `seen` comparisons with this champion have shown (0: assumed). On these tasks a difference of
    `detectable` is seen with the chance `power` (None: none at all); `wanted` needs `needed` tasks, and to rule out a
    loss of `margin` in a slice takes `slice_needed`.
    """

    champion: str | None
    tasks: int
    number: int
    alpha: float
    discordance: float
    seen: int
    detectable: float | None
    power: float
    wanted: float
    needed: int
    margin: float
    slice_needed: int

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the plan as (what, value)."""
        who = "none yet: whoever comes first is it" if self.champion is None else f"version {self.champion}"
        yield "champion", who
        yield "test tasks", f"{self.tasks:,}"
        yield "comparison", f"number {self.number} on these tasks; it may be wrong with a chance of {self.alpha:.2g}"
        shown = f"as {self.seen} comparison{'s have' if self.seen > 1 else ' has'} shown"
        source = shown if self.seen else "assumed: gate.discordance, or --discordance"
        yield "versions differ", f"by {self.discordance:.3g} (mean square on a task; {source})"
        chance = f"with a chance of {100 * self.power:.0f} %"
        seen = "nothing" if self.detectable is None else f"a difference of {self.detectable:.3f} or more, {chance}"
        yield "these tasks show", seen
        yield f"{self.wanted:g} needs", f"about {self.needed:,} tasks, {chance}"
        yield "a slice needs", f"about {self.slice_needed:,} tasks to rule out a loss of more than {self.margin:g}"


def plan(
    rules: GateSettings,
    tracking: TrackingSettings,
    confidence: float,
    tasks: int,
    root: Path,
    difference: float | None = None,
    discordance: float | None = None,
) -> Plan:
    """Plan the next comparison on `tasks` test tasks in the project at `root`; no store is made for it.

    What is not given is as the gate's `rules` and the registry say; `confidence` is that of evaluations. A registry
    that does not answer, and a `difference` or `discordance` that cannot be, are a UserError.
    """
    difference = rules.smallest_difference if difference is None else difference
    for name, value in (("--difference", difference), ("--discordance", discordance)):
        if value is not None and not 0.0 < value <= 1.0:
            raise UserError(f"{name}: {value:g} cannot be; give a number above 0 and at most 1.")
    champion, rows, path = None, list[dict[str, float | str]](), root / TEST_TASKS
    database = embedded_database(tracking, root)
    if tracking_enabled() and (database is None or database.exists()):
        registry = Registry(tracking, root)
        if champion := registry.aliases().get(CHAMPION):
            rows = list(noted(registry, champion, "comparison").values())
    here = file_hash(path) if path.exists() else ""
    number = 1 + sum(row["tasks"] == here for row in rows)
    alpha = level(rules, confidence, number)
    seen = [float(row["discordance"]) for row in rows if row.get("discordance")] if discordance is None else []
    spread = sum(seen) / len(seen) if seen else discordance or rules.discordance
    return Plan(
        champion,
        tasks,
        number,
        alpha,
        spread,
        len(seen),
        detectable_difference(tasks, spread, alpha, rules.power),
        rules.power,
        difference,
        required_tasks(difference, spread, alpha, rules.power),
        rules.slice_margin,
        tasks_for_margin(rules.slice_margin, spread, 1.0 - confidence, rules.power),
    )
