"""Chat templates of our own with the properties of well-known families, by the family's name."""

from __future__ import annotations

from typing import Any

_CHATML_END = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
_LATER = "{% set last = namespace(at=0) %}{% for m in messages %}{% if m['role'] == 'user' %}{% set last.at = loop.index0 %}{% endif %}{% endfor %}"  # noqa: E501
_SPOKEN = "{% set words = m['content'] %}{% if m['role'] == 'assistant' %}{% set words = words.split('</think>')[-1].lstrip('\n') %}{% endif %}"  # noqa: E501

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    + _CHATML_END
)
DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nHelp.<|im_end|>\n' }}{% endif %}" + CHATML
)
# Earlier thoughts are left out; without thinking the header has an empty thought that no earlier reply has.
QWEN3 = (
    _LATER
    + "{% for m in messages %}"
    + _SPOKEN
    + "{% if loop.index0 > last.at %}{% set words = m['content'] %}{% endif %}"
    + "{{ '<|im_start|>' + m['role'] + '\n' + words + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% if enable_thinking is defined and not enable_thinking %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
# The header opens the thought.
QWEN35 = (
    "{% for m in messages %}"
    + _SPOKEN
    + (
        "{{ '<|im_start|>' + m['role'] + '\n' + words + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
    )
)
# The system prompt stands before the last request; replies have a blank before them.
MISTRAL = (
    _LATER + "{{ '<s>' }}{% set own = messages[0]['content'] if messages[0]['role'] == 'system' else '' %}"
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' }}{% if loop.index0 == last.at and own %}"
    "{{ own + '\n\n' }}{% endif %}{{ m['content'] + '[/INST]' }}{% elif m['role'] == 'assistant' %}"
    "{{ ' ' + m['content'] + '</s>' }}{% endif %}{% endfor %}"
)
MISTRAL_SMALL = (
    "{{ '<s>' }}{% for m in messages %}{% if m['role'] == 'system' %}{{ '[SYSTEM]' + m['content'] + '[/SYSTEM]' }}"
    "{% elif m['role'] == 'user' %}{{ '[INST]' + m['content'] + '[/INST]' }}{% else %}{{ m['content'] + '</s>' }}"
    "{% endif %}{% endfor %}"
)
LLAMA2 = (
    "{% set own = messages[0]['content'] if messages[0]['role'] == 'system' else '' %}"
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ '<s>[INST] ' }}{% if own and loop.index0 == 1 %}"
    "{{ '<<SYS>>\n' + own + '\n<</SYS>>\n\n' }}{% endif %}{{ m['content'].strip() + ' [/INST]' }}"
    "{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'].strip() + ' </s>' }}{% endif %}{% endfor %}"
)
LLAMA3 = (
    "{{ '<s>' }}{% for m in messages %}{{ '<|start|>' + m['role'] + '<|stop|>\n\n' }}"
    "{{ (m['content'] | trim) + '<|eot|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant<|stop|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{{ '<s>' }}{% set own = messages[0]['content'] + '\n\n' if messages[0]['role'] == 'system' else '' %}"
    "{% for m in messages %}{% if m['role'] != 'system' %}{{ '<|start|>' + ('model' if m['role'] == 'assistant' else "
    "'user') + '\n' }}{{ (own if loop.index0 == (1 if own else 0) else '') + (m['content'] | trim) + '<|eot|>\n' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|start|>model\n' }}{% endif %}"
)
GEMMA4 = (
    "{{ '<s>' }}{% for m in messages %}{% set words = m['content'] %}{% if m['role'] == 'assistant' %}"
    "{% set words = words.split('<channel|>')[-1] | trim %}{% endif %}{{ '<|turn>' + ('model' if m['role'] == "
    "'assistant' else m['role']) + '\n' + words + '<turn|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn>model\n' }}{% endif %}"
)
# Thoughts are a channel of their own, in a field of the message, and those of earlier replies are left out.
HARMONY = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}"
    "{{ '<|start|>assistant<|channel|>final<|message|>' + m['content'] + '<|end|>' }}"
    "{% else %}{{ '<|start|>' + m['role'] + '<|message|>' + m['content'] + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)
DEEPSEEK = (
    "{{ '<s>' }}{% for m in messages %}"
    + _SPOKEN
    + (
        "{% if m['role'] == 'assistant' %}{{ '<|assistant|>' + words + '</s>' }}{% elif m['role'] == 'user' %}"
        "{{ '<|user|>' + words }}{% else %}{{ words }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    )
)
ZEPHYR = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '</s>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
# Every reply has a thought, an empty one where it has none.
GLM = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{{ '<|assistant|>\n<think></think>\n' + "
    "m['content'].split('</think>')[-1].strip() }}{% else %}{{ '<|' + m['role'] + '|>\n' + m['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

FAMILIES = {
    "Qwen2.5, SmolLM2, OLMo": CHATML,
    "Qwen2.5, with a system prompt of its own": DEFAULT_SYSTEM,
    "Qwen3": QWEN3,
    "Qwen3.5": QWEN35,
    "Mistral 7B, Nemo": MISTRAL,
    "Mistral Small": MISTRAL_SMALL,
    "Llama 2": LLAMA2,
    "Llama 3": LLAMA3,
    "Gemma 3": GEMMA,
    "Gemma 4": GEMMA4,
    "gpt-oss": HARMONY,
    "DeepSeek": DEEPSEEK,
    "Zephyr": ZEPHYR,
    "GLM": GLM,
}
TOKENIZERS = ("bytes", "blanks", "prepend", "metaspace", "first")
SPECIAL = [
    *("<s>", "</s>", "<|start|>", "<|stop|>", "<|eot|>", "<|im_start|>", "<|im_end|>", "<|end|>", "<|channel|>"),
    *("<|message|>", "<|return|>", "<|endoftext|>", "[INST]", "[/INST]", "<|user|>", "<|assistant|>", "<|system|>"),
    *("<|turn>", "<turn|>", "<|channel>", "<channel|>"),
]


def tokenizer_of(kind: str, template: str) -> Any:
    """A small tokenizer that treats blanks as one of TOKENIZERS does: byte-level (the second has tokens of runs of
    them, as GPT-NeoX), or three kinds of SentencePiece.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    words = ["What is the rate?", "one two 7", "Let me think.", "assistant system user model final analysis\n"] * 9
    if kind in ("bytes", "blanks"):
        inner = Tokenizer(models.BPE())
        inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        letters = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=letters, show_progress=False)
    else:
        inner = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
        if kind == "prepend":
            inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        else:
            scheme = "always" if kind == "metaspace" else "first"
            inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
        blank = decoders.Replace("▁", " ")
        inner.decoder = decoders.Sequence([blank, decoders.ByteFallback(), decoders.Fuse()])
        bytes_ = [f"<0x{number:02X}>" for number in range(256)]
        trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>", *bytes_], show_progress=False)
    inner.train_from_iterator(words, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>", unk_token="<unk>")
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    tokenizer.add_tokens([AddedToken(mark, normalized=False, special=False) for mark in ("<think>", "</think>")])
    if kind == "blanks":
        tokenizer.add_tokens([AddedToken(" " * count, normalized=True, special=False) for count in range(2, 9)])
    tokenizer.chat_template = template
    return tokenizer
