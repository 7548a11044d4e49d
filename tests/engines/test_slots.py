"""Slots on a CPU: the plain engine's tokens, whoever else is under way; no lock-step; steps that can be replayed."""

from __future__ import annotations

import asyncio
import random
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sweetrl.engines import slots as slots_module
from sweetrl.engines.background import wait
from sweetrl.engines.cache import CacheShape
from sweetrl.engines.policy import Policy
from sweetrl.engines.slots import Slots
from sweetrl.engines.stream import Stream
from sweetrl.engines.transformers import TransformersEngine, cache_shape
from sweetrl.errors import NoRoom, UserError
from sweetrl.types import Completion, Prompt, Sampling
from tests.engines.test_transformers import check_logprobs, loud, make_prompts, tokens_of

SAMPLINGS = [Sampling(24), Sampling(24, n=3, top_p=0.9), Sampling(24, temperature=0.0), Sampling(12, 0.7, 0.8, 2)]


@pytest.fixture(scope="module")
def plain(tiny_model: Path) -> TransformersEngine:
    return loud(TransformersEngine(tiny_model, device="cpu", threads=1, rows=8))


class Everywhere(TransformersEngine):
    _slot_devices = ("cpu", "cuda")


@pytest.fixture
def engine(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> TransformersEngine:
    """The same model in slots, with passes over few prompts and an attention that grows often."""
    monkeypatch.setattr(slots_module, "COLUMNS", 16)
    monkeypatch.setattr(slots_module, "PREFILL_TOKENS", 64)
    monkeypatch.setattr(slots_module, "SHORT", 16)
    engine = loud(Everywhere(tiny_model, device="cpu", threads=1, rows=8))
    assert engine.slotted and not TransformersEngine(tiny_model, device="cpu", threads=1).slotted
    return engine


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many replies each step had."""
    seen: list[int] = []
    decode = Slots._decode

    def counted(self: Slots, under_way: Any) -> None:
        seen.append(len(under_way))
        decode(self, under_way)

    monkeypatch.setattr(Slots, "_decode", counted)
    return seen


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_replies_are_the_plain_engines(
    plain: TransformersEngine, engine: TransformersEngine, sampling: Sampling
) -> None:
    prompts = make_prompts(engine, 20)
    prompts += [Prompt(prompts[3].token_ids, 77)]
    expected = tokens_of(plain.sample(prompts, sampling))
    replies = engine.sample(prompts, sampling)
    assert tokens_of(replies) == expected
    check_logprobs(engine.model, prompts, replies)
    assert replies == engine.sample(prompts, sampling)  # to the last bit
    assert tokens_of(engine.sample(prompts[::-1], sampling))[::-1] == expected
    assert [tokens_of(engine.sample([prompt], sampling))[0] for prompt in prompts[:5]] == expected[:5]


def test_a_session_finds_earlier_turns_in_its_slots(plain: TransformersEngine, engine: TransformersEngine) -> None:
    session: Any = engine.session()
    prompts, reused = make_prompts(engine, 8), 0
    for turn in range(5):
        before, cache = engine.usage(), session.kept._cache
        replies = session.sample(prompts, Sampling(24))
        after = engine.usage()
        prompt_tokens = after.prompt_tokens - before.prompt_tokens
        assert prompt_tokens == sum(len(prompt.token_ids) for prompt in prompts)
        if session.kept._cache is cache:  # else the slots had to grow
            assert after.cached_tokens - before.cached_tokens > 0.6 * prompt_tokens
            reused += 1
        check_logprobs(engine.model, prompts, replies)
        assert tokens_of(replies) == tokens_of(plain.sample(prompts, Sampling(24)))
        prompts = [
            Prompt((*prompt.token_ids, *reply.token_ids, *more.token_ids), turn)
            for prompt, (reply,), more in zip(prompts, replies, make_prompts(engine, 8, turn), strict=True)
        ]
    assert reused


def test_sessions_side_by_side_have_the_same_slots(plain: TransformersEngine, engine: TransformersEngine) -> None:
    """Best-of-N has a session for each N; the slots are freed with the last of them."""
    first, second, prompts = engine.session(), engine.session(), make_prompts(engine, 5)
    for session, sampling in ((first, SAMPLINGS[0]), (second, SAMPLINGS[1]), (first, SAMPLINGS[2])):
        assert tokens_of(session.sample(prompts, sampling)) == tokens_of(plain.sample(prompts, sampling))
    slots: Any = weakref.ref(first.kept)  # type: ignore[attr-defined]
    assert slots() is second.kept  # type: ignore[attr-defined]
    del first, second, session
    assert slots() is None
    assert tokens_of(engine.session().sample(prompts, SAMPLINGS[3])) == tokens_of(plain.sample(prompts, SAMPLINGS[3]))


def test_replies_end_with_the_context(engine: TransformersEngine) -> None:
    word = (7,) * (engine.context - 5)
    (long,), (full,), (empty,) = engine.sample(
        [Prompt(word, 0), Prompt((*word, *word[:5]), 0), Prompt((), 0)], Sampling(24, temperature=0.0)
    )
    assert 0 < len(long.token_ids) <= 5
    assert (full.token_ids, full.finish_reason) == (empty.token_ids, empty.finish_reason) == ((), "length")


# Without lock-step


def test_whoever_asks_when_gets_the_same_tokens(plain: TransformersEngine, engine: TransformersEngine) -> None:
    """In any order of arrival, beside replies with other sampling settings."""
    prompts = make_prompts(engine, 30)
    samplings = [SAMPLINGS[number // 5 % 4] for number in range(30)]
    expected = [tokens_of(plain.sample([prompt], how))[0] for prompt, how in zip(prompts, samplings, strict=True)]
    stream = Stream(engine)
    chance = random.Random(1)

    async def ask(number: int) -> list[Completion]:
        await asyncio.sleep(chance.random() * 0.2)
        return await stream.ask(prompts[number], samplings[number])

    async def ask_all() -> list[list[Completion]]:
        return await asyncio.gather(*(ask(number) for number in chance.sample(range(30), 30)))

    order = random.Random(1).sample(range(30), 30)
    chance.seed(1)
    replies = wait(ask_all())
    assert tokens_of(replies) == [expected[number] for number in order]
    check_logprobs(engine.model, [prompts[number] for number in order], replies)
    assert engine.usage().generated_tokens == sum(len(reply.token_ids) for group in replies for reply in group)
    with pytest.raises(NoRoom, match="leave no room"):
        wait(stream.ask(Prompt((7,) * engine.context, 1), Sampling(12)))
    stream.close()


def test_a_dialogue_that_is_ready_goes_on_beside_a_long_reply(engine: TransformersEngine, steps: list[int]) -> None:
    """Five turns of one token each end long before the reply that began with the first of them."""
    engine.stop_ids, engine._how = (), (engine._how[0], (), *engine._how[2:])
    stream, order = Stream(engine), list[str]()

    async def long() -> None:
        await stream.ask(Prompt((9, 8, 7), 1), Sampling(200))
        order.append("long")

    async def dialogue() -> None:
        ids: tuple[int, ...] = (9, 8)
        for turn in range(5):
            (reply,) = await stream.ask(Prompt(ids, turn), Sampling(2))
            ids = (*ids, *reply.token_ids, 11)
            order.append(f"turn {turn}")

    async def both() -> None:
        await asyncio.gather(long(), dialogue())

    wait(both())
    stream.close()
    assert order == [*(f"turn {turn}" for turn in range(5)), "long"]
    assert len(steps) == 199  # and the long one waited for nobody


def test_an_agent_answers_prompt_by_prompt_where_it_can(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy.load(tiny_model, device="cpu", threads=1)
    with closing(policy.open(4, singly=True).engine) as engine:  # slots are for GPUs
        assert isinstance(engine, TransformersEngine)
    monkeypatch.setattr(TransformersEngine, "_slot_devices", ("cpu",))
    for singly, kind in ((True, Stream), (False, TransformersEngine)):
        with closing(policy.open(4, singly=singly).engine) as engine:
            assert isinstance(engine, kind)


def test_dialogues_that_do_not_fit_are_one_sentence(
    plain: TransformersEngine, engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    stream, prompt = Stream(engine), Prompt((7, 8), 1)
    monkeypatch.setattr(Slots, "_forward", short)
    monkeypatch.setattr("sweetrl.engines.decoding.Decoder._forward", short)
    for sample in (
        lambda: wait(stream.ask(prompt, Sampling(4))),
        *(lambda e=e: e.sample([prompt], Sampling(4)) for e in (plain, engine)),
    ):
        with pytest.raises(UserError, match=r"are sampled together; lower `collect\.batch`"):
            sample()
    stream.close()


def test_failures_reach_the_caller_and_no_later_request(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, step = Stream(engine), Slots.step

    def fail(self: Slots) -> None:
        monkeypatch.setattr(Slots, "step", step)
        raise RuntimeError("thirteen")

    monkeypatch.setattr(Slots, "step", fail)
    with pytest.raises(RuntimeError, match="thirteen"):
        wait(stream.ask(Prompt((7, 8), 1), Sampling(4)))
    assert wait(stream.ask(Prompt((7, 8), 1), Sampling(4)))[0].token_ids
    stream.close()


# What a CUDA graph is: the kernels of one step, again and again at the same addresses


class Recorded(TorchDispatchMode):
    """Notes every operation; `replay` computes them again, each into the memory of its first result."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Any] = []
        self.replayed = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        self.operations.append((function, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        self.replayed += 1
        for function, args, kwargs, out in self.operations:
            given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            read = {tensor.untyped_storage().data_ptr() for tensor in given}
            for new, old in zip(tree_leaves(function(*args, **kwargs)), tree_leaves(out), strict=True):
                if isinstance(old, torch.Tensor) and old.untyped_storage().data_ptr() not in read:
                    old.copy_(new)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    """The graphs that slots recorded: they replay them on a CPU as they do on a GPU."""
    graphs: list[Recorded] = []

    def capture(self: Slots, compute: Any) -> Any:
        with (graph := Recorded()):
            result = compute()
        graphs.append(graph)
        return graph, result

    made = Slots.__init__

    def graphed(self: Slots, *given: Any) -> None:
        made(self, *given)
        self._graphed = True

    monkeypatch.setattr(Slots, "_capture", capture)
    monkeypatch.setattr(Slots, "__init__", graphed)
    return graphs


@pytest.mark.parametrize("sampling", [Sampling(24, n=3, top_p=0.9), Sampling(24, temperature=0.0)])
def test_a_step_can_be_replayed(
    plain: TransformersEngine, engine: TransformersEngine, recorded: list[Recorded], sampling: Sampling
) -> None:
    prompts = make_prompts(engine, 20)
    replies = engine.sample(prompts, sampling)
    assert tokens_of(replies) == tokens_of(plain.sample(prompts, sampling))
    check_logprobs(engine.model, prompts, replies)
    # Four widths of at most 64 columns; passes over 1, 2, 4 and 8 prompts.
    steps = sum(graph.replayed for graph in recorded)
    assert 0 < len(recorded) <= 4 + 4 * 4 and steps > 3 * len(recorded)


SMALL: dict[str, Any] = dict.fromkeys(("hidden_size", "intermediate_size", "moe_intermediate_size", "vocab_size"), 32)
HEADS: dict[str, Any] = dict.fromkeys(("num_attention_heads", "num_key_value_heads", "num_hidden_layers"), 2)


def goes_on_with_graphs(model: Any) -> bool:
    """Whether a step of such a model can be replayed."""
    slots = Slots(model.eval(), cache_shape(model, "small"), (), 2, 64)
    slots._graphed = True
    slots.add(Prompt((1, 2, 3), 1), Sampling(4, top_p=0.5))
    slots.step()
    return slots._graphed


@pytest.mark.parametrize("rope", ["default", "dynamic"])
def test_a_step_that_waits_is_noticed(rope: str) -> None:
    """Nothing in a step of a plain model needs the host; frequencies that follow the longest position do."""
    from transformers import LlamaConfig, LlamaForCausalLM

    parameters = {"rope_type": rope, "rope_theta": 10000.0} | ({"factor": 2.0} if rope == "dynamic" else {})
    model = LlamaForCausalLM(LlamaConfig(**SMALL, **HEADS, rope_parameters=parameters))
    assert goes_on_with_graphs(model) == (rope == "default")


def test_what_waits_inside_or_moves_is_noticed() -> None:
    """The host reads where the tokens of each expert end, within a product; and what moves is waited for."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    experts: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}
    assert not goes_on_with_graphs(Qwen3MoeForCausalLM(Qwen3MoeConfig(**SMALL, **HEADS, **experts)))
    with slots_module._waits()() as waits:
        torch.zeros(2, device="meta").double()
        assert not waits.seen
        torch.zeros(2).to("meta")
    assert waits.seen == {"_to_copy"}


def test_a_graph_is_recorded_on_the_models_own_device(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's own stream for recording is on the first device that recorded a graph."""
    used: list[Any] = []

    @contextmanager
    def graph(made: Any, pool: Any, stream: Any, capture_error_mode: str) -> Iterator[None]:
        used.append(stream)
        yield

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: [device])
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    for number in (0, 1, 1):
        slots = engine.slots()
        slots._device = torch.device("cuda", number)
        slots._capture(lambda: torch.zeros(1))
    slots_module._recording_stream.cache_clear()
    assert used == [[torch.device("cuda", number)] for number in (0, 1, 1)] and used[1] is used[2]


@pytest.mark.parametrize("sampling", [Sampling(1), Sampling(1, temperature=0.0), Sampling(1, top_p=0.9)])
def test_steps_and_passes_need_nothing_of_the_host(sampling: Sampling) -> None:
    """On torch's device without data a value that is read, or a tensor from elsewhere, is an error."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device("meta"), torch.no_grad():
        model = LlamaForCausalLM(LlamaConfig(**(SMALL | HEADS | {"num_key_value_heads": 1}))).eval()
        slots = Slots(model, CacheShape(2, 1, 16, (False, False)), (), 4, 64)
        slots.add(Prompt((1, 2, 3), 1), sampling)
        slots._make_room()
        count = len(slots._slots)
        inputs = torch.zeros((3, count, 1), dtype=torch.long)
        assert slots._compute(4, sampling, inputs, torch.zeros(count, dtype=torch.float64)).shape == (2, count)
        assert slots._forward(4, torch.zeros((3, 1, 8), dtype=torch.long), torch.zeros(1).long()).shape == (1, 32)
        with pytest.raises((RuntimeError, NotImplementedError)):
            slots._forward(4, torch.zeros((3, 1, 8), dtype=torch.long, device="cpu"), torch.zeros(1).long())
