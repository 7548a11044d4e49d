"""`sweetrl users check`: how good the users are whom agents are trained and measured with."""

from __future__ import annotations

from itertools import product
from typing import Annotated

from typer import Option

from sweetrl.cli import options as opt
from sweetrl.cli.files import settings_here
from sweetrl.console.printing import print_json, print_table
from sweetrl.errors import UserError
from sweetrl.paths import VALIDATION_TASKS


def check(
    tasks: opt.Tasks = VALIDATION_TASKS,
    limit: Annotated[int, Option(help="How many tasks, from the first.", min=1)] = 100,
    user: Annotated[list[str] | None, Option(help="Kind of user (scripted, described, llm); any number.")] = None,
    persona: Annotated[list[str] | None, Option(help="Their manner (simulator.persona); any number.")] = None,
    user_url: opt.UserUrl = None,
    user_model: opt.UserModel = None,
    recording: opt.RecordingFile = None,
    seed: opt.Seed = None,
    suite: opt.Suite = None,
    changes: opt.Set = None,
    as_json: opt.Json = False,
) -> None:
    """Ask users questions whose answers are known: how many they answer rightly, what they make up and give away."""
    from sweetrl.colbench.find import load_domain
    from sweetrl.evaluation.users import check_user
    from sweetrl.rollout.users import open_user, user_name
    from sweetrl.stages.parameters import with_values
    from sweetrl.stages.standalone import read_any_tasks, with_choices

    settings = settings_here(suite, changes)
    if not tasks.exists():
        raise UserError(f"{tasks}: there is no such file; name another one, or let `sweetrl tasks` write some.")
    seen = []
    for kind, manner in product(user or [settings.simulator.kind], persona or [settings.simulator.persona]):
        chosen = with_values(settings, {"simulator.persona": manner})
        places = {"user_urls": user_url, "user_model": user_model, "recording": recording, "seed": seed}
        chosen = with_choices(chosen, user=kind, **places)  # type: ignore[arg-type]
        domain = load_domain(chosen)
        listed = read_any_tasks(tasks, domain)[:limit]
        with domain.open() as tools, open_user(domain, tools) as simulator:
            workers = chosen.simulator.server.concurrency
            seen.append(check_user(domain, simulator, user_name(domain), listed, chosen.seed, workers))
    if as_json:
        print_json([answers.as_dict() for answers in seen])
        return
    names = [what for what, _ in seen[0].rates()]
    rows = []
    for answers in seen:
        rates = [f"{rate.value:.1%} [{rate.low:.1%}, {rate.high:.1%}]" for _, rate in answers.rates()]
        rows.append((answers.user, str(answers.counts["asked"]), *rates))
    print_table(f"users, {seen[0].tasks} tasks", ("user", "questions", *names), rows)
