"""The small base agent's tokenizer: byte-level BPE in which a number with the blank before it is one token, and a chat
template.

The person's " 90" and the program's " 90" are the same token, right after the word that it belongs to: copying a value
is then copying one token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BEGIN, SYSTEM, USER, ASSISTANT, END, PAD = "<|begin|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|pad|>"

CHAT_TEMPLATE = (
    "{{ '<|begin|>' }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def build_tokenizer(
    texts: Iterable[str], vocabulary: int, numbers: int = 0, words: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE of at most `vocabulary` entries on `texts`.

    The numbers 0 .. `numbers`-1 and `words` (all with the blank before them) are made one token each. Deterministic for
    equal texts in equal order.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" ?\d+"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [BEGIN, SYSTEM, USER, ASSISTANT, END, PAD]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Enough repetitions that each of these is merged into one token whatever the texts hold.
    whole = ["".join((*(f" {number}" for number in range(numbers)), *words))] * 2000
    tokenizer.train_from_iterator([*texts, *whole], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=AddedToken(BEGIN, special=True),
        eos_token=AddedToken(END, special=True),
        pad_token=AddedToken(PAD, special=True),
        additional_special_tokens=[SYSTEM, USER, ASSISTANT],
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast
