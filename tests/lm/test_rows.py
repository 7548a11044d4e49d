"""Rows in a file: as given, whatever they share, whoever else appends to the same file."""

from __future__ import annotations

import random

import pytest

from sweetrl.lm.rows import Row, RowFile, choose, lengths_of, longest_of, reply_tokens_of, sequences_of


def some_rows(count: int = 300) -> list[Row]:
    """Replies to the same prompts, dialogues that go on, and rows that have nothing in common."""
    chance = random.Random(1)
    rows, prompt = list[Row](), tuple(range(40))
    for number in range(count):
        if number % 7 == 0:
            grown = prompt + tuple(chance.choices(range(200_000), k=30))
            prompt = grown if number % 21 else grown[-chance.randint(2, 60) :]
        reply = tuple(chance.choices(range(200_000), k=chance.randint(1, 20)))
        middle = len(prompt) // 2
        spans = ((len(prompt), len(prompt) + len(reply)),)
        starts = (0, middle) if number % 3 and middle > 1 else (0,)
        rows.append(Row(prompt + reply, ((1, middle), *spans) if starts[1:] else spans, starts))
    return rows


def test_rows_come_back_as_they_were() -> None:
    rows = some_rows()
    kept = RowFile(rows)
    assert kept == rows and list(kept) == rows and kept[-1] == rows[-1] and kept[3:9:2] == rows[3:9:2]
    assert list(lengths_of(kept)) == lengths_of(rows) and list(reply_tokens_of(kept)) == reply_tokens_of(rows)
    assert list(longest_of(kept)) == longest_of(rows) and sequences_of(kept) == sequences_of(rows)
    assert kept != rows[:-1] and kept != [*rows[:-1], rows[0]] and kept != "rows"
    with pytest.raises(IndexError):
        kept[len(rows)]


def test_what_rows_share_is_written_once() -> None:
    prompt = tuple(range(1000))
    shared = RowFile(Row((*prompt, number), ((1000, 1001),)) for number in range(50))
    assert shared._file.seek(0, 2) == 4 * (1001 + 49)


def test_chosen_rows_read_the_same_file_and_grow_by_themselves() -> None:
    rows = some_rows()
    kept = RowFile(rows)
    places = [5, 6, 200, 7]
    few = kept.choose(places)
    few.append(rows[0])
    kept.append(rows[1])
    few.append(rows[2])
    assert few == [*(rows[place] for place in places), rows[0], rows[2]] and kept == [*rows, rows[1]]
    assert choose(tuple(rows), places) == tuple(rows[place] for place in places)
    assert list(few.lengths) == [len(row.token_ids) for row in few]
