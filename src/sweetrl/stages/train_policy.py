"""Stage `train-policy`: preference training of the actor on ranked replies; it never sees c (Eq. 4)."""

from __future__ import annotations

from pathlib import Path

from sweetrl.settings import Settings
from sweetrl.stages.common import stage_main, stage_run
from sweetrl.stages.training import POLICY, PREFERENCES, REFERENCES, Progress, train_and_publish


def train_policy(settings: Settings) -> None:
    """Read preferences (and anchors), train an adapter, write models/policy/."""
    with stage_run("train-policy", settings) as run:
        from sweetrl.learning import preferences as files
        from sweetrl.learning.adapters import attach_adapter, context_limit, load_base
        from sweetrl.learning.batches import within
        from sweetrl.learning.trainers import PolicyTrainer

        preferences = files.read_preferences(PREFERENCES / files.PREFERENCES)
        anchors = files.read_anchors(PREFERENCES / files.ANCHORS) if settings.policy.anchors else []
        run.log_input("preferences", PREFERENCES)
        run.log_input("base", settings.model.base)
        model, tokenizer = load_base(settings.model)
        rows = files.preference_rows(preferences, anchors, settings.policy)
        data, too_long = within(rows, context_limit(model))
        run.log_metrics({"pairs": len(data.pairs), "anchors": len(data.anchors), "pairs_too_long": too_long})
        scratch = run.scratch(PREFERENCES, Path(settings.model.base))
        progress = Progress(run)
        trainer = PolicyTrainer(
            attach_adapter(model, settings.policy.lora, settings.seed),
            data,
            settings.policy,
            scratch,
            settings.seed,
            tokenizer.pad_token_id or 0,
            progress,
            settings.policy.anchors,
            cache=REFERENCES,
        )
        train_and_publish(run, trainer, progress, scratch, POLICY)


def main() -> None:
    """Run the stage with the parameters in params.yaml."""
    stage_main(train_policy)


if __name__ == "__main__":
    main()
