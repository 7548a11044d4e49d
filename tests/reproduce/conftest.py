"""Dialogues are scored as in the tests of the stages."""

from tests.stages.conftest import long_answers_win as long_answers_win
