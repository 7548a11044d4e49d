"""The small base agent from scratch: a Llama of about a million parameters, pre-trained on imperfect dialogues.

The hard part is to teach so small a model to copy what the user said into the program. Three things do it: attention
that starts as a copying circuit (see build_model), values that are one token everywhere and follow their names both in
the user's words and in the program, and a heavier loss weight on values.

Every dialogue has a demonstrator of its own (Domain.demonstrate), with faults that reinforcement learning is to remove.
Those of programs have a habit, which the model learns as its most likely reply, and heed the request at a few turns:
training is to make these rare replies likely. In the first steps (PretrainSettings.reading) they heed it at most turns,
because so small a model does not learn to read from a few. A share of the dialogues shows the finished program first,
and there the user's words carry weight: so the model learns to read a program it is shown, as any large model can.

Where each reply holds the whole answer again (pages), what changes from one to the next stands for values.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sweetrl.base_agent.tokenizer import ASSISTANT, BEGIN, END, SYSTEM, USER, build_piece_tokenizer, build_tokenizer
from sweetrl.colbench.domain import QUESTION, Domain
from sweetrl.config.settings import PretrainSettings
from sweetrl.types import Message, Task

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

# The start of the attention, see build_model.
SHARED = 0.6  # share of the common direction in a token's embedding of length 1
LOOK_BACK = 1.5  # tokens back to where the first layer looks
FAST_PAIRS = 4  # rotary pairs that tell so small distances apart
LOCALITY = 2.5  # how sharply: the logit of a pair at the best distance
SLOW = 0.05  # radians a token below which a rotary pair matches at any distance
LIKENESS = 1.5  # how sharply the other layers attend to like
PASSED_ON = 0.15  # gain of what is attended to
NOISE = 0.02

# Weights in the loss; what the agent writes has 1.
VALUE_WEIGHT = 3.0  # of values that must be copied from the user's words
USER_WEIGHT = 0.02  # of the user's words
INFORMED_WEIGHT = 0.5  # of the user's words in a dialogue that shows the finished answer beforehand

READING = {"heed_least": 0.5, "heed_most": 1.0}  # demonstrators in the first steps, see PretrainSettings.reading


@dataclass(frozen=True)
class Shown:
    """One scripted dialogue as the agent sees it: `system` has the finished answer in front if it is `informed`."""

    system: str
    messages: tuple[Message, ...]
    informed: bool


def demonstrate(
    task: Task, domain: Domain, settings: PretrainSettings, max_turns: int, prompt: str, seed: int
) -> Shown:
    """Play one dialogue of an imperfect demonstrator with the scripted user; a function of its arguments."""
    played = domain.demonstrate(task, settings, max_turns, seed)
    system = domain.system_prompt(prompt)
    shown = domain.privileged_prompt(task) + system if played.informed else system
    return Shown(shown, played.messages, played.informed)


class Encoder:
    """Dialogues to token ids and loss weights; pieces between special tokens are encoded apart, like the template."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, domain: Domain) -> None:
        self.tokenizer, self.domain = tokenizer, domain
        self.special: dict[str, Any] = {
            name: tokenizer.convert_tokens_to_ids(name) for name in (BEGIN, SYSTEM, USER, ASSISTANT, END)
        }
        recipe = domain.pretraining
        values = [*(f" {n}" for n in range(recipe.numbers) if n not in recipe.constants), *recipe.words]
        self.values = {tokenizer.encode(value, add_special_tokens=False)[0] for value in values}
        self._encode = lru_cache(maxsize=100_000)(lambda text: tuple(tokenizer.encode(text, add_special_tokens=False)))

    def encode(self, dialogue: Shown) -> tuple[list[int], list[float]]:
        """Token ids and the loss weight of each token (0 for the system message and the request)."""
        ids, weights = [self.special[BEGIN]], [0.0]

        def add(header: str, text: str, weight: float, value_weight: float) -> None:
            pieces = self._encode(text)
            ids.extend((self.special[header], *pieces, self.special[END]))
            weights.append(0.0)
            weights.extend(value_weight if piece in self.values else weight for piece in pieces)
            weights.append(weight)

        add(SYSTEM, dialogue.system, 0.0, 0.0)
        answer: tuple[int, ...] = ()
        revises = self.domain.pretraining.revises
        for i, message in enumerate(dialogue.messages):
            if message.role == "assistant":
                question = self.domain.reply_type(message.content) == QUESTION
                add(ASSISTANT, message.content, 1.0, 1.0 if question or revises else VALUE_WEIGHT)
                if revises and not question:
                    before, answer = answer, self._encode(message.content)
                    for place in changed(before, answer):  # the last token is the end of the turn
                        weights[place - len(answer) - 1] = VALUE_WEIGHT
            elif i and dialogue.informed:
                add(USER, message.content, INFORMED_WEIGHT, INFORMED_WEIGHT * VALUE_WEIGHT)
            else:
                add(USER, message.content, USER_WEIGHT, USER_WEIGHT)
        return ids, weights


def changed(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """The places of `after` that are not as in `before`; none where there is nothing before."""
    if not before:
        return []
    codes = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return [place for code, _, _, start, end in codes if code != "equal" for place in range(start, end)]


class Demonstrations:
    """Batches of demonstrations of similar length; item i is a function of (tasks, settings, i), best read in order.

    GROUP batches are drawn at once, sorted by length and dealt out in a shuffled order: a third less padding.
    """

    GROUP = 8

    def __init__(
        self, tasks: list[Task], batches: int, encoder: Encoder, settings: PretrainSettings, max_turns: int, prompt: str
    ) -> None:
        self.tasks, self.batches, self.encoder = tasks, batches, encoder
        self.settings, self.max_turns, self.prompt = settings, max_turns, prompt
        self._group = lru_cache(maxsize=1)(self._draw_group)

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, index: int) -> list[dict[str, Any]]:
        group, place = divmod(index, self.GROUP)
        return self._group(group)[place]

    def item(self, index: int) -> dict[str, Any]:
        """One demonstration: its token ids and loss weights."""
        task, settings = self.tasks[index % len(self.tasks)], self.settings
        seed = settings.seed * 1_000_003 + index
        if index < settings.reading * self.batches * settings.batch_size:
            settings = settings.model_copy(update=READING)
        dialogue = demonstrate(task, self.encoder.domain, settings, self.max_turns, self.prompt, seed)
        ids, weights = self.encoder.encode(dialogue)
        return {"input_ids": ids, "weights": weights}

    def _draw_group(self, group: int) -> list[list[dict[str, Any]]]:
        size = self.settings.batch_size
        many = self.GROUP * size
        items = sorted((self.item(group * many + i) for i in range(many)), key=lambda item: len(item["input_ids"]))
        batches = [items[i * size : (i + 1) * size] for i in range(self.GROUP)]
        random.Random(f"{self.settings.seed}-{group}").shuffle(batches)
        return batches


def corpus(
    tasks: Iterable[Task], domain: Domain, settings: PretrainSettings, max_turns: int, prompt: str
) -> Iterator[str]:
    """The texts that the tokenizer is trained on."""
    for index, task in enumerate(tasks):
        dialogue = demonstrate(task, domain, settings, max_turns, prompt, settings.seed * 7_919 + index)
        yield dialogue.system
        yield task.ground_truth
        yield from (message.content for message in dialogue.messages)


def make_tokenizer(
    tasks: list[Task], domain: Domain, settings: PretrainSettings, max_turns: int, prompt: str
) -> PreTrainedTokenizerFast:
    """Train the base agent's tokenizer on demonstrations; with `Pretraining.pieces` tokens are whole pieces of them."""
    texts, recipe = corpus(tasks, domain, settings, max_turns, prompt), domain.pretraining
    if recipe.pieces:
        return build_piece_tokenizer(list(texts), settings.vocabulary, recipe.words)
    return build_tokenizer(texts, settings.vocabulary, recipe.numbers, recipe.words)


def build_model(
    vocabulary: int, settings: PretrainSettings, tokenizer: PreTrainedTokenizerFast, positions: int = 2048
) -> LlamaForCausalLM:
    """A fresh Llama whose attention starts as a copying circuit (seeded by settings.seed); a context of `positions`.

    All embeddings share one direction u. The first layer attends by distance alone, through u, to the two tokens
    before: every token then knows the words before it. The other layers attend to like by their slow rotary pairs,
    which match at any distance, and pass on what they attend to: after "rate =" the token whose own last words hold
    "rate". Training starts from there instead of having to find it, and refines everything else.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(settings.seed)
    width, heads = settings.width, settings.heads
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            intermediate_size=3 * width,
            num_hidden_layers=settings.layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            max_position_embeddings=positions,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    size = width // heads
    speeds = 10_000.0 ** (-torch.arange(0, size, 2) / size)  # radians a token of the rotary pairs (i, i + size / 2)
    with torch.no_grad():
        shared = torch.nn.functional.normalize(torch.randn(width), dim=0)
        rest = torch.eye(width) - torch.outer(shared, shared)
        own = torch.nn.functional.normalize(torch.randn(vocabulary, width) @ rest, dim=1)
        model.model.embed_tokens.weight.copy_((1 - SHARED**2) ** 0.5 * own + SHARED * shared)
        for number, layer in enumerate(model.model.layers):
            attention = layer.self_attn
            value = torch.nn.init.orthogonal_(torch.empty(width, width))
            attention.v_proj.weight.copy_(value @ rest)
            attention.o_proj.weight.copy_(PASSED_ON * value.T)
            if number == 0:
                fast = torch.arange(len(speeds)) < FAST_PAIRS
                strength = (LOCALITY * size**0.5) ** 0.5 / (SHARED * width**0.5)
                query = strength * torch.cat([fast.float(), torch.zeros(len(speeds))])
                angle = LOOK_BACK * speeds
                key = strength * torch.cat([fast * angle.cos(), fast * angle.sin()])
                for projection, vector in ((attention.q_proj, query), (attention.k_proj, key)):
                    content = NOISE * torch.randn(width, width) @ rest
                    projection.weight.copy_(torch.outer(vector, shared).repeat(heads, 1) + content)
            else:
                slow = (speeds < SLOW).repeat(2 * heads)[:, None]
                like = (LIKENESS * width / slow.sum()) ** 0.5 * torch.nn.init.orthogonal_(torch.empty(width, width))
                weight = torch.where(slow, like @ rest, NOISE * torch.randn(width, width))
                attention.q_proj.weight.copy_(weight)
                attention.k_proj.weight.copy_(weight)
    return model


def weighted_loss(model: Any, input_ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Mean over weighted tokens of -log p; `input_ids` and `weights` are (batch, length), padding has weight 0."""
    import torch

    hidden = model.model(input_ids=input_ids).last_hidden_state[:, :-1]
    used = weights[:, 1:] > 0
    logits = model.lm_head(hidden[used])
    losses = torch.nn.functional.cross_entropy(logits, input_ids[:, 1:][used], reduction="none")
    weight = weights[:, 1:][used]
    return (losses * weight).sum() / weight.sum()


def copying(model: Any, items: list[dict[str, Any]], batch: int = 32) -> tuple[float, float]:
    """Accuracy of greedy next-token prediction in programs of held-out demonstrations: (values, all other tokens)."""
    import torch

    totals = torch.zeros(2)
    right = torch.zeros(2)
    with torch.no_grad():
        for start in range(0, len(items), batch):
            input_ids, weights = collate(items[start : start + batch], padding=0)
            hidden = model.model(input_ids=input_ids).last_hidden_state[:, :-1]
            for kind, weight in enumerate((VALUE_WEIGHT, 1.0)):
                chosen = weights[:, 1:] == weight
                guess = model.lm_head(hidden[chosen]).argmax(-1)
                totals[kind] += chosen.sum()
                right[kind] += (guess == input_ids[:, 1:][chosen]).sum()
    values, others = (right / totals.clamp(min=1)).tolist()
    return values, others


def collate(items: list[dict[str, Any]], padding: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-pad to (batch, length): token ids and loss weights."""
    import torch

    length = max(len(item["input_ids"]) for item in items)
    input_ids = torch.full((len(items), length), padding)
    weights = torch.zeros(len(items), length)
    for row, item in enumerate(items):
        n = len(item["input_ids"])
        input_ids[row, :n] = torch.tensor(item["input_ids"])
        weights[row, :n] = torch.tensor(item["weights"])
    return input_ids, weights
