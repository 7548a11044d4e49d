"""Stage `warm-start`: a pretrained model learns from scripted demonstrations how the domain's dialogues go.

`warm_start.base` with what was trained in its weights becomes `model.base`: a folder that transformers,
peft and vLLM load like any other, with the licence of the model that it is made from. `make warm-start` runs it by
hand; the profiles of `make reproduce` that take a pretrained model have it in their pipeline.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from sweetrl.colbench.domain import Domain
from sweetrl.colbench.find import load_domain
from sweetrl.config.settings import Settings
from sweetrl.console.progress import StepProgress
from sweetrl.engines.chat import ChatFormat
from sweetrl.errors import UserError
from sweetrl.file_hashes import dvc_hash
from sweetrl.io import publish, read_json, write_json, write_text
from sweetrl.lm.adapters import load_base, trainable
from sweetrl.lm.data import PreferenceData
from sweetrl.models.licences import base_licence, copy_licence
from sweetrl.models.load import context_of, load_tokenizer
from sweetrl.stages.run import stage_main, stage_run
from sweetrl.stages.tasks import split_tasks
from sweetrl.sweet.training import report_to, run_trainer

RECIPE = "recipe.json"
ORIGIN = "origin.json"
BASE_CARD = "BASE.md"


def warm_start(settings: Settings) -> None:
    """Train on demonstrations, write `warm_start.base` as it is then to `model.base`.

    A killed run goes on from its last checkpoint and ends with the same bytes. UserError where a folder that this stage
    has not made would be written over.
    """
    how, out = settings.warm_start, Path(settings.model.base)
    _check_places(how.base, out)
    with stage_run("warm-start", settings) as run:
        from sweetrl.base_agent.warm_start import WarmStartTrainer, demonstrations, merge_adapter, steps_of

        run.log_input("base", how.base)
        domain, context = load_domain(settings), context_of(how.base)
        chat = ChatFormat(load_tokenizer(how.base), **settings.model.chat_options)
        # Of tasks from files the last ones: dialogues are collected about the first. Without facts about them nobody
        # can demonstrate them, and the domain's own are shown.
        from_files = settings.tasks.source == "files" and type(domain).facts is not Domain.facts
        tasks = split_tasks(domain)["train"][::-1] if from_files else ()
        skill, difficulty = settings.pretrain, settings.tasks.difficulty
        data = demonstrations(domain, chat, how, skill, settings.agent, difficulty, context, tasks)
        scratch = run.scratch()
        model, tokenizer = load_base(settings.model.model_copy(update={"base": how.base}))
        progress = StepProgress(run.stage, run.log_metrics)
        trainer = WarmStartTrainer(
            trainable(model, settings.model, how.lora, how.seed),
            PreferenceData(data.rows, [(index, index) for index in range(len(data.rows))]),
            how,
            scratch,
            how.seed,
            tokenizer.pad_token_id or 0,
            progress,
            steps=steps_of(data, how),
        )
        report_to(trainer, settings.tracking, run.stage)
        trained = run_trainer(trainer, scratch, how.base, progress)
        steps, count = trainer.steps, len(data.rows)
        del model, trainer  # the merging loads the base anew
        finished = scratch / "model"
        shutil.rmtree(finished, ignore_errors=True)
        parameters = merge_adapter(how.base, trained.adapter, finished)
        loss = trained.metrics["final/loss"]
        facts = {"parameters": parameters, "demonstrations": count, "steps": steps, "loss": round(loss, 4)}
        _write_origin(finished, Path(how.base), settings, facts)
        publish(finished, out, shared=True)
        own = {"readers": data.readers, "informed": data.informed, "too_long": data.too_long}
        run.log_metrics({"demonstrations": count, **own, **trained.metrics})
        run.summary = f"{steps} steps on {count} demonstrations, loss {loss:.3f}, model in {out}"


def _check_places(base: str, out: Path) -> None:
    if not base:
        raise UserError("params.yaml: `warm_start.base` is empty; name a pretrained model, and a new `model.base`.")
    if out.resolve() == Path(base).resolve():
        raise UserError(f"params.yaml: `warm_start.base` and `model.base` are both {base}; name a folder of its own.")
    recipe = out / RECIPE
    if out.exists() and not (recipe.is_file() and "warm_start" in (read_json(recipe).get("settings") or {})):
        raise UserError(f"{out}: `model.base` is not made by `warm-start`; name a new folder there.")


def _write_origin(folder: Path, base: Path, settings: Settings, facts: dict[str, Any]) -> None:
    """Say where the weights come from and under which licence, with the texts that the base's folder has of it."""
    licence, texts, card = base_licence(base), copy_licence(base, folder), base / "README.md"
    origin = {
        "base": str(base),
        "hash": dvc_hash(base) if base.is_dir() else None,
        "license": licence or None,
        "origin": read_json(base / ORIGIN) if (base / ORIGIN).is_file() else None,
    }
    write_json(folder / ORIGIN, origin)
    if card.is_file():
        shutil.copyfile(card, folder / BASE_CARD)
    sections = {"warm_start": settings.warm_start, "pretrain": settings.pretrain}
    recipe = {
        "settings": {name: section.model_dump(mode="json") for name, section in sections.items()},
        "suite": settings.suite,
        "agent": settings.agent.model_dump(mode="json", include={"prompt", "max_turns"}),
        "dtype": settings.model.dtype,
        **facts,
    }
    write_json(folder / RECIPE, recipe)
    how = "LoRA, merged" if settings.model.train == "lora" else "all weights"
    terms = licence if licence and " " not in licence else "other" if licence else "unknown"
    own_card = f" Its own card is {BASE_CARD}." if card.is_file() else ""
    stated = f"The base's licence is {licence}" if licence else "The base's folder states no licence"
    where = f"; its text is in {', '.join(texts)}." if texts else "."
    write_text(
        folder / "README.md",
        f"---\nlicense: {terms}\nlibrary_name: transformers\n---\n# A warm start\n\n"
        f"The weights of `{base}`, changed: trained on {facts['demonstrations']:,} scripted dialogues of the suite "
        f"`{settings.suite}` by sweetrl's stage `warm-start` ({facts['steps']:,} steps, {how}). {RECIPE} has "
        f"the settings, {ORIGIN} the base's content hash and where it comes from.{own_card}\n\n{stated}{where}\n\n"
        "The demonstrators have faults on purpose: this is where training begins, not an agent to use.\n",
    )


if __name__ == "__main__":
    stage_main(warm_start)
