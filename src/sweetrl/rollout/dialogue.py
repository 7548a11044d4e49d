"""One dialogue on its way: what both sides see, and the agent's own context as token ids or as text."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sweetrl.colbench.dialogue import Environment
from sweetrl.colbench.leaks import leaks_of
from sweetrl.engines.cache import common_prefix
from sweetrl.engines.chat import ChatFormat, Prompts
from sweetrl.errors import SimulatorError, UserError, UserLeft
from sweetrl.protocols import AsyncUserSimulator, UserSimulator
from sweetrl.rollout.ledger import DialogueCost
from sweetrl.thoughts import split_thoughts
from sweetrl.types import OUTGROWN, AgentTurn, Completion, Prompt, Task, Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain
    from sweetrl.config.settings import AgentSettings


@dataclass
class Dialogue:
    """An attempt at a task. The agent's turn: `prompt`, then `take`. The user's: `ask` or `ask_async`.

    Every loop over dialogues (sweetrl.rollout.driver) goes through these, and nothing else moves a dialogue on.
    `prompts` None keeps the context as text only. The agent reads its own replies without their thoughts (or as its
    chat template has them), the user what is visible of them. The reply of the last turn begins with `opening`, whose
    tokens have the log-prob 0; it needs an engine that takes tokens.
    `seed_of` gives the seed of each agent turn: it follows from what the dialogue is, not from when it is asked.
    """

    task: Task
    attempt: int
    seed_of: Callable[[int], int]
    environment: Environment
    prompts: Prompts | None
    opening: str = ""
    texts: list[tuple[str, str]] = field(default_factory=list)
    turns: list[AgentTurn] = field(default_factory=list)
    prompt_tokens: int = 0
    generated_tokens: int = 0
    error: str = ""
    begun: float = field(default_factory=time.monotonic)
    read_tokens: int = 0
    cached_tokens: int = 0
    busy: float = 0.0
    _read: tuple[int, ...] = ()

    @property
    def ids(self) -> tuple[int, ...]:
        """The prompt that is next, as token ids; none where the context is text."""
        return () if self.prompts is None else self.prompts.ids

    @property
    def done(self) -> bool:
        """Whether the dialogue has ended, well or not."""
        return self.environment.done or bool(self.error)

    def prompt(self) -> Prompt:
        """The prompt of the agent's next reply."""
        return Prompt(self.ids + self._opening(), self.seed_of(len(self.turns)), tuple(self.texts), self.task.id)

    def _opening(self) -> tuple[int, ...]:
        """Return the ids of what the next reply begins with; none where it may begin as it likes."""
        if not self.opening or self.environment.turn < self.environment.max_turns - 1:
            return ()
        if self.prompts is None:
            raise UserError("the agent's last reply cannot be made to begin as an answer: its engine takes text only.")
        return self.prompts.chat.plain(self.opening)

    def take(self, completion: Completion) -> None:
        """Let the agent say `completion`; the user is next unless the dialogue is `done`.

        A completion without tokens, where the engine gives tokens, had no room: the dialogue is lost.
        """
        if self.prompts is not None and not completion.token_ids:
            self.error = f"{OUTGROWN}: its {len(self.ids)} tokens leave no room for a reply in the model's context"
            return
        if opening := self._opening():
            completion = replace(
                completion,
                token_ids=opening + completion.token_ids,
                logprobs=(0.0,) * len(opening) + completion.logprobs,
                text=self.opening + completion.text,
            )
        self.prompt_tokens += completion.prompt_tokens
        self.generated_tokens += completion.generated_tokens
        self.read_tokens += completion.prompt_tokens or len(self.ids)
        self.cached_tokens += completion.cached_tokens
        self.busy += completion.busy
        at = len(self.environment.messages)
        self._add(AgentTurn(at, completion.text, completion.token_ids, completion.logprobs, completion.finish_reason))
        self.environment.say(completion.text)

    def retell(self, turn: AgentTurn, visible: str, words: str) -> None:
        """Take over a turn of an earlier dialogue as it was, and what the user said to it."""
        self._add(turn)
        self.environment.retell(visible, words)
        self._go_on()

    def ask(self) -> None:
        """Let the user reply, here and now; a user who cannot loses the dialogue."""
        self.environment.ask()
        self._go_on()

    async def ask_async(self, simulator: AsyncUserSimulator) -> None:
        """Let a user reply who takes time."""
        environment = self.environment
        try:
            words = await simulator.answer(environment.task, environment.messages, environment.user_seed)
        except SimulatorError as error:
            environment.lose(str(error))
        except UserLeft:
            environment.leave()
        else:
            environment.hear(words)
        self._go_on()

    def _add(self, turn: AgentTurn) -> None:
        """Add a turn, with the prompt that it is the reply to."""
        kept = common_prefix(self._read, self.ids)
        self._read = self.ids + turn.token_ids
        self.turns.append(replace(turn, prompt_kept=kept, prompt_ids=self.ids[kept:]))

    def _go_on(self) -> None:
        """Put the last turn and the user's words behind the agent's context."""
        if self.done:
            return
        turn, words = self.turns[-1], self.environment.messages[-1].content
        _, reply = split_thoughts(turn.raw, self.environment.domain.settings.model.marks)
        self.texts += [("assistant", reply), ("user", words)]
        if self.prompts is not None:
            self.prompts.add(turn, words)

    def cost(self, policy: str, devices: int) -> DialogueCost:
        """Return what the dialogue has cost so far; no part of it, because equal dialogues cost differently."""
        sampled = sum(len(turn.token_ids) for turn in self.turns)
        lost = bool(self.error or self.environment.error)
        return DialogueCost(
            task=self.task.id,
            attempt=self.attempt,
            policy=policy,
            lost=lost,
            turns=len(self.turns),
            prompt_tokens=self.read_tokens,
            cached_tokens=self.cached_tokens,
            generated_tokens=sampled or self.generated_tokens,
            seconds=time.monotonic() - self.begun,
            busy_seconds=self.busy,
            gpu_seconds=devices * self.busy,
        )

    def close(self, policy: str) -> Trajectory:
        """Return the ended dialogue, not yet scored."""
        environment = self.environment
        error = self.error or environment.error
        extra = {}
        if self.generated_tokens:
            extra = {"generated_tokens": str(self.generated_tokens), "prompt_tokens": str(self.prompt_tokens)}
        checked = getattr(environment.simulator, "checked", False)
        if checked and (leaks := leaks_of(self.task, environment.messages, environment.domain.find_leak)):
            extra["leaks"] = " ".join(f"{index}:{leak.kind}" for index, leak in leaks)
        return Trajectory(
            task=self.task,
            attempt=self.attempt,
            messages=environment.messages,
            turns=tuple(self.turns),
            answer=None if error else environment.answer,
            outcome="lost" if error else environment.outcome or "lost",
            seed=environment.seed,
            policy=policy,
            simulator=environment.simulator.name,
            error=error,
            extra=extra,
        )


def open_dialogue(
    domain: Domain,
    simulator: UserSimulator,
    task: Task,
    attempt: int,
    seed_of: Callable[[int], int],
    agent: AgentSettings,
    chat: ChatFormat | None = None,
    opening: str = "",
) -> Dialogue:
    """Begin an attempt at `task`; `seed_of` gives the seed of each agent turn (from 0), and of the user (-1)."""
    cut = domain.settings.simulator.reply_characters or domain.reply_characters
    environment = Environment(task, domain, simulator, agent.max_turns, cut, seed_of(-1))
    system = domain.system_prompt(agent.prompt)
    texts = [("system", system), ("user", task.problem_description)]
    prompts = None if chat is None else chat.begin(system, task.problem_description)
    return Dialogue(task, attempt, seed_of, environment, prompts, opening, texts)
