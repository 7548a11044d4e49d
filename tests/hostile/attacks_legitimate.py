"""No attacks, but what honest programs do in ways that a sandbox might forbid."""

from __future__ import annotations

from attack import Attacks

ATTACKS = Attacks()

ATTACKS.always(
    "legitimate",
    "asyncio",
    "async def f(): await asyncio.sleep(0.001); return x\nassert asyncio.run(f()) == x",
    "full",
    "import asyncio",
)
ATTACKS.always(
    "legitimate",
    "thread pool",
    "with ThreadPoolExecutor(4) as p: assert list(p.map(abs, [-x] * 8)) == [x] * 8",
    "full",
    "from concurrent.futures import ThreadPoolExecutor",
)
ATTACKS.always(
    "legitimate",
    "a file of its own",
    "try:\n    with open('note', 'w') as f: f.write('hello')\n    assert open('note').read() == 'hello'\nexcept PermissionError: pass",
    "full",
)
ATTACKS.always(
    "legitimate",
    "dataclass",
    "assert P(x).y == x",
    "full",
    "from dataclasses import dataclass\n@dataclass\nclass P:\n    y: int\n",
)
ATTACKS.always(
    "legitimate",
    "decimal, fractions, datetime",
    "assert Decimal(x) == Fraction(x) and date(2020, 1, x).day == x",
    "full",
    "from decimal import Decimal\nfrom fractions import Fraction\nfrom datetime import date",
)
ATTACKS.always(
    "legitimate",
    "sqlite in memory",
    "assert sqlite3.connect(':memory:').execute('select ?', (x,)).fetchone() == (x,)",
    "full",
    "import sqlite3",
)
ATTACKS.always(
    "legitimate",
    "numpy",
    "assert (numpy.arange(x) ** 2).sum() >= 0 and numpy.linalg.det(numpy.eye(x)) == 1",
    "full",
    "import numpy",
)
ATTACKS.always(
    "legitimate", "bs4", "assert bs4.BeautifulSoup('<b>1</b>', 'html.parser').b.text == '1'", "full", "import bs4"
)
ATTACKS.always(
    "legitimate",
    "time zones",
    "assert datetime.datetime(2020, 1, 1, tzinfo=zoneinfo.ZoneInfo('Europe/Vienna')).utcoffset().seconds == 3600",
    "full",
    "import datetime, zoneinfo",
)
ATTACKS.always(
    "legitimate",
    "regular expressions and hashing",
    "assert re.sub('a', 'b', 'a') == 'b' and len(hashlib.sha256(b'').hexdigest()) == 64",
    "full",
    "import re, hashlib",
)
ATTACKS.always(
    "legitimate", "recursion", "def f(n): return 0 if n == 0 else 1 + f(n - 1)\nassert f(800) == 800", "full"
)
ATTACKS.always(
    "legitimate",
    "an alarm of its own",
    "signal.signal(signal.SIGALRM, lambda *a: None)\nsignal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\nsignal.pause()",
    "full",
    "import signal",
)
