"""The shipped prompts, and prompts of one's own."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from sweetrl.backend import Backend
from sweetrl.colbench.prompts import load_prompt
from sweetrl.config.settings import parse_settings
from sweetrl.errors import UserError
from sweetrl.frontend import Frontend
from sweetrl.types import Task

BACKEND = Backend()
BYTES = {"backend": "a2951679676b6a594118b415b1d74725", "frontend": "112b93928af4f3f98b65f17c24371007"}


@pytest.mark.parametrize(
    ("max_turns", "replies", "last"),
    [
        (1, "one reply", "first"),
        (7, "seven replies", "seventh"),
        (12, "twelve replies", "twelfth"),
        (13, "13 replies", "last"),
    ],
)
def test_the_full_prompt_names_the_turns_that_there_are(max_turns: int, replies: str, last: str) -> None:
    settings = parse_settings({"agent": {"max_turns": max_turns}})
    for domain in (Backend(), Frontend()):
        text = domain.configured(settings).system_prompt("full")
        assert f"You have {replies} in all" in text and "{replies}" not in text and "{last}" not in text
    assert f"and the {last} is taken as your answer" in BACKEND.configured(settings).system_prompt("full")


def test_the_full_prompts_of_ten_turns_are_the_bytes_that_agents_were_trained_with() -> None:
    digests = {d.name: hashlib.md5(d.system_prompt("full").encode()).hexdigest() for d in (Backend(), Frontend())}
    assert digests == BYTES


def test_the_words_before_c_are_those_that_the_shipped_bases_were_taught_with() -> None:
    prefixes = [domain.privileged_prompt(Task("t", "?", "\nIt.\n")) for domain in (Backend(), Frontend())]
    assert prefixes == ["The finished program is:\nIt.\n", "The finished page is:\nIt.\n"]


def test_a_prompt_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "own.txt"
    path.write_text("\n Ask {things}. é\n", encoding="utf-8")
    assert BACKEND.system_prompt(str(path)) == "Ask {things}. é"


def test_a_bad_prompt_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9")
    (tmp_path / "empty.txt").write_text(" \n")
    words = "You are an assistant. " * 30  # and not the name of a file with them
    for wrong in (*(str(tmp_path / name) for name in ("none.txt", "bad.txt", "none.txt/x")), words, "a\0b"):
        with pytest.raises(
            UserError, match=r"there is no such prompt in UTF-8; name .* or one of: short, full"
        ) as refused:
            load_prompt(wrong)
        assert len(str(refused.value)) < 400 and "\0" not in str(refused.value)
    with pytest.raises(UserError, match="is empty"):
        BACKEND.system_prompt(str(tmp_path / "empty.txt"))
