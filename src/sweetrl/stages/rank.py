"""Stage `rank`: candidate replies at the turns of the offline dialogues, ranked by the critic, and pairs of them."""

from __future__ import annotations

from pathlib import Path

from sweetrl.settings import Settings
from sweetrl.stages.common import publish, stage_main, stage_run
from sweetrl.stages.meter import Meter
from sweetrl.stages.training import CRITIC, PREFERENCES, TRAJECTORIES


def rank(settings: Settings) -> None:
    """Read trajectories and the critic, write data/preferences/. Finished blocks of dialogues survive a kill."""
    with stage_run("rank", settings) as run:
        from sweetrl.colbench.prompts import system_prompt
        from sweetrl.colbench.store import TrajectoryStore
        from sweetrl.engines.base import Sampling
        from sweetrl.engines.chat import ChatFormat
        from sweetrl.engines.transformers import TransformersEngine
        from sweetrl.learning import preferences as files
        from sweetrl.learning import ranking
        from sweetrl.learning.adapters import context_limit, load_adapter, load_base
        from sweetrl.learning.passes import model_layout

        trajectories = list(TrajectoryStore(TRAJECTORIES).read())
        for name, path in (("trajectories", TRAJECTORIES), ("critic", CRITIC), ("base", settings.model.base)):
            run.log_input(name, path)
        model, tokenizer = load_base(settings.model)
        critic = load_adapter(model, CRITIC)
        layout = model_layout(critic, settings.rank.layout, settings.rank.tokens, tokenizer.pad_token_id or 0)
        chat, system = ChatFormat(tokenizer), system_prompt(settings.agent.prompt, settings.suite)
        chosen = ranking.choose_dialogues(trajectories, settings.rank.share, settings.seed)
        dialogues = ranking.rankable(chosen, chat, system, settings.critic.privileged, context_limit(model))
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
        with Meter("rank", len(dialogues), "dialogues") as meter:
            for first in range(0, len(dialogues), settings.rank.block):
                block = dialogues[first : first + settings.rank.block]
                part = scratch / f"block-{first:06d}.parquet"
                if not part.exists():
                    ranked = ranking.rank_dialogues(
                        block,
                        engine,
                        critic,
                        chat,
                        system,
                        sampling,
                        settings.seed,
                        privileged=settings.critic.privileged,
                        conditioned_reference=settings.rank.reference == "conditioned",
                        mean=settings.critic.normalization != "none",
                        layout=layout,
                    )
                    files.write_candidates(part, ranked)
                states += files.read_candidates(part)
                meter(len(block))
        usage = engine.usage()
        engine.close()
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
        }
        metrics |= ranking.judged_metrics(states, dialogues)
        run.log_metrics(metrics)
        run.summary = (
            f"{len(dialogues)} dialogues, {len(states)} states, {metrics['distinct_per_state']:.1f} distinct replies a "
            f"state, {len(preferences)} pairs"
        )


def main() -> None:
    """Run the stage with the parameters in params.yaml."""
    stage_main(rank)


if __name__ == "__main__":
    main()
