"""Stage `rank`: candidate replies at the turns of the offline dialogues, ranked by a critic, and pairs of them."""

from __future__ import annotations

from sweetrl.api.learning import rank_replies
from sweetrl.colbench.find import load_domain
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import Settings
from sweetrl.io import publish
from sweetrl.methods.base import find_method
from sweetrl.paths import CRITIC, PREFERENCES, SAMPLES, TRAJECTORIES
from sweetrl.stages.run import stage_main, stage_run
from sweetrl.sweet.preferences import Blocks


def rank(settings: Settings) -> None:
    """Read trajectories and the critic, write data/preferences/; finished blocks of dialogues survive a kill."""
    with stage_run("rank", settings) as run:
        if why := find_method(settings.method).why_skipped("preferences", settings.rank):
            run.skip(PREFERENCES, why)
            return

        for name, path in (("trajectories", TRAJECTORIES), ("critic", CRITIC), ("base", settings.model.base)):
            run.log_input(name, path)
        scratch = run.scratch()
        run.spread()
        blocks = Blocks(scratch, scratch / f"server{run.share.suffix}.log", run.mine)
        out = scratch / "out"
        domain, dialogues = load_domain(settings), TrajectoryStore(TRAJECTORIES)
        ranking = rank_replies(domain, CRITIC, dialogues, blocks, cache=SAMPLES, out=out)
        if not run.share.is_all:
            return
        publish(out, PREFERENCES)
        run.log_metrics(ranking.metrics)
        run.summary = (
            f"{ranking.metrics['dialogues']:.0f} dialogues, {len(ranking.states)} states, "
            f"{ranking.metrics['distinct_per_state']:.1f} distinct replies a state, {len(ranking.preferences)} pairs"
        )


if __name__ == "__main__":
    stage_main(rank)
