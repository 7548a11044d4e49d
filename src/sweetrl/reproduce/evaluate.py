"""What one policy does at several temperatures, and with several users: run in a variant's folder after its training.

measure.json (the plan), models/policy (none for methods without training: the base) -> reports/measured/: for each
temperature and user one file of results on the test tasks (t0.parquet, t0.25-terse.parquet), and summary.json, which
says what each of them is, how the policy did on validation tasks at each temperature of the grid, and which of these
temperatures was chosen by that. The model is loaded once.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sweetrl.api.calls import evaluated, settings_of
from sweetrl.api.rollouts import opened, serving
from sweetrl.colbench.find import load_domain
from sweetrl.colbench.store import TrajectoryStore, read_task_table
from sweetrl.config.settings import Settings
from sweetrl.console.progress import Meter
from sweetrl.engines.policy import Agent, Policy
from sweetrl.errors import UserError
from sweetrl.evaluation.metrics import AFTER, results_of, write_results
from sweetrl.io import publish, read_json, write_json
from sweetrl.models.check import is_trained
from sweetrl.paths import POLICY, TEST_TASKS, VALIDATION_TASKS
from sweetrl.rollout.context import OpenEnvironment
from sweetrl.rollout.run import rollout_scored
from sweetrl.rollout.users import open_user
from sweetrl.stages.parameters import with_values
from sweetrl.stages.run import stage_main, stage_run
from sweetrl.types import Result, Task

PLAN = Path("measure.json")
OUT = Path("reports/measured")


def evaluate(settings: Settings) -> None:
    """Measure what the plan asks for; finished shards survive a kill."""
    settings = evaluated(settings)
    plan = read_json(PLAN)
    grid, count = plan["choose"]["grid"], plan["choose"]["tasks"]
    validation = read_task_table(VALIDATION_TASKS)[:count]
    if len(validation) < count:
        raise UserError(
            f"{VALIDATION_TASKS}: there are {len(validation)} tasks, but choose.tasks asks for {count}; lower it, or "
            "raise tasks.validation."
        )
    adapter = POLICY if is_trained(POLICY) else None
    with stage_run("evaluate", settings) as run:
        inputs = [TEST_TASKS, VALIDATION_TASKS, Path(settings.model.base), *([adapter] if adapter else [])]
        for path in inputs:
            run.log_input(path.stem, path)
        scratch = run.scratch(PLAN)
        tried: dict[str, Any] = {}
        measured: list[dict[str, Any]] = []
        with (
            serving([Policy(settings.model, settings.engine, adapter)], scratch / "server.log") as (served,),
            opened(load_domain(settings)) as environment,
            closing((agent := served.open(settings.evaluate.batch, singly=True)).engine),
        ):
            player, domain = Player(environment, agent, scratch, plan["opening"]), environment.domain
            for temperature in grid:
                results, _ = player.play(f"validation-t{temperature:g}", validation, temperature)
                tried[f"{temperature:g}"] = rates(results)
            chosen = choose({temperature: tried[f"{temperature:g}"][domain.measure] for temperature in grid})
            test = read_task_table(TEST_TASKS)[: settings.evaluate.tasks] if plan["temperatures"] else []
            temperatures = sorted({*plan["temperatures"], chosen}) if test else []
            for persona in ("", *plan["personas"]):
                for temperature in plan["persona_temperatures"] if persona else temperatures:
                    name = f"t{temperature:g}" + (f"-{persona}" if persona else "")
                    results, tokens = player.play(name, test, temperature, persona)
                    write_results(scratch / "measured" / f"{name}.parquet", results)
                    condition = {"temperature": temperature, "persona": persona, "reply_tokens": tokens}
                    measured.append({"file": f"{name}.parquet", **condition, **rates(results)})
        summary = {"validation": tried, "chosen": chosen, "measured": measured}
        write_json(scratch / "measured" / "summary.json", summary)
        publish(scratch / "measured", OUT)
        run.log_metrics({"temperature": chosen})
        run.log_metrics({f"validation/success_t{name}": means["success"] for name, means in tried.items()})
        run.log_metrics({f"test/success_{Path(row['file']).stem}": row["success"] for row in measured})
        shown = ", ".join(f"{means[domain.measure]:.1%} at {name}" for name, means in tried.items())
        run.summary = f"{domain.measure} on validation tasks {shown}; chosen {chosen:g}"


def choose(values: Mapping[float, float]) -> float:
    """Return the temperature with the greatest value; of several the lowest."""
    return min(values, key=lambda temperature: (-values[temperature], temperature))


def rates(results: Sequence[Result]) -> dict[str, float]:
    """Return means over the dialogues that were scored."""
    scored = [result for result in results if result.reward is not None]
    values = {name: [getattr(each, name) for each in scored] or [0.0] for name in ("success", "reward", "questions")}
    return {"tasks": len(scored), **{name: statistics.fmean(each) for name, each in values.items()}}


@dataclass(frozen=True)
class Player:
    """One loaded policy in an open environment; its last replies begin with `opening`. Dialogues lie in `scratch`."""

    environment: OpenEnvironment
    agent: Agent
    scratch: Path
    opening: str = ""

    def play(
        self, name: str, tasks: Sequence[Task], temperature: float, persona: str = ""
    ) -> tuple[list[Result], float]:
        """Attempt each task once; return a row for each, and the mean number of tokens of a reply."""
        settings = settings_of(self.environment.domain)
        with self.at(temperature, persona) as environment, Meter(name, len(tasks), "dialogues") as progress:
            dialogues = rollout_scored(
                [(task, 0) for task in tasks],
                replace(environment.context(self.agent), opening=self.opening),
                TrajectoryStore(self.scratch / "dialogues" / name),
                seed=settings.seed,
                policy_name=AFTER,
                batch=settings.evaluate.batch,
                shard=settings.evaluate.batch,
                progress=progress,
                lost_share=settings.evaluate.lost_share,
            )
            tokens = [len(turn.token_ids) for dialogue in dialogues for turn in dialogue.turns]
            results = results_of({AFTER: list(dialogues)}, environment.domain, settings.agent.max_turns)
            return results, statistics.fmean(tokens or [0])

    @contextmanager
    def at(self, temperature: float, persona: str) -> Iterator[OpenEnvironment]:
        """Yield the environment with the agent's temperature, and with another user, if one is named."""
        domain, user = self.environment.domain, self.environment.simulator
        values = {"agent.temperature": temperature, "simulator.persona": persona or None}
        other = domain.configured(with_values(settings_of(domain), values))
        with open_user(other, self.environment.tools) if persona else nullcontext(user) as simulator:
            yield replace(self.environment, domain=other, simulator=simulator)


if __name__ == "__main__":
    stage_main(evaluate)
