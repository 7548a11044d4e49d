"""Inputs that reach far into each parser, inputs that once broke a parser, and random ones: no error gets past it."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz_targets import TARGETS
from fuzzing import run_target
from hypothesis import given, settings
from hypothesis import strategies as st

ODD = (b"[" * 3000, b"\xed\xa0\x80", b"9" * 5000, b"\\ud800")
FINDS = sorted(path for path in (Path(__file__).resolve().parent / "finds").glob("*-*") if path.is_file())


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_pass_and_some_of_them_are_taken(name: str) -> None:
    """A target whose every seed is refused would test nothing."""
    target = TARGETS[name]
    taken = 0
    for seed in target.seeds:
        try:
            target.run(seed)
            taken += 1
        except target.allowed:
            pass
    assert taken


@pytest.mark.parametrize("find", FINDS, ids=[path.name for path in FINDS])
def test_inputs_that_broke_a_parser_stay_mended(find: Path) -> None:
    run_target(find.name.rpartition("-")[0].partition("-")[0], find.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_pieces_of_seeds_and_anything_else_pass(name: str, data: st.DataObject) -> None:
    seed = data.draw(st.sampled_from(TARGETS[name].seeds))
    at, end = (data.draw(st.integers(0, len(seed))) for _ in range(2))
    middle = data.draw(st.binary(max_size=12) | st.sampled_from(ODD))
    run_target(name, seed[:at] + middle + seed[end:])
