"""The engine against plain forward passes and model.generate: same log-probs, same greedy tokens, batch or no batch."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from sweetrl.engines import decoding
from sweetrl.engines.decoding import uniforms
from sweetrl.engines.transformers import TransformersEngine
from sweetrl.models.load import load_weights
from sweetrl.types import Completion, Prompt, Sampling

SAMPLING = Sampling(max_new_tokens=24)


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> TransformersEngine:
    return loud(TransformersEngine(tiny_model, device="cpu", threads=1, rows=8))


def loud(engine: TransformersEngine) -> TransformersEngine:
    """Make the random model's choices uneven, so that equal tokens mean something."""
    with torch.no_grad():
        for parameter in engine.model.parameters():
            parameter.mul_(8.0)
    return engine


def make_prompts(engine: TransformersEngine, count: int, seed: int = 0) -> list[Prompt]:
    chance = random.Random(seed)
    vocabulary = engine.model.config.vocab_size
    return [
        Prompt(tuple(chance.randrange(6, vocabulary) for _ in range(chance.randint(1, 40))), seed=index)
        for index in range(count)
    ]


def plain_logprobs(model: Any, prompt: Prompt, completion: Completion) -> torch.Tensor:
    ids = torch.tensor([prompt.token_ids + completion.token_ids])
    with torch.inference_mode():
        logprobs = model(ids).logits[0].log_softmax(-1)
    start = len(prompt.token_ids)
    return logprobs[torch.arange(start - 1, ids.shape[1] - 1), ids[0, start:]]


def check_logprobs(model: Any, prompts: list[Prompt], completions: list[list[Completion]]) -> None:
    for prompt, group in zip(prompts, completions, strict=True):
        for completion in group:
            assert len(completion.logprobs) == len(completion.token_ids) > 0
            expected = plain_logprobs(model, prompt, completion)
            assert torch.allclose(torch.tensor(completion.logprobs), expected, atol=1e-3)


def tokens_of(completions: list[list[Completion]]) -> list[list[tuple[int, ...]]]:
    return [[completion.token_ids for completion in group] for group in completions]


@pytest.mark.parametrize(
    "sampling",
    [SAMPLING, Sampling(24, n=3, top_p=0.9), Sampling(12, temperature=0.7, n=2), Sampling(24, temperature=0.0)],
)
def test_a_completion_has_the_models_logprobs_and_does_not_depend_on_its_batch(
    engine: TransformersEngine, sampling: Sampling
) -> None:
    prompts = make_prompts(engine, 20)
    together = engine.sample(prompts, sampling)
    check_logprobs(engine.model, prompts, together)
    assert together == engine.sample(prompts, sampling)  # to the last bit
    assert tokens_of(together) == [tokens_of(engine.sample([prompt], sampling))[0] for prompt in prompts]
    assert tokens_of(together)[::-1] == tokens_of(engine.sample(prompts[::-1], sampling))


def test_greedy_tokens_equal_generate(engine: TransformersEngine) -> None:
    prompts = make_prompts(engine, 12)
    for prompt, (completion,) in zip(prompts, engine.sample(prompts, Sampling(24, temperature=0.0)), strict=True):
        ids = torch.tensor([prompt.token_ids])
        generated = engine.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=24,
            eos_token_id=list(engine.stop_ids),
        )
        assert completion.token_ids == tuple(generated[0, ids.shape[1] :].tolist())


def test_seeds_and_samples_differ(engine: TransformersEngine) -> None:
    ids = make_prompts(engine, 1)[0].token_ids
    drawn = tokens_of(engine.sample([Prompt(ids, 1), Prompt(ids, 2), Prompt(ids, 1)], Sampling(24, n=2)))
    assert drawn[0] == drawn[2]
    assert len({*drawn[0], *drawn[1]}) == 4


def test_replies_end_at_a_stop_token_or_the_limit(engine: TransformersEngine) -> None:
    prompts = make_prompts(engine, 60)
    ends = set()
    for (completion,) in engine.sample(prompts, Sampling(60)):
        ends.add(completion.finish_reason)
        *before, last = completion.token_ids
        assert not set(before) & set(engine.stop_ids)
        assert (last in engine.stop_ids) == (completion.finish_reason == "stop")
        spoken = before if completion.finish_reason == "stop" else completion.token_ids
        assert completion.text == engine.tokenizer.decode(spoken, skip_special_tokens=True)
        assert completion.finish_reason == "stop" or len(completion.token_ids) == 60
    assert ends == {"stop", "length"}


def test_a_reply_ends_at_further_stop_ids(engine: TransformersEngine) -> None:
    prompts = make_prompts(engine, 6)
    uncut = engine.sample(prompts, Sampling(40))
    ends = (uncut[0][0].token_ids[5],)
    for (full,), (cut,) in zip(uncut, engine.sample(prompts, Sampling(40, stop_ids=ends)), strict=True):
        at = full.token_ids.index(ends[0]) + 1 if ends[0] in full.token_ids else len(full.token_ids)
        assert cut.token_ids == full.token_ids[:at]
        assert cut.finish_reason == ("stop" if cut.token_ids[-1] == ends[0] else full.finish_reason)
    assert len(engine.sample(prompts, Sampling(40, stop_ids=ends))[0][0].token_ids) <= 6


def test_a_session_reuses_earlier_turns_and_changes_nothing(engine: TransformersEngine) -> None:
    chance = random.Random(3)
    session = engine.session()
    prompts = make_prompts(engine, 14)
    prompts += [Prompt(prompts[0].token_ids, 99)]  # two attempts at one task begin alike
    for turn in range(4):
        before = engine.usage()
        completions = session.sample(prompts, SAMPLING)
        after = engine.usage()
        cached = after.cached_tokens - before.cached_tokens
        prompt_tokens = after.prompt_tokens - before.prompt_tokens
        assert prompt_tokens == sum(len(prompt.token_ids) for prompt in prompts)
        assert cached > (0.6 * prompt_tokens if turn else 0)
        check_logprobs(engine.model, prompts, completions)
        assert tokens_of(completions) == tokens_of(engine.sample(prompts, SAMPLING))
        prompts = [
            Prompt((*prompt.token_ids, *completion.token_ids, *make_prompts(engine, 1, turn)[0].token_ids), turn)
            for prompt, (completion,) in zip(prompts, completions, strict=True)
            if chance.random() < 0.8
        ]


def test_a_session_with_many_samples_keeps_the_prompts(engine: TransformersEngine) -> None:
    session = engine.session()
    prompts = make_prompts(engine, 6)
    session.sample(prompts, Sampling(10, n=4))
    longer = [Prompt((*prompt.token_ids, 7, 8, 9), 5) for prompt in prompts]
    before = engine.usage().cached_tokens
    completions = session.sample(longer, Sampling(10, n=4))
    assert engine.usage().cached_tokens - before == sum(len(prompt.token_ids) for prompt in prompts)
    check_logprobs(engine.model, longer, completions)


def test_no_more_numbers_are_drawn_than_fit_into_the_context(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request for any number of tokens takes the memory of those that fit, and its reply keeps its bytes."""
    counts: list[int] = []

    def counted(seed: int, sample: int, count: int) -> Any:
        counts.append(count)
        return uniforms(seed, sample, count)

    monkeypatch.setattr(decoding, "uniforms", counted)
    rooms = (9, 30, 4)  # every row of a batch has as many numbers as the one with most room
    prompts = [Prompt((7,) * (engine.context - room), seed) for seed, room in enumerate(rooms)]
    replies = engine.sample(prompts, Sampling(100_000, n=2))
    assert set(counts) == {30}
    assert tokens_of(replies) == tokens_of(engine.sample(prompts, Sampling(30, n=2)))
    apart = [engine.sample([prompt], Sampling(room, n=2))[0] for prompt, room in zip(prompts, rooms, strict=True)]
    assert tokens_of(replies) == tokens_of(apart)


def test_replies_stop_at_the_end_of_the_context(engine: TransformersEngine) -> None:
    context = engine.model.config.max_position_embeddings
    word = (7,) * (context - 5)
    (long,), (full,), (short,) = engine.sample(
        [Prompt(word, 0), Prompt((*word, *word[:5]), 0), Prompt((7, 8), 0)], Sampling(24, temperature=0.0)
    )
    assert len(long.token_ids) <= 5
    assert (full.token_ids, full.text, full.finish_reason) == ((), "", "length")
    assert short.token_ids


def test_attention_makes_no_plans(tiny_model: Path) -> None:
    """cuDNN's attention, torch's default on a Hopper, makes a plan for every new shape."""
    torch.backends.cuda.enable_cudnn_sdp(True)
    load_weights(tiny_model, "float32")
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_an_adapter_changes_the_distribution(tiny_model: Path, tmp_path: Path) -> None:
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(2)
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    adapted = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    adapted.save_pretrained(tmp_path / "adapter")
    reference = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tiny_model), str(tmp_path / "adapter")
    ).eval()
    prompts = make_prompts(TransformersEngine(tiny_model, device="cpu", threads=1), 6)
    plain = TransformersEngine(tiny_model, device="cpu", threads=1).sample(prompts, SAMPLING)
    engine = TransformersEngine(tiny_model, tmp_path / "adapter", device="cpu", threads=1)
    completions = engine.sample(prompts, SAMPLING)
    check_logprobs(reference, prompts, completions)
    assert tokens_of(completions) != tokens_of(plain)
    lower = TransformersEngine(tiny_model, tmp_path / "adapter", dtype="bfloat16", device="cpu", threads=1)
    assert tokens_of(lower.sample(prompts, SAMPLING)) == tokens_of(lower.sample(prompts, SAMPLING))
    for each in (engine, lower):
        with torch.profiler.profile(record_shapes=True) as profile:
            each.sample(prompts, SAMPLING)
        widths = {event.input_shapes[1][-1] for event in profile.events() if event.name == "aten::bmm"}
        assert engine.model.config.vocab_size not in widths, "the head's weights were copied for each row"
