"""Stage `rank`: candidate replies at the turns of the offline dialogues, ranked by a critic, and pairs of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sweetrl.io import publish
from sweetrl.paths import CRITIC, PREFERENCES, SAMPLES, TRAJECTORIES
from sweetrl.plugins import load_domain, load_method
from sweetrl.running.stage import skip_stage, stage_main, stage_run
from sweetrl.settings import Settings

if TYPE_CHECKING:
    from sweetrl.types import RankedState


def rank(settings: Settings) -> None:
    """Read trajectories and the critic, write data/preferences/. Finished blocks of dialogues survive a kill."""
    with stage_run("rank", settings) as run:
        if why := load_method(settings).why_skipped("preferences", settings):
            skip_stage(run, PREFERENCES, why)
            return
        from sweetrl.api.learning import rank_replies
        from sweetrl.colbench.store import TrajectoryStore
        from sweetrl.learning import preferences as files

        for name, path in (("trajectories", TRAJECTORIES), ("critic", CRITIC), ("base", settings.model.base)):
            run.log_input(name, path)
        scratch = run.scratch(TRAJECTORIES, CRITIC, Path(settings.model.base))

        def block(number: int, make: Callable[[], list[RankedState]]) -> list[RankedState]:
            """Keep a finished block; one of another share is left to others."""
            part = scratch / f"block-{number * settings.rank.block:06d}.parquet"
            if not part.exists() and run.share(number):
                files.write_candidates(part, make())
            return files.read_candidates(part) if run.share.whole else []

        started = time.monotonic()
        ranking = rank_replies(load_domain(settings), CRITIC, TrajectoryStore(TRAJECTORIES), block, cache=SAMPLES)
        seconds = time.monotonic() - started
        if not run.share.whole:
            return
        ranking.save(scratch / "out")
        publish(scratch / "out", PREFERENCES)
        # Sampling and the critic share the device.
        run.log_metrics(ranking.metrics | {"gpu_seconds": ranking.metrics["devices"] * seconds})
        run.summary = (
            f"{ranking.metrics['dialogues']:.0f} dialogues, {len(ranking.states)} states, "
            f"{ranking.metrics['distinct_per_state']:.1f} distinct replies a state, {len(ranking.preferences)} pairs"
        )


def main() -> None:
    """Run the stage with the parameters in params.yaml."""
    stage_main(rank)


if __name__ == "__main__":
    main()
