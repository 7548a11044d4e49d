"""Dialogues as token ids, turn by turn, as the tokenizer's chat template writes them: any model family works.

What a template does with a dialogue is seen once, on words that stand for those of real ones (`zqrequestqz`); the words
are put in their places afterwards. Where a template only appends, the ids that an agent sampled are never decoded and
tokenised again: the user's words and the template's markers come after them. Where it writes earlier messages in
another way when later ones come (it leaves out thoughts, or moves the system prompt), each prompt is tokenised from the
text that the template makes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError
from sweetrl.models.chat_templates import render_dialogues
from sweetrl.thoughts import MARKS, Marks, split_thoughts
from sweetrl.types import AgentTurn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Words that no template contains; the blanks around some show whether a template strips what it is given.
_SYSTEM, _REQUEST = "zqsystemqz", "zqrequestqz"
_PERSON, _REPLY, _THOUGHT, _BLANKS = "zqperson{}qz", "zqreply{}qz", "zqthought{}qz", " \t "
_PLACES = re.compile(r"(zq(?:system|request|person\d+|reply\d+|thought\d+)qz)")
# Some templates print the day; a day in the prompt would make equal runs differ.
_DATE = "26 Jul 2024"
_HARMONY = "<|channel|>"  # its templates are given thoughts apart
UPFRONT = 3  # turns of the dialogues that a template is shown at once
TOGETHER = 6  # turns up to which all mixtures of thoughtful and other replies are rendered together

# What a dialogue looks like, but for its words: whether it has a system prompt, and which replies have thoughts.
Shape = tuple[bool, tuple[bool, ...]]


class ChatFormat:
    """Turns dialogues into token ids: `open` gives the first prompt, `begin` all of a dialogue, one after the other.

    `options` are what the template takes besides the messages (`enable_thinking`, `reasoning_effort`), `marks` those
    that may stand around thoughts. Raises UserError if the tokenizer has no chat template, or one that fails or loses a
    message, or one without a token that ends a turn.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any] = {}, marks: Marks = MARKS
    ) -> None:
        self.tokenizer, self.options, self._possible_marks = tokenizer, dict(options), marks
        self.name = str(getattr(tokenizer, "name_or_path", "") or "the tokenizer")
        if not getattr(tokenizer, "chat_template", None):
            raise UserError(f"{self.name}: the tokenizer has no chat template; take an instruction-tuned model.")
        self._template = self._own_template()
        self.marks = self._thought_marks()
        """What stands around the model's thoughts."""
        self._texts: dict[Shape, dict[str, str]] = {}
        mixtures = (mixture for turns in range(UPFRONT + 1) for mixture in product((False, True), repeat=turns))
        self._render(product((False, True), mixtures))
        tokens = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
        self._special = tuple(sorted(token for token in tokens if token.strip()))  # runs of blanks are words
        self._structure = self._structure_ids()
        self._count_in = lru_cache(maxsize=256)(lambda text: self._count(self._ids(text)))
        # What stands before the request, after it (= before a reply), and between a reply and the user's next words.
        self._before_request, self._header = self._split_opening(None)
        self._lead, self._between = self._split_reply()
        self._opened = self._header.rstrip().endswith(self.marks[0])
        self.strips = f"{_BLANKS}{_REQUEST}{_BLANKS}" not in self._blanks.get("text", "")
        ending = self._encode(self._between.lstrip())
        self.end_of_turn = ending[0] if ending else -1
        """The id that ends a reply."""
        if self.end_of_turn not in {*tokenizer.get_added_vocab().values(), *tokenizer.all_special_ids}:
            raise self._refusal("it has no special token that ends a turn, so a reply would never end")
        self._ends = {self.end_of_turn, *tokenizer.all_special_ids} - set(self._ids_of(self.marks))
        self._appending = {shape: self._appends(*shape) for shape in product((False, True), repeat=2)}

    def open(self, system: str | None, request: str) -> tuple[int, ...]:
        """Return the ids of the system prompt (if any) and the request, up to and including the assistant's header."""
        before, header = (self._before_request, self._header) if system is None else self._split_opening(system)
        return self._encode(before, request, header)

    def begin(self, system: str | None, request: str) -> Prompts:
        """Return the prompts of a dialogue that begins so."""
        return Prompts(self, system, request)

    def follow(self, ended: bool, words: str) -> tuple[int, ...]:
        """Return the ids from a reply to the next one: the user's words and the template's markers around them.

        `ended` says whether the reply has its end-of-turn already; only if not, the end-of-turn comes first here.
        """
        ids = self._encode(self._between, words, self._header)
        return ids[1:] if ended else ids

    def reply(self, text: str) -> tuple[int, ...]:
        """Return the ids of a reply known only as text, in its place behind the header, with its end-of-turn."""
        text = text.strip() if self.strips else text
        thoughts, spoken = self.split(text)
        opening, closing = self.marks
        parts = [(self._header + ("" if thoughts else self._lead), False), (text, True)]
        if self._opened:
            parts[1:] = [(f"{thoughts}\n", True), (closing, False), (f"\n\n{spoken}", True)]
        elif thoughts and text.lstrip().startswith(opening):
            before, _, after = text.lstrip()[len(opening) :].partition(closing)
            parts[1:] = [(opening, False), (before, True), (closing, False), (after, True)]
        header, ids = self._ids(self._header), self._join(parts)
        own = ids[len(header) :] if ids[: len(header)] == header else self._join(parts[1:])
        return (*own, self.end_of_turn)

    def split(self, reply: str) -> tuple[str, str]:
        """Return (thoughts, spoken words) of a raw reply."""
        return split_thoughts(reply, self._possible_marks)

    def plain(self, words: str) -> tuple[int, ...]:
        """Return the ids of words alone, without any structure."""
        return self._encode("", words)

    def ended(self, reply: Sequence[int]) -> bool:
        """Whether the last of a reply's ids is one that ends replies, the template's or another of the model's."""
        return bool(reply) and reply[-1] in self._ends

    def appends(self, system: bool, thoughts: bool) -> bool:
        """Whether the template only appends, in dialogues with a `system` prompt, and with `thoughts` in replies."""
        return self._appending[system, thoughts]

    def decode(self, replies: Sequence[Sequence[int]]) -> list[str]:
        """Return replies as texts; of the special tokens in them only the marks of thoughts stay.

        Where the header has opened a thought, so do the texts.
        """
        tokenizer, (opening, closing) = self.tokenizer, self.marks
        marks = {token for token in tokenizer.all_special_tokens if token in opening + closing}
        if marks:
            marks |= {"<|start|>", "<|end|>"} if _HARMONY in opening else set()
            dropped = set(tokenizer.all_special_ids) - set(self._ids_of(marks))
            replies = [[id_ for id_ in ids if id_ not in dropped] for ids in replies]
        texts = tokenizer.batch_decode([list(ids) for ids in replies], skip_special_tokens=not marks)
        return [f"{opening}\n{text}" for text in texts] if self._opened else list(texts)

    def prompt(self, system: str | None, request: str, turns: Sequence[tuple[str, str]]) -> tuple[int, ...]:
        """Return the ids of the prompt after `turns`, (raw reply, the user's words) each, from the template's text."""
        pieces = {_SYSTEM: self._defused(system or ""), _REQUEST: request}
        thoughtful = list[bool]()
        for number, (raw, words) in enumerate(turns, start=1):
            thoughts, spoken = self.split(raw)
            thoughtful.append(bool(thoughts))
            pieces |= {_THOUGHT.format(number): thoughts, _REPLY.format(number): spoken, _PERSON.format(number): words}
        text = self._text((system is not None, tuple(thoughtful)))
        if self.strips:
            pieces = {place: words.strip() for place, words in pieces.items()}
        return self._join(
            [(pieces.get(part, part), part in pieces and part != _SYSTEM) for part in _PLACES.split(text)]
        )

    # What the template makes of dialogues

    def _own_template(self) -> str:
        try:
            return str(self.tokenizer.get_chat_template())
        except ValueError as error:  # several templates, of which none is the default
            raise self._refusal(str(error)) from error

    def _thought_marks(self) -> tuple[str, str]:
        """Return the marks of thoughts that the template or the tokenizer has; the usual ones where neither does."""
        for place in (self._template, self.tokenizer.get_added_vocab()):
            for marks in self._possible_marks:
                if any(mark in place for mark in marks):
                    return marks
        return self._possible_marks[0]

    def _render(self, shapes: Iterable[Shape]) -> None:
        """Have dialogues of these shapes rendered, and one with blanks around its words."""
        missing = [shape for shape in dict.fromkeys(shapes) if shape not in self._texts]
        dialogues = [
            [{"role": "user", "content": f"{_BLANKS}{_REQUEST}{_BLANKS}"}],
            *(self._dialogue(*shape) for shape in missing),
        ]
        values = {**self.tokenizer.special_tokens_map, "date_string": _DATE, **self.options}
        try:
            self._blanks, *rendered = render_dialogues(self._template, dialogues, values)
        except UserError as error:  # too much of it
            raise self._refusal(str(error)) from error
        self._texts |= dict(zip(missing, rendered, strict=True))

    def _dialogue(self, system: bool, thoughtful: Sequence[bool]) -> list[dict[str, str]]:
        messages = [{"role": "system", "content": _SYSTEM}] if system else []
        messages.append({"role": "user", "content": _REQUEST})
        for number, thinks in enumerate(thoughtful, start=1):
            reply, thought, (opening, closing) = _REPLY.format(number), _THOUGHT.format(number), self.marks
            message = {"role": "assistant", "content": reply}
            if thinks and _HARMONY in opening:
                message["thinking"] = thought
            elif thinks:
                message["content"] = f"{opening}\n{thought}\n{closing}\n\n{reply}"
            messages += [message, {"role": "user", "content": _PERSON.format(number)}]
        return messages

    def _text(self, shape: Shape) -> str:
        """Return the text of a prompt, with what stands for the words of its messages; each is in it once."""
        system, thoughtful = shape
        if shape not in self._texts:
            turns = len(thoughtful)
            mixtures = product((False, True), repeat=turns) if turns <= TOGETHER else [thoughtful]
            self._render((system, mixture) for mixture in mixtures)
        rendered = self._texts[shape]
        if "error" in rendered:  # jinja's own errors and the templates' raise_exception
            raise self._refusal(f"it fails ({rendered['error']})")
        text = rendered["text"]
        pieces = (name.format(number + 1) for name in (_REPLY, _PERSON) for number in range(len(thoughtful)))
        if any(text.count(word) != 1 for word in (_REQUEST, *[_SYSTEM] * system, *pieces)):
            raise self._refusal("it does not contain every message exactly once")
        return text

    def _split_opening(self, system: str | None) -> tuple[str, str]:
        """Return the text before and after the request; a given system prompt is part of the text before it."""
        before, after = self._text((system is not None, ())).split(_REQUEST)
        words = self._defused(system or "")
        return before.replace(_SYSTEM, words), after.replace(_SYSTEM, words)

    def _split_reply(self) -> tuple[str, str]:
        """Return the text between the header and a reply's words, and between these and the user's next words."""
        before, after = self._text((False, (False,))).split(_REPLY.format(1))
        opening = self._text((False, ()))
        lead = before.removeprefix(opening) if before.startswith(opening) else ""
        return lead, after.split(_PERSON.format(1))[0]

    def _appends(self, system: bool, thoughts: bool) -> bool:
        """Whether three turns of such a dialogue only ever append, with nothing but the reply between two prompts."""
        try:
            texts = [self._text((system, (thoughts,) * turns)) for turns in range(UPFRONT + 1)]
        except UserError:  # raised again where such a dialogue is met
            return False
        for number in range(1, UPFRONT + 1):
            reply = self._dialogue(False, (thoughts,) * number)[-2]["content"]
            words = self._between + _PERSON.format(number) + self._header
            if texts[number] != texts[number - 1] + reply + words:
                return False
        return True

    # Words as ids

    def _defused(self, text: str) -> str:
        """Break special tokens written out in a system prompt: they are words there, not structure."""
        for token in self._special:
            text = text.replace(token, token[0] + "\u200b" + token[1:])
        return text

    def _encode(self, before: str, content: str = "", after: str = "") -> tuple[int, ...]:
        """Tokenise template text around one message."""
        return self._join([(before, False), (content.strip() if self.strips else content, True), (after, False)])

    def _join(self, parts: Sequence[tuple[str, bool]]) -> tuple[int, ...]:
        """Tokenise (text, whether it is somebody's words) one behind the other; words never become structure."""
        written = any(token in text for text, words in parts if words for token in self._special)
        ids = self._ids("".join(text for text, _ in parts))
        # A normalizer may make structure of what is none as written.
        if not written and self._count(ids) == sum(self._count_in(text) for text, words in parts if not words):
            return ids
        return tuple(id_ for text, words in parts for id_ in (self._plain(text) if words else self._ids(text)))

    def _plain(self, words: str) -> tuple[int, ...]:
        """Tokenise words without structure: where a tokenizer makes it of some, they are cut apart."""
        ids = self._ids(words, split_special_tokens=True)
        if not self._count(ids):
            return ids
        middle = len(words) // 2
        return (*self._plain(words[:middle]), *self._plain(words[middle:])) if middle else ()

    def _ids_of(self, tokens: Iterable[str]) -> list[int]:
        added = self.tokenizer.get_added_vocab()
        return [added[token] for token in tokens if token in added]

    def _count(self, ids: Sequence[int]) -> int:
        return sum(id_ in self._structure for id_ in ids)

    def _ids(self, text: str, **options: bool) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False, **options)) if text else ()

    def _structure_ids(self) -> set[int]:
        """Return the ids of special tokens, and of added ones that the template writes; an unknown letter is a word."""
        tokenizer, texts = self.tokenizer, [rendered.get("text", "") for rendered in self._texts.values()]
        unknown = {tokenizer.unk_token_id} - {tokenizer.bos_token_id, tokenizer.eos_token_id}
        written = self._ids_of(token for token in self._special if any(token in text for text in texts))
        return {*tokenizer.all_special_ids} - unknown | {*written}

    def _refusal(self, reason: str) -> UserError:
        return UserError(f"{self.name}: the chat template cannot be used because {reason}; give the model another.")


class Prompts:
    """The prompts of one dialogue: `ids` is the next one, `add` takes the reply to it and what the user said then."""

    def __init__(self, chat: ChatFormat, system: str | None, request: str) -> None:
        self.chat, self.system, self.request = chat, system, request
        self.ids = chat.open(system, request)
        self._turns: list[tuple[str, str]] = []
        self._thoughts = False

    def add(self, turn: AgentTurn, words: str) -> None:
        """Go on to the prompt after the reply `turn` and the user's `words`.

        A reply that ends with another stop id of the model than the template's has the template's in later prompts.
        """
        chat = self.chat
        self._turns.append((turn.raw, words))
        self._thoughts = self._thoughts or bool(chat.split(turn.raw)[0])
        if not chat.appends(self.system is not None, self._thoughts):
            self.ids = chat.prompt(self.system, self.request, self._turns)
            return
        reply = turn.token_ids or chat.reply(turn.raw)
        if chat.ended(reply):
            reply = reply[:-1]
        self.ids = (*self.ids, *reply, *chat.follow(False, words))
