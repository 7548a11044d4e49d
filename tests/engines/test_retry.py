"""How long a server asks to be left alone, and which one is asked, as plain functions."""

from __future__ import annotations

import email.utils
import time

from sweetrl.engines.retry import SLACK, Pool, retry_after


def test_retry_after_as_a_number_and_as_a_date() -> None:
    assert retry_after({}) == 0.0
    assert retry_after({"retry-after": "7"}) == 7.0
    assert retry_after({"retry-after": "-3"}) == 0.0
    assert retry_after({"retry-after": "soon"}) == 0.0
    assert retry_after({"retry-after": "nan"}) == retry_after({"retry-after": "inf"}) == 0.0
    later = email.utils.formatdate(time.time() + 30, usegmt=True)
    assert 25 < retry_after({"retry-after": later}) <= 30


def test_prompts_of_a_group_stay_together_until_that_costs_too_much() -> None:
    pool = Pool(["a", "b"])
    usual = pool.choose("task-1")
    usual.outstanding = SLACK
    assert pool.choose("task-1") is usual
    usual.outstanding = SLACK + 1
    assert pool.choose("task-1") is not usual
    usual.outstanding = 0
    assert len({pool.choose(f"task-{number}").url for number in range(20)}) == 2
