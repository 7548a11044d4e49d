"""Stage `rank`: candidate replies at the turns of the offline dialogues, ranked by a critic, and pairs of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError
from sweetrl.settings import Settings
from sweetrl.stages.common import publish, stage_main, stage_run
from sweetrl.stages.meter import Meter
from sweetrl.stages.training import CRITIC, PREFERENCES, TRAJECTORIES, leave_out

if TYPE_CHECKING:
    from sweetrl.learning.critics import ReplyCritic


def rank(settings: Settings) -> None:
    """Read trajectories and the critic, write data/preferences/. Finished blocks of dialogues survive a kill."""
    with stage_run("rank", settings) as run:
        if settings.method != "sweet":
            leave_out(run, PREFERENCES, f"the method `{settings.method}` ranks no replies")
            return
        if settings.rank.kinds == "pages" and settings.suite != "frontend":
            raise UserError(
                f"params.yaml: `rank.kinds: pages` is for the suite `frontend`, and `suite` is `{settings.suite}`; "
                "take `centred`."
            )
        from sweetrl.colbench.prompts import system_prompt
        from sweetrl.colbench.store import TrajectoryStore
        from sweetrl.engines.base import Sampling
        from sweetrl.engines.chat import ChatFormat
        from sweetrl.engines.transformers import TransformersEngine
        from sweetrl.learning import preferences as files
        from sweetrl.learning import ranking
        from sweetrl.learning.adapters import context_limit, load_base

        trajectories = list(TrajectoryStore(TRAJECTORIES).read())
        for name, path in (("trajectories", TRAJECTORIES), ("critic", CRITIC), ("base", settings.model.base)):
            run.log_input(name, path)
        model, tokenizer = load_base(settings.model)
        limit = context_limit(model)
        chat, system = ChatFormat(tokenizer), system_prompt(settings.agent.prompt, settings.suite)
        critic = make_critic(settings, CRITIC, (model, tokenizer))
        chosen = ranking.choose_dialogues(trajectories, settings.rank.share, settings.seed)
        dialogues = ranking.rankable(chosen, chat, system, settings.critic.privileged, limit)
        scratch = run.scratch(TRAJECTORIES, CRITIC, Path(settings.model.base))
        sampling = Sampling(
            max_new_tokens=settings.agent.max_new_tokens,
            temperature=settings.agent.temperature,
            top_p=settings.agent.top_p,
            n=settings.rank.candidates,
        )
        engine = TransformersEngine(
            settings.model.base, None, settings.model.dtype, settings.model.device, settings.model.threads
        )
        states: list[ranking.RankedState] = []
        started = time.monotonic()
        with Meter("rank", len(dialogues), "dialogues") as meter:
            for first in range(0, len(dialogues), settings.rank.block):
                block = dialogues[first : first + settings.rank.block]
                part = scratch / f"block-{first:06d}.parquet"
                if not part.exists() and run.share(first // settings.rank.block):
                    ranked = ranking.rank_with(block, engine, critic, chat, system, sampling, settings.seed)
                    files.write_candidates(part, ranked)
                if run.share.whole:
                    states += files.read_candidates(part)
                meter(len(block))
        usage, seconds = engine.usage(), time.monotonic() - started
        engine.close()
        if not run.share.whole:
            return
        preferences = ranking.choose_preferences(states, settings.rank, settings.seed)
        anchors = ranking.find_anchors(trajectories, chat, system)
        out = scratch / "out"
        files.write_candidates(out / files.CANDIDATES, states)
        files.write_preferences(out / files.PREFERENCES, preferences)
        files.write_anchors(out / files.ANCHORS, anchors)
        publish(out, PREFERENCES)
        metrics = ranking.ranking_metrics(states, preferences) | {
            "dialogues": len(dialogues),
            "dialogues_too_long": len(chosen) - len(dialogues),
            "anchors": len(anchors),
            "generated_tokens": usage.generated_tokens,
            "seconds_sampling": usage.seconds,
            "gpu_seconds": usage.devices * seconds,  # sampling and the critic, which share the device
        }
        metrics |= ranking.judged_metrics(states, dialogues)
        run.log_metrics(metrics)
        run.summary = (
            f"{len(dialogues)} dialogues, {len(states)} states, {metrics['distinct_per_state']:.1f} distinct replies a "
            f"state, {len(preferences)} pairs"
        )


def make_critic(settings: Settings, folder: Path, loaded: tuple[Any, Any] | None = None) -> ReplyCritic:
    """Return the critic that the settings name; a trained one is loaded from `folder`.

    `loaded` is the base and its tokenizer, if they are loaded already; a trained critic's adapter is put on that model.
    """
    from sweetrl.colbench.prompts import system_prompt
    from sweetrl.engines.chat import ChatFormat
    from sweetrl.engines.transformers import TransformersEngine
    from sweetrl.learning import critics
    from sweetrl.learning.adapters import load_adapter, load_base
    from sweetrl.learning.passes import model_layout

    kind, wanted = settings.rank.critic, settings.model
    if kind == "random":
        return critics.RandomCritic(settings.seed)
    if kind == "oracle":
        return critics.OracleCritic()
    if kind == "judge":
        engine = TransformersEngine(
            settings.judge.model or wanted.base, None, wanted.dtype, wanted.device, wanted.threads
        )
        return critics.JudgeCritic(engine, engine.chat, settings.judge, settings.seed, settings.critic.privileged)
    if settings.critic.parameterization == "vision-head":
        from sweetrl.stages.vision import load_vision_critic

        return load_vision_critic(settings, folder)
    model, tokenizer = loaded or load_base(wanted)
    critic = load_adapter(model, folder)
    chat, system = ChatFormat(tokenizer), system_prompt(settings.agent.prompt, settings.suite)
    heads = settings.critic.parameterization != "log-ratio"
    layout = model_layout(
        critic, "flat" if heads else settings.rank.layout, settings.rank.tokens, tokenizer.pad_token_id or 0
    )
    if heads:
        return critics.HeadCritic(critic, chat, system, settings.critic, layout)
    conditioned = settings.rank.reference == "conditioned"
    return critics.LogRatioCritic(critic, chat, system, settings.critic, layout, conditioned)


def main() -> None:
    """Run the stage with the parameters in params.yaml."""
    stage_main(rank)


if __name__ == "__main__":
    main()
