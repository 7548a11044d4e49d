"""The small base agent's tokenizer: byte-level BPE in which a number with the blank before it is one token, and a chat
template.

The user's " 90" and the program's " 90" are the same token, right after the word that it belongs to: copying a value
is then copying one token. For pages, where most of the text is one fixed form, whole pieces of it are tokens
(`build_piece_tokenizer`): a page is some fifty tokens instead of three hundred.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sweetrl.models.chat_templates import OWN_TEMPLATE

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

BEGIN, SYSTEM, USER, ASSISTANT, END, PAD = "<|begin|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|pad|>"


def build_tokenizer(
    texts: Iterable[str], vocabulary: int, numbers: int = 0, words: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE of at most `vocabulary` entries on `texts`.

    The numbers 0 .. `numbers`-1 and `words` (all with the blank before them) are made one token each. Deterministic for
    equal texts in equal order.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" ?\d+"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    # Enough repetitions that each of these is merged into one token whatever the texts hold.
    entire = ["".join((*(f" {number}" for number in range(numbers)), *words))] * 2000
    _train(tokenizer, [*texts, *entire], vocabulary)
    return _with_template(tokenizer)


def _train(tokenizer: Tokenizer, texts: Sequence[str], vocabulary: int) -> None:
    from tokenizers import pre_tokenizers, trainers

    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[BEGIN, SYSTEM, USER, ASSISTANT, END, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)


def build_piece_tokenizer(texts: Sequence[str], vocabulary: int, words: Sequence[str]) -> PreTrainedTokenizerFast:
    """Make a tokenizer of at most `vocabulary` entries in which the commonest pieces of `texts` are one token each.

    Texts are cut around `words`, before every new line and after every sentence; the pieces between are tokens where
    they are common in `texts`. All else is byte-level BPE, so nothing is unknown. Deterministic.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    longest_first = sorted(words, key=lambda word: (-len(word), word))
    cuts = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("|".join(map(_word_pattern, longest_first))), "isolated"),
            pre_tokenizers.Split("\n", "merged_with_next"),
            pre_tokenizers.Split(Regex("[.?!] "), "merged_with_previous"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    pieces = Counter(piece for text in texts for piece, _ in cuts.pre_tokenize_str(text))
    common = [piece for piece, _ in sorted(pieces.items(), key=lambda item: (-item[1], item[0])) if len(piece) > 1]
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    _train(learner, texts, vocabulary - min(len(common), vocabulary // 2))
    learnt = json.loads(learner.to_str())["model"]
    entries: dict[str, int] = learnt["vocab"]
    for piece in common:
        if len(entries) < vocabulary:
            entries.setdefault(piece, len(entries))
    merges = [tuple(merge) for merge in learnt["merges"]]
    tokenizer = Tokenizer(models.BPE(entries, merges, ignore_merges=True))  # a piece that is an entry stays whole
    tokenizer.pre_tokenizer = cuts
    return _with_template(tokenizer)


def _word_pattern(word: str) -> str:
    """A pattern that matches `word`, but not as a part of a longer word."""
    before = r"(?<![\w-])" if word[0].isalnum() else ""
    return before + re.escape(word) + (r"(?!\w)" if word[-1].isalnum() else "")


def _with_template(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    from tokenizers import AddedToken, decoders
    from transformers import PreTrainedTokenizerFast

    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=AddedToken(BEGIN, special=True),
        eos_token=AddedToken(END, special=True),
        pad_token=AddedToken(PAD, special=True),
        additional_special_tokens=[SYSTEM, USER, ASSISTANT],
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )
    fast.chat_template = OWN_TEMPLATE
    return fast
