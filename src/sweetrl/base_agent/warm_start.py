"""The warm start of a pretrained model: it imitates scripted demonstrators before it collects dialogues of its own.

A model that was trained on other things knows neither how the domain's dialogues go nor how they end. As long as it
never succeeds, attempts at a task do not differ in their reward, and no method has anything to learn from. The
demonstrators are those of the small base agent (sweetrl.base_agent.pretraining): they have a habit, which the model
learns as its most likely reply, and heed the request at a few turns; training is to make these replies likely. Those of
the first part of the steps heed it at most turns.

Only the agent's replies are learnt. It reads what an actor reads: the system prompt, the request, the user's words. A
share of the dialogues (`pretrain.informed`) has the finished answer in front, where an actor never has it and a critic
has: so the model learns to read it there.

Import this module where training happens: it loads transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.base_agent.pretraining import READING, demonstrate
from sweetrl.config.settings import AgentSettings, PretrainSettings, WarmStartSettings
from sweetrl.errors import UserError
from sweetrl.lm.data import MicroBatch, PreferenceData, encode, plan
from sweetrl.lm.rows import RowFile
from sweetrl.sweet.trainer import Metrics, PreferenceTrainer
from sweetrl.types import Task, Trajectory

if TYPE_CHECKING:
    from torch import Tensor

    from sweetrl.colbench.domain import Domain
    from sweetrl.protocols import Chat


@dataclass(frozen=True)
class Demonstrated:
    """Rows of demonstrations; the first `readers` of them are by demonstrators who heed the request at most turns.

    `informed` of them have the finished answer in front, `too_long` more do not fit into the model's context.
    """

    rows: RowFile
    readers: int
    informed: int
    too_long: int


def demonstrations(
    domain: Domain,
    chat: Chat,
    settings: WarmStartSettings,
    skill: PretrainSettings,
    agent: AgentSettings,
    difficulty: int,
    limit: int,
    tasks: Sequence[Task] = (),
) -> Demonstrated:
    """Lay out `warm_start.dialogues` demonstrations of at most `limit` tokens, each about a task of its own.

    They are about `tasks`, or the domain's own of this `difficulty`; where there are fewer, some are shown again.
    `skill` is that of the demonstrators; `agent` says for how many turns they talk. UserError where the domain has no
    demonstrator, no task, or none that fits.
    """
    reading = round(skill.reading * settings.dialogues)
    rows, readers, informed, too_long = RowFile(), 0, 0, 0
    for index, task in enumerate(_tasks(domain, settings, difficulty, tasks)):
        reads = index < reading
        demonstrator = skill.model_copy(update=READING) if reads else skill
        seed = settings.seed * 1_000_003 + index
        shown = demonstrate(task, domain, demonstrator, agent.max_turns, agent.prompt, seed)
        row = encode(Trajectory(task, 0, shown.messages), chat, shown.system)
        if row.longest > limit:
            too_long += 1
            continue
        rows.append(row)
        readers += reads
        informed += shown.informed
    if not len(rows):
        raise UserError(
            f"{domain.spec}: none of {settings.dialogues} demonstrations fits into the model's context of {limit} "
            "tokens; take a model with a longer one."
        )
    return Demonstrated(rows, readers, informed, too_long)


def _tasks(domain: Domain, settings: WarmStartSettings, difficulty: int, own: Sequence[Task]) -> Iterator[Task]:
    """A task for each demonstration; where the domain has fewer tasks, some come again."""
    left = settings.dialogues
    while left:
        before = left
        for task in islice(own or domain.pretraining_tasks(settings.dialogues, settings.seed, difficulty), left):
            left -= 1
            yield task
        if left == before:
            raise UserError(f"{domain.spec}: it yields no task to demonstrate on; see its `pretraining_tasks`.")


def steps_of(data: Demonstrated, settings: WarmStartSettings) -> list[MicroBatch]:
    """Lay out the steps: `epochs` passes over the readers' dialogues, then as many over the others'."""
    count, steps = len(data.rows), list[MicroBatch]()
    for part in (range(data.readers), range(data.readers, count)):
        if part:
            own = PreferenceData(data.rows, [(index, index) for index in part])
            steps += plan(own, settings.epochs, settings.batch_size, settings.seed + len(steps))
    return steps


class WarmStartTrainer(PreferenceTrainer):
    """The likelihood of the agent's replies in demonstrations, each a pair with itself; nothing is compared."""

    compares = False

    def pair_loss(self, logprobs: Tensor, batch: dict[str, Any]) -> tuple[Tensor, Metrics]:
        """-(1/R) sum_r (1/L_r) sum_l log pi_theta(a^l): over all replies of a dialogue, then over R dialogues."""
        nll = self.nll(logprobs, batch, "chosen")
        metrics = {"loss/nll": nll.detach(), "reply_length": len(logprobs) / len(batch["rows"]["turn_row"])}
        return batch.get("share", (1.0,))[0] * nll, metrics


def merge_adapter(base: Path | str, adapter: Path, out: Path, dtype: str = "") -> int:
    """Write the model `base` with trained weights merged into it to `out`; return its number of parameters.

    `adapter` is the folder of what was trained: an adapter, or all weights.

    Computed in float32, kept in `dtype` (by default that of the base's own files), in safetensors, with tokenizer and
    chat template: a folder like any other.
    """
    import torch

    from sweetrl.engines.transformers import load_model
    from sweetrl.models.load import load_tokenizer, make_saveable, stored_dtype

    model = load_model(base, adapter, "float32", "cpu")
    make_saveable(model.generation_config)
    model.to(getattr(torch, dtype or stored_dtype(base))).save_pretrained(out)
    load_tokenizer(base).save_pretrained(out)
    return sum(parameter.numel() for parameter in model.parameters())
