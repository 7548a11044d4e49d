"""How long a server asks to be left alone."""

from __future__ import annotations

import email.utils
import time

from sweetrl.engines.retry import retry_after


def test_retry_after_as_a_number_and_as_a_date() -> None:
    assert retry_after({}) == 0.0
    assert retry_after({"retry-after": "7"}) == 7.0
    assert retry_after({"retry-after": "-3"}) == 0.0
    assert retry_after({"retry-after": "soon"}) == 0.0
    assert retry_after({"retry-after": "nan"}) == retry_after({"retry-after": "inf"}) == 0.0
    later = email.utils.formatdate(time.time() + 30, usegmt=True)
    assert 25 < retry_after({"retry-after": later}) <= 30
