"""The dialogues of tests/sweet."""

from tests.sweet.conftest import *  # noqa: F403
