"""A dialogue as token ids that only ever grow: read from the tokenizer's chat template, so any model family works.

The ids an agent sampled are never decoded and tokenised again; only the user's words and the template's own markers
are turned into ids, and put after them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError
from sweetrl.models.chat_templates import render_dialogues

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Words that no template contains; the blanks around them show whether a template strips what it is given.
_SYSTEM, _REQUEST, _PERSON, _REPLY = "zqsystemqz", "zqrequestqz", "zqperson{}qz", "zqreply{}qz"
# Some templates print the day; a day in the prompt would make equal runs differ.
_DATE = "26 Jul 2024"
_ASKED = {"role": "user", "content": _REQUEST}
_TURNS = [
    {"role": role, "content": words.format(turn)}
    for turn in (1, 2)
    for role, words in (("assistant", _REPLY), ("user", _PERSON))
]
# All that a template is ever shown; the words of real dialogues are put in their places afterwards.
_DIALOGUES = {
    "request": [_ASKED],
    "system": [{"role": "system", "content": _SYSTEM}, _ASKED],
    "one turn": [_ASKED, *_TURNS[:2]],
    "two turns": [_ASKED, *_TURNS],
    "blanks": [{"role": "user", "content": f" {_REQUEST} "}],
}
_REWRITES = "it rewrites earlier messages when later ones come, so sampled token ids cannot be kept"


class ChatFormat:
    """Turns a dialogue into token ids, piece by piece: `open`, then for each turn the sampled ids and `follow`.

    Raises UserError if the tokenizer has no chat template, or one that rewrites earlier turns when later ones come
    (then token ids cannot be kept), or one without a token that ends a turn.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any] = {}) -> None:
        self.tokenizer, self.options = tokenizer, options
        self.name = str(getattr(tokenizer, "name_or_path", "") or "the tokenizer")
        if not getattr(tokenizer, "chat_template", None):
            raise UserError(f"{self.name}: the tokenizer has no chat template; take an instruction-tuned model.")
        self._rendered = self._render_all()
        self._special = tuple(sorted(set(tokenizer.all_special_tokens) | set(tokenizer.get_added_vocab())))
        self._structure = self._structure_ids()
        self._count_in = lru_cache(maxsize=64)(lambda text: self._count(self._ids(text)))
        # What stands before the request, after it (= before a reply), and between a reply and the user's next words.
        self._before_request, self._header = self._split_opening(None)
        self._between = self._split_following()
        self.strips = f" {_REQUEST} " not in self._render("blanks")
        ending = self._encode(self._between)
        self.end_of_turn = ending[0] if ending else -1
        """The id that ends a reply."""
        if self.end_of_turn not in {*tokenizer.get_added_vocab().values(), *tokenizer.all_special_ids}:
            raise self._refusal("it has no special token that ends a turn, so a reply would never end")

    def open(self, system: str | None, request: str) -> tuple[int, ...]:
        """Return the ids of the system prompt (if any) and the request, up to and including the assistant's header."""
        before, header = (self._before_request, self._header) if system is None else self._split_opening(system)
        return self._encode(before, request, header)

    def follow(self, ended: bool, words: str) -> tuple[int, ...]:
        """Return the ids that come after a reply's sampled ids, up to and including the next assistant header.

        `ended` says whether the reply sampled its own end-of-turn; only if not, the end-of-turn comes first here.
        """
        ids = self._encode(self._between, words, self._header)
        return ids[1:] if ended else ids

    def reply(self, text: str) -> tuple[int, ...]:
        """Return the ids of a reply known only as text, with its end-of-turn (imported dialogues)."""
        return (*self._encode("", text, ""), self.end_of_turn)

    def _render_all(self) -> dict[str, dict[str, str]]:
        values = {**self.tokenizer.special_tokens_map, "date_string": _DATE}
        try:
            template = self.tokenizer.get_chat_template()
            rendered = render_dialogues(template, list(_DIALOGUES.values()), values)
        except (UserError, ValueError) as error:  # too much of it, or several templates of which none is the default
            raise self._refusal(str(error)) from error
        return dict(zip(_DIALOGUES, rendered, strict=True))

    def _render(self, name: str) -> str:
        rendered = self._rendered[name]
        if "error" in rendered:  # jinja's own errors and the templates' raise_exception
            raise self._refusal(f"it fails ({rendered['error']})")
        return rendered["text"]

    def _split_opening(self, system: str | None) -> tuple[str, str]:
        """Return the text before and after the request; a given system prompt is part of the text before it."""
        text = self._render("request" if system is None else "system")
        if text.count(_REQUEST) != 1 or (system is not None and text.count(_SYSTEM) != 1):
            raise self._refusal("it does not contain every message exactly once")
        before, after = text.split(_REQUEST)
        return before.replace(_SYSTEM, self._defused(system or "")), after

    def _split_following(self) -> str:
        """Return the text between a reply and the user's next words; checks that three turns only ever append."""
        opening = self._render("request")
        texts = [self._render("one turn"), self._render("two turns")]
        tail = texts[0].removeprefix(opening + _REPLY.format(1))
        words, header = _PERSON.format(1), self._header
        if len(tail) == len(texts[0]) or tail.count(words) != 1 or not tail.endswith(words + header):
            raise self._refusal(_REWRITES)
        between = tail.removesuffix(words + header)
        if texts[1] != texts[0] + _REPLY.format(2) + between + _PERSON.format(2) + header:
            raise self._refusal(_REWRITES)
        return between

    def _defused(self, text: str) -> str:
        """Break special tokens written out in a system prompt: they are words there, not structure."""
        for token in self._special:
            if token and not token.isspace():
                text = text.replace(token, token[0] + "\u200b" + token[1:])
        return text

    def _encode(self, before: str, content: str = "", after: str = "") -> tuple[int, ...]:
        """Tokenise template text around one message; special tokens written out in the message stay plain words."""
        if self.strips:
            content = content.strip()
        ids = self._ids(before + content + after)
        if not content:
            return ids
        # A normalizer may make structure of what is none as written.
        written = any(token in content for token in self._special)
        if not written and self._count(ids) == self._count_in(before) + self._count_in(after):
            return ids
        return (*self._ids(before), *self._plain(content), *self._ids(after))

    def _plain(self, words: str) -> tuple[int, ...]:
        """Tokenise words without structure: where a tokenizer makes it of some, they are cut apart."""
        ids = self._ids(words, split_special_tokens=True)
        if not self._count(ids):
            return ids
        middle = len(words) // 2
        return (*self._plain(words[:middle]), *self._plain(words[middle:])) if middle else ()

    def _count(self, ids: Sequence[int]) -> int:
        return sum(id_ in self._structure for id_ in ids)

    def _ids(self, text: str, **options: bool) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False, **options)) if text else ()

    def _structure_ids(self) -> set[int]:
        """Return the ids of special tokens, and of added ones that the template writes; an unknown letter is a word."""
        tokenizer, texts = self.tokenizer, [rendered.get("text", "") for rendered in self._rendered.values()]
        marks = {mark: id_ for mark, id_ in tokenizer.get_added_vocab().items() if not mark.isspace()}
        unknown = {tokenizer.unk_token_id} - {tokenizer.bos_token_id, tokenizer.eos_token_id}
        written = {id_ for mark, id_ in marks.items() if any(mark in text for text in texts)}
        return {*tokenizer.all_special_ids} - unknown | written

    def _refusal(self, reason: str) -> UserError:
        return UserError(f"{self.name}: the chat template cannot be used because {reason}; give the model another.")
