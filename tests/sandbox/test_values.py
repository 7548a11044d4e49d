"""Values written down and compared: the verdict is that of Python's own `==`, whatever the claim."""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import json
import math
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sweetrl.sandbox import Job, Rules, Sandbox, equal, render
from sweetrl.sandbox.claims import parse_frame
from sweetrl.sandbox.values import Encoder, Refused


def tree(value: Any) -> Any:
    return json.loads(json.dumps(Encoder(100_000).encode(value)))


numbers = (
    st.integers()
    | st.floats(allow_nan=False)
    | st.booleans()
    | st.fractions()
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.complex_numbers(allow_nan=False, allow_infinity=False)
    | st.sampled_from([0, 1, 1.0, True, 2**61 - 1, 2**64, 0.5, decimal.Decimal("0.5"), fractions.Fraction(1, 2)])
)
keys = numbers | st.text(max_size=3) | st.none() | st.tuples(st.integers(0, 2), st.text(max_size=1))
scalars = keys | st.binary(max_size=3) | st.dates() | st.datetimes() | st.timedeltas()
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
        | st.dictionaries(keys, inner, max_size=3).map(collections.OrderedDict)
        | st.sets(keys, max_size=3)
        | st.frozensets(keys, max_size=3)
    ),
    max_leaves=8,
)


@given(values, values)
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
def test_equal_is_pythons_own(a: Any, b: Any) -> None:
    assert equal(tree(a), tree(a))
    assert equal(tree(a), tree(b)) == (a == b)


@given(numbers, numbers)
@settings(max_examples=400, deadline=None)
def test_numbers_of_all_types_compare_as_python_does(a: Any, b: Any) -> None:
    assert equal(tree(a), tree(b)) == (a == b)
    assert equal(tree({a}), tree({b})) == ({a} == {b})


claims = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.tuples(
            st.sampled_from(
                ["l", "t", "d", "od", "ct", "s", "i", "inf", "nan", "c", "dec", "fr", "nd", "r", "re", "b", "o", "type"]
            ),
            inner,
            inner,
        ).map(list)
        | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=10,
)


@given(values, claims)
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_claim_raises_or_takes_long(expected: Any, claim: Any) -> None:
    began = time.process_time()
    for rules in (Rules(), Rules(tolerance=1e-6, nan=True, arrays=True)):
        assert equal(tree(expected), claim, rules) in (True, False)
    render(claim)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("shape", [["l", 1 << 40], [[0], 1 << 40], "ab", [True], [-1, -1], None])
def test_a_claimed_shape_that_is_invalid_is_never_computed_with(shape: Any) -> None:
    """A text times a number is a text of that length: such a claim must cost nothing."""
    for rules in (Rules(), Rules(arrays=True)):
        assert not equal(1, ["nd", shape, 1], rules)
        assert not equal(["nd", [1], 1], ["nd", shape, 1], rules)
        assert not equal(None, ["nd", shape, None], rules)


@pytest.fixture(scope="module")
def sandbox() -> Any:
    with Sandbox(workers=1) as shared:
        yield shared


@given(values)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_a_solution_returns_arrives_and_the_next_verdict_is_right(sandbox: Sandbox, value: Any) -> None:
    source = (
        (
            "from datetime import *\nimport datetime as _d\nfrom decimal import Decimal\n"
            "from fractions import Fraction\n"
            "from collections import OrderedDict\ninf = float('inf')\ninfj = complex(0, inf)\n"
            f"class Always:\n    def __eq__(s, o): return True\n"
            f"def f(): return {value!r}\ndef g(): return 5\n"
        )
        .replace("datetime.date", "_d.date")
        .replace("datetime.timedelta", "_d.timedelta")
    )
    outcome = sandbox.submit(Job((source,), ("f()", "g()"))).result()
    assert outcome.calls[0].kind == "value", outcome.calls[0]
    assert equal(tree(value), outcome.calls[0].tree)
    assert outcome.calls[1].tree == 5


HOSTILE = {
    "colliding integers": ["s", *({"i": 0} and [["i", hex(i * (2**61 - 1))] for i in range(20_000)])],
    "huge hexadecimal": ["i", "0x" + "f" * 1_000_000],
    "huge decimal": ["dec", "9" * 1_000_000],
    "far decimal": ["dec", "1E+999999999"],
    "fraction to reduce": ["fr", "0x" + "f" * 15_000, "0x" + "e" * 15_000],
    "deep": json.loads("[" * 900 + "]" * 900),
    "array with a lying shape": ["nd", [10**9, 10**9], 1],
    "array with no end": ["nd", [1 << 62], 1],
    "long range": ["r", 10**30, 0, 1],
    "odd map": ["d", 1],
    "no tag": [],
    "tag that is no text": [[], 1],
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize(
    "expected",
    [5, 2.5, "x", [1], {1: 2}, {1, 2}, set(range(20_000)), decimal.Decimal(1), fractions.Fraction(1, 3), 2**200],
)
def test_hostile_claims_are_unequal_at_once(name: str, expected: Any) -> None:
    began = time.process_time()
    assert not equal(tree(expected), HOSTILE[name])
    assert not equal(tree(expected), HOSTILE[name], Rules(tolerance=1e-6, nan=True, arrays=True))
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    "payload",
    [b"", b"abc", b"[]", b"{}", b'{"x":1}', b'{"v":1,"r":2}', b"[" * 100_000, b'{"v":' + b"9" * 100_000 + b"}", b"\xff",
     b'{"v":["i"]}', b'{"v":{}}', b'{"v":["l",{}]}', b'{"v":["l",[]]}', b'{"v":["d",1]}', b'{"v":["x",1]}',
     b'{"v":[1]}', b'{"v":["nd",[1,1e9],1]}', b'{"v":["nd",[2],1]}', b'{"v":["nd",[' + b"1," * 50_000 + b'1],5]}',
     b'{"v":["i",5]}',
     b'{"v":' + b'["l",' * 200 + b"1" + b"]" * 200 + b"}", b'{"v":["l"' + b",{}" * 300_000 + b"]}", b'{"v":1e999}',
     b'{"v":["l"' + b",1" * 1_000 + b"]}", b'{"v":["l"' + b',["l"]' * 1_000 + b"]}", b'{"v":["date",2020,1,true]}',
     b'{"v":NaN}', b'{"v":["l",Infinity]}', b'{"v":["re",["l"]]}', b'{"v":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001,
     b'{"e":1}', b'{"e":["passed","x"]}', b'{"e":["value","x"]}', b'{"r":5}', b'{"e":["exception",5]}'],
)  # fmt: skip
def test_frames_that_are_not_of_the_form_are_refused(payload: bytes) -> None:
    assert parse_frame(payload, 1_000).kind == "refused"


def test_nan_and_tolerance_are_choices() -> None:
    nan = float("nan")
    assert not equal(tree(nan), tree(nan))
    assert equal(tree(nan), tree(nan), Rules(nan=True))
    assert equal(tree([math.nan]), tree([math.nan]))  # one object, as in one process
    assert not equal(tree([nan]), tree([nan]))
    assert not equal(tree(0.1 + 0.2), tree(0.3))
    assert equal(tree([0.1 + 0.2]), tree([0.3]), Rules(tolerance=1e-9))
    assert not equal(tree({0.1 + 0.2: 1}), tree({0.3: 1}), Rules(tolerance=1e-9))


def test_containers_keep_their_kinds() -> None:
    assert not equal(tree([1]), tree((1,)))
    assert equal(tree({1, 2}), tree(frozenset({2, 1})))
    assert equal(tree({"a": 1}.keys()), tree({"a"}))
    assert equal(tree(collections.Counter(a=1)), tree(collections.Counter(a=1, b=0)))
    assert not equal(tree(collections.Counter(a=1)), tree({"a": 1, "b": 0}))
    ordered = collections.OrderedDict
    assert not equal(tree(ordered(a=1, b=2)), tree(ordered(b=2, a=1)))
    assert equal(tree(ordered(a=1, b=2)), tree({"b": 2, "a": 1}))
    moved_to_end = ordered(a=1, b=2)
    moved_to_end.move_to_end("a")
    assert equal(tree(moved_to_end), tree(ordered(b=2, a=1))) and not equal(tree(moved_to_end), tree(ordered(a=1, b=2)))
    assert equal(tree(range(0, 3)), tree(range(0, 3, 1))) and equal(tree(range(5, 5)), tree(range(0)))
    assert equal(tree(int), tree(int)) and not equal(tree(int), tree(str))
    assert equal(tree(b"x"), tree(bytearray(b"x")))
    aware = datetime.datetime(2020, 1, 1, 12, tzinfo=datetime.UTC)
    moved = aware.astimezone(datetime.timezone(datetime.timedelta(hours=2)))
    assert equal(tree(aware), tree(moved)) and not equal(tree(aware), tree(aware.replace(tzinfo=None)))


def test_arrays() -> None:
    import numpy

    single, many = numpy.array([5]), numpy.array([[1.0, 2.0], [3.0, 4.0]])
    # an array of one element has a truth value, one of four has none
    assert equal(tree(5), tree(single)) and not equal(tree(many), tree(many))
    fixed = Rules(arrays=True)
    assert equal(tree(many), tree(many.tolist()), fixed) and not equal(tree(5), tree(single), fixed)
    with pytest.warns(PendingDeprecationWarning):
        matrix = numpy.matrix([[1.0, 2.0], [3.0, 4.0]])
    assert equal(tree(many), tree(matrix), fixed) and not equal(tree(matrix), tree([1.0, 2.0, 3.0, 4.0]), fixed)
    assert equal(tree(2.5), tree(numpy.float64(2.5))) and equal(tree(0), tree(numpy.int64(0)))


def test_what_cannot_be_written_down_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    for value in (loop, list(range(200_000)), {0: [loop]}):
        with pytest.raises(Refused):
            tree(value)
    assert not equal(tree(object()), tree(object()))
    assert not equal(tree(len), tree(max)) and equal(tree(len), tree(len))
