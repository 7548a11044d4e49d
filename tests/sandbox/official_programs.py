"""Programs that Python versions read differently, with the official value of a call: None where it fails.

Run as a script with the folder of the sandbox's modules, it prints what the Python that runs it makes of them.
"""

from __future__ import annotations

import json
import marshal
import os
import sys
import warnings
from typing import Any

PROGRAMS: list[tuple[str, str, str, Any]] = [  # what it is about, the program, the call, its value
    (
        "a comprehension sees no function beside it",
        "def g(x): return x\nv = [g(i) for i in [1]]\ndef f(): 0",
        "1",
        None,
    ),
    ("nor in a condition", "def g(x): return x\nif any({g(i): 1 for i in [1]}): pass", "1", None),
    ("nor as a default", "def g(x): return x\ndef f(a=[{g(i) for i in [1]}]): return a", "f()", None),
    ("but it sees the iterable", "n = [1, 2]\nv = [i for i in [j for j in n]]", "v", ["l", 1, 2]),
    ("and may be in a class", "class A:\n    n = [3]\n    v = {i: i for i in n}", "A.v", ["d", 3, 3]),
    ("nor does a test's", "def f(x): return x", "[f(i) for i in [1]]", None),
    ("what it assigns is global", "v = [(y := i) for i in [2]]\ndef f(): return y", "f()", 2),
    ("within a function all is as usual", "def f():\n    k = 2\n    return [i * k for i in [1]]", "f()", ["l", 2]),
    ("quotes in an f-string of the same", 'def f(d): return f"{d["a"]}"', "f({'a': 1})", None),
    ("others", "def f(d): return 'x' f\"{d['a']:>{2}}\" '\"'", "f({'a': 1})", 'x 1"'),
    ("three and one", "def f(d): return f'''{d['a']}'''", "f({'a': 1})", "1"),
    ("a backslash in a field", "def f(d): return f\"{'\\n'.join(d)}\"", "f('ab')", None),
    ("and outside", 'def f(d): return f"{d}\\t{d:\\t>2}"', "f('a')", "a\t\ta"),
    ("a field of two lines", "def f(d): return f'{d\n}'", "f(1)", None),
    ("a type parameter", "def f[T](x: T) -> T: return x", "f(1)", None),
    ("a type statement", "type X = int\ndef f(): return 1", "f()", None),
    ("exceptions without parentheses", "def f():\n    try: 1 / 0\n    except A, B: return 1", "f()", None),
    ("a missing name in an annotation", "def f(x: List[int]): return x", "f(1)", None),
    ("a variable's", "class A:\n    x: Missing = 1\ndef f(): return 1", "f()", None),
    ("a local's", "def f():\n    x: Missing = 1\n    return x", "f()", 1),
    ("a function's in a function", "def f():\n    def g(x) -> Missing: return x\n    return g(1)", "f()", None),
    ("postponed", "from __future__ import annotations\ndef f(x: List[int]): return x", "f(1)", 1),
    ("a dataclass", "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int = 2", "A().x", 2),
    (
        "floats added up",
        "def f(): return sum([0.1] * 10)",
        "f()",
        0.1 + 0.1 + 0.1 + 0.1 + 0.1 + 0.1 + 0.1 + 0.1 + 0.1 + 0.1,
    ),
    ("lists", "def f(): return sum([[1], [2]], start=[])", "f()", ["l", 1, 2]),
    ("texts", "def f(): return sum('ab', '')", "f()", None),
    ("names of the top level", "exec('z = 3')\nlocals()['y'] = z\nw = y", "w", 3),
    ("names of the evaluator", "test_case = e = 1\ndef f(): return 1", "test_case", "test_case"),
    ("its unbound name", "e = 1", "e", None),
    ("a function sees no function", "def g(): return 1\ndef f(): return g()", "f()", None),
    ("nor itself", "def f(n): return n and f(n - 1)", "f(1)", None),
    ("unless it is global", "global f\ndef f(n): return n and f(n - 1)", "f(1)", 0),
    ("nor what is imported beside it", "import math\ndef f(): return math.pi", "f()", None),
    ("an import of its own", "def f():\n    import math\n    return math.floor(1.5)", "f()", 1),
    ("a warning is none", "def f(x): return x is 1 and len('\\d')", "f(1)", 2),
    ("a return that swallows", "def f():\n    try: 1 / 0\n    finally: return 3", "f()", 3),
]


def main(folder: str) -> None:
    """Each program in a child of its own, by the code of the sandbox's child."""
    warnings.simplefilter("ignore")
    sys.path.insert(0, folder)
    child, official, values = map(__import__, ("child", "official", "values"))
    trees = []
    for _, source, call, _ in PROGRAMS:
        try:
            code = official.compiled(call, "", "eval", "split")
        except SyntaxError:
            code = None
        job = marshal.dumps(((source,), marshal.dumps([(call, code)]), "split", child.SEED, 1 << 20, 99))
        file = os.memfd_create("job")
        os.write(file, job)
        if (pid := os.fork()) == 0:
            child.runner(values, official)(file, len(job))
            os._exit(0)
        os.waitpid(pid, 0)
        trees.append(json.loads(os.pread(file, 1 << 20, len(job) + 16)).get("v"))  # past the time and the length
        os.close(file)
    print(json.dumps(trees))


if __name__ == "__main__":
    main(sys.argv[1])
