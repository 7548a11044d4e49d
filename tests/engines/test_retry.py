"""How long a server asks to be left alone, and which one is asked, as plain functions."""

from __future__ import annotations

import email.utils
import time

from sweetrl.engines.retry import PAUSE, SLACK, Pool, retry_after


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


def test_a_group_stays_where_it_was_when_another_server_fails() -> None:
    pool = Pool(["a", "b", "c"])
    groups = [f"task-{number}" for number in range(30)]
    usual = {group: pool.choose(group).url for group in groups}
    pool.failed(pool.servers[0])
    moved = {group: pool.choose(group).url for group in groups}
    assert set(usual.values()) == {"a", "b", "c"}
    assert all(moved[group] == url for group, url in usual.items() if url != "a")
    assert {moved[group] for group, url in usual.items() if url == "a"} == {"b", "c"}


def test_a_server_that_failed_is_left_alone_for_a_while() -> None:
    now = [0.0]
    pool = Pool(["a", "b"], clock=lambda: now[0])
    first, second = pool.servers
    pool.failed(first)
    assert {pool.choose().url for _ in range(4)} == {"b"}
    pool.failed(second)  # all have failed: better one of them than none
    assert {pool.choose().url for _ in range(4)} == {"a", "b"}
    now[0] = PAUSE + 1
    assert {pool.choose().url for _ in range(4)} == {"a", "b"}


def test_a_server_that_asked_for_time_gets_it() -> None:
    now = [0.0]
    pool = Pool(["a", "b"], clock=lambda: now[0])
    first, second = pool.servers
    pool.hold(first, 7.0)
    pool.hold(first, 3.0)  # a later, shorter wish does not shorten the first
    assert pool.held() == 0.0
    assert {pool.choose(f"task-{number}").url for number in range(8)} == {"b"}
    pool.failed(second)
    assert pool.choose().url == "b"  # a failure is a reason to look elsewhere, a wish is to be obeyed
    pool.hold(second, 5.0)
    assert pool.held() == 5.0
    now[0] = 6.0
    assert pool.held() == 0.0 and pool.choose().url == "b"
    now[0] = 7.0
    assert {pool.choose().url for _ in range(4)} == {"a", "b"}
