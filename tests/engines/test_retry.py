"""How long a server asks to be left alone, and which one is asked, as plain functions."""

from __future__ import annotations

import email.utils
import time

import pytest

from sweetrl.engines.retry import PAUSE, SLACK, Pool, TransientError, retry_after


def test_retry_after_as_a_number_and_as_a_date() -> None:
    assert retry_after({}) == 0.0
    assert retry_after({"retry-after": "7"}) == 7.0
    assert retry_after({"retry-after": "-3"}) == 0.0
    assert retry_after({"retry-after": "soon"}) == 0.0
    assert retry_after({"retry-after": "nan"}) == retry_after({"retry-after": "inf"}) == 0.0
    later = email.utils.formatdate(time.time() + 30, usegmt=True)
    assert 25 < retry_after({"retry-after": later}) <= 30


def test_the_server_with_the_least_work_is_chosen() -> None:
    pool = Pool(["a", "b", "c"])
    with pool.lease() as one, pool.lease() as two, pool.lease() as three:
        assert {one.url, two.url, three.url} == {"a", "b", "c"}
        three.outstanding += 2
        with pool.lease() as four, pool.lease() as five:
            assert {four.url, five.url} == {one.url, two.url}
    assert [server.outstanding for server in pool.servers if server is not three] == [0, 0]


def test_prompts_of_a_group_stay_together_until_that_costs_too_much() -> None:
    pool = Pool(["a", "b"])
    usual = pool.choose("task-1")
    usual.outstanding = SLACK
    assert pool.choose("task-1") is usual
    usual.outstanding = SLACK + 1
    assert pool.choose("task-1") is not usual
    usual.outstanding = 0
    assert len({pool.choose(f"task-{number}").url for number in range(20)}) == 2


def test_a_server_that_failed_is_left_alone_for_a_while() -> None:
    now = [0.0]
    pool = Pool(["a", "b"], clock=lambda: now[0])

    def fail(wait: float) -> tuple[str, float]:
        with pytest.raises(TransientError) as caught, pool.lease() as server:
            raise TransientError("busy", wait)
        return server.url, caught.value.wait

    assert fail(100.0) == ("a", 0.0)  # the other may be asked at once
    assert {pool.choose().url for _ in range(4)} == {"b"}
    assert fail(0.0) == ("b", 0.0)
    assert fail(7.0) == ("a", 7.0)  # all have failed: better one of them than none
    now[0] = PAUSE + 1
    assert {pool.choose().url for _ in range(4)} == {"b"}
    now[0] = 101.0
    assert pool.choose().url == "a"
