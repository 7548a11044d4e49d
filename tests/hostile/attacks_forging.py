"""Attacks on the verdict: values that lie, forged results, results of odd kinds, and sources that confuse."""

from __future__ import annotations

from attack import Attacks

ATTACKS = Attacks()

for name, body in {
    "equal to everything": "class A:\n    def __eq__(s, o): return True\nreturn A()",
    "int subclass equal to everything": "class A(int):\n    def __eq__(s, o): return True\n    __hash__ = int.__hash__\nreturn A(0)",
    "str subclass equal to everything": "class A(str):\n    def __eq__(s, o): return True\n    __hash__ = str.__hash__\nreturn A('0')",
    "lying __class__": "class A:\n    __class__ = int\n    def __int__(s): return 4\n    def __index__(s): return 4\nreturn A()",
    "float subclass": "class F(float):\n    def __eq__(s, o): return True\n    def hex(s): return '0x0p0'\nreturn F(-1)",
    "metaclass that claims int": "class M(type):\n    def __subclasscheck__(c, o): return True\n    def __instancecheck__(c, o): return True\n    __mro__ = (int, object)\nclass A(metaclass=M): pass\nreturn A()",
    "patched isinstance": "import builtins\nbuiltins.isinstance = lambda *a: True\nbuiltins.issubclass = lambda *a: True\nreturn 'x'",
    "patched json": "import json\njson.dumps = lambda *a, **k: '{\"v\": 1}'\njson.JSONEncoder.encode = lambda *a: '{\"v\": 1}'\nreturn 0",
    "mocked everything": "from unittest import mock\nreturn mock.ANY",
    "pickle gadget": "class A:\n    def __reduce__(s): return (print, ('got in',))\nreturn A()",
    "close every descriptor": "import os\nos.closerange(0, 64)",
}.items():
    ATTACKS.always("forging", name, body)
ATTACKS.always(
    "forging",
    "int subclass by its value",
    "class A(int):\n    def __eq__(s, o): return False\n    __hash__ = int.__hash__\nreturn A(x * x)",
    outcome="full",
)
for _name, _bytes, _outcome in (
    ("wrong frame for every test", "b'\\x00\\x00\\x00\\x07{\"v\":1}' * 5", "zero"),
    ("oversized frame", "b'\\x7f\\xff\\xff\\xff' + b'x' * 100", "any"),
    ("frame that is not JSON", "b'\\x00\\x00\\x00\\x03abc'", "any"),
    ("frame of deep JSON", "struct.pack('>I', 200000) + b'[' * 200000", "any"),
    ("frame with a verdict", "struct.pack('>I', 15) + b'{\"passed\": true}'[:15]", "any"),
    ("frame with equal keys", "struct.pack('>I', 15) + b'{\"v\":1,\"v\":999}'", "any"),
):
    ATTACKS.add(
        "forging",
        _name,
        _outcome,
        f"""
        import os, struct
        def square(x):
            for fd in range(3, 64):
                try: os.write(fd, {_bytes})
                except OSError: pass
            return -1
        """,
    )
ATTACKS.add(
    "forging",
    "frame flood",
    "any",
    """
    import os
    def square(x):
        while True:
            for fd in range(3, 64):
                try: os.write(fd, b'\\x00\\x00\\x00\\x07{"v":-1}' * 1000)
                except OSError: pass
    """,
)
ATTACKS.add(
    "forging",
    "half a frame, slowly",
    "any",
    """
    import os, time
    def square(x):
        for b in (b'\\x00', b'\\x00', b'\\x00', b'\\x07', b'{'):
            for fd in range(3, 64):
                try: os.write(fd, b)
                except OSError: pass
            time.sleep(0.05)
        time.sleep(100)
    """,
)
for name, source in {
    "half a surrogate pair in an exception": "def square(x): raise ValueError(chr(0xd800) * 9)",
    "half a surrogate pair as the value": "def square(x): return chr(0xdfff)",
}.items():
    ATTACKS.add("output", name, "zero", source)
ATTACKS.always(
    "forging",
    "a result file cut short",
    "for fd in range(3, 64):\n    try: os.ftruncate(fd, 0)\n    except OSError: pass\nos.kill(os.getpid(), 9)",
    setup="import os",
)
ATTACKS.always(
    "forging",
    "descriptors passed over a socket",
    "a, b = socket.socketpair()\ntry:\n    socket.send_fds(a, [b'x'], [0])\nexcept OSError: pass",
    outcome="full",
    setup="import socket",
)
for _name, _value in (
    ("True", "True"),
    ("NaN", "float('nan')"),
    ("None", "None"),
    ("a list around it", "[x * x]"),
    ("a tuple around it", "(x * x,)"),
    ("text of it", "str(x * x)"),
    ("a generator", "(y for y in [x * x])"),
    ("a huge integer", "1 << 5_000_000"),
    ("a huge decimal", "__import__('decimal').Decimal('1E+999999')"),
    ("a fraction to reduce", "__import__('fractions').Fraction(10**4000, 7**4000)"),
    ("a depth of 100,000", "__import__('functools').reduce(lambda a, _: [a], range(10**5), 0)"),
    ("itself", "(lambda l: l.append(l) or l)([])"),
    ("a width that explodes", "__import__('functools').reduce(lambda a, _: [a] * 10, range(30), 0)"),
    ("a million items", "list(range(10**6))"),
    ("colliding integers", "{i * (2**61 - 1) for i in range(20000)}"),
    ("colliding keys", "{i * (2**61 - 1): 0 for i in range(20000)}"),
    ("lone surrogates", "'\\ud800' * 10"),
    ("a long text", "'x' * (1 << 24)"),
    ("a module", "__import__('os')"),
    ("a function", "square"),
    ("a lambda", "lambda: x * x"),
    ("a class", "type('int', (int,), {})"),
    ("an open file", "open('f', 'w')"),
    ("a memory view", "memoryview(b'xyz')"),
    ("infinity", "float('inf')"),
    ("the wrong sign", "-x * x"),
):
    ATTACKS.add("results", f"returns {_name}", "zero", f"def square(x):\n    return {_value}")
for name, source in {
    "a coroutine": "async def square(x): return x * x",
    "a generator function": "def square(x): yield x * x",
}.items():
    ATTACKS.add("results", name, "zero", source)
for name, source in {
    "a float that is equal": "def square(x): return float(x * x)",
    "a complex number that is equal": "def square(x): return complex(x * x)",
}.items():
    ATTACKS.add("results", name, "full", source)
for name, source in {
    "wrong name": "def sqare(x): return x * x",
    "homoglyph": "def squаre(x): return x * x",
    "NUL": "def square(x): return x * x\0",
    "not Python": "I would return x * x, of course.",
    "name defined as None": "square = None",
}.items():
    ATTACKS.add("source", name, "zero", source)
ATTACKS.add("source", "parser nesting bomb", "zero", "def square(x): return " + "(" * 5000 + "x" + ")" * 5000)
ATTACKS.add("source", "unary nesting bomb", "any", "y = " + "-" * 200_000 + "1\ndef square(x): return -1")
ATTACKS.add("source", "list nesting bomb", "any", "y = " + "[" * 100_000 + "]" * 100_000 + "\ndef square(x): return -1")
ATTACKS.add(
    "source", "attribute chain bomb", "any", "def f(): return a" + ".b" * 100_000 + "\ndef square(x): return -1"
)
for name, source in {
    "constant folding bomb": "def square(x):\n    y = ((1 << 127) ** 120, 'x' * 4096 * 4096, (0,) * 99999999)\n    return -1",
    "encoding trick": "# -*- coding: utf-7 -*-\ndef square(x): return -1\n+AAo-def square(x): return x*x",
}.items():
    ATTACKS.add("source", name, "any", source)
ATTACKS.add(
    "source",
    "indentation bomb",
    "zero",
    "\n".join(" " * i + "if 1:" for i in range(200)) + "\n" + " " * 200 + "square = 1",
)
for name, source in {
    "lambda": "square = lambda x: x * x",
    "trap on import": "import sys\nsys.modules['math'] = None\ndef square(x): return x * x",
}.items():
    ATTACKS.add("source", name, "full", source)
ATTACKS.add("source", "a megabyte of comments", "full", "# " + "x" * 1_000_000 + "\ndef square(x): return x * x")
