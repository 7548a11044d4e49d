"""An independent, minimal evaluator by the official rules, for throw-away subprocesses only: it runs all in-process.

Use as `python -c "import official_evaluator; official_evaluator.main()"`: its rules include the name of its module.
stdin: one JSON array of [reference, answer, [call, ...]]; stdout: for each of them the list of verdicts, test by test.
Written from the rules in docs/sandbox.md, with no code of the package: the tests compare the sandbox with it.
"""

import contextlib
import importlib
import json
import multiprocessing  # noqa: F401 - part of the namespace that solutions see
import os
import signal
import sys
import time
from queue import Empty  # noqa: F401

WORDS = ["import os", "from os", "import sys", "from sys", "sudo", "transformers", "exit(", "quit(", "argparse"]


def on_alarm(number, frame):
    raise TimeoutError("slow")


def output(function_definition, test_case):
    try:
        if sys.version_info >= (3, 13):  # each call of locals() gives another copy there
            space = {"function_definition": function_definition, "test_case": test_case}
            exec(function_definition, globals(), space)
            space.update(function_definition=function_definition, test_case=test_case)
            space.pop("e", None)
            return eval(test_case, globals(), space)
        exec(function_definition)
        return eval(test_case)
    except Exception as e:  # noqa: F841 - its name is part of the rules
        return None
    except SystemExit:  # officially this ends the whole evaluation
        return None


def verdicts(reference, answer, calls):
    if any(word in answer for word in WORDS):
        return [False] * len(calls)
    if "```python" in answer:
        answer = answer.split("```python")[1].split("```")[0]
    if "```" in answer:
        answer = answer.split("```")[1].split("```")[0]
    results = []
    for call in calls:
        expected = output(reference, call)
        # The rule says one second by the clock; the processor's clock keeps a busy machine out of it.
        signal.signal(signal.SIGVTALRM, on_alarm)
        signal.setitimer(signal.ITIMER_VIRTUAL, 1)
        try:
            actual = output(answer, call)
        except TimeoutError:
            actual = None
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        try:
            results.append(bool(expected == actual and expected is not None))
        except Exception:  # officially only ValueError is caught; any other ends the whole evaluation
            results.append(False)
    return results


def main():
    items = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    own = set(globals())
    with contextlib.suppress(ImportError):
        importlib.import_module("numpy")  # so that no solution's second is spent on it
    started, cpu = time.perf_counter(), time.process_time()
    rows = []
    for item in items:
        rows.append(verdicts(*item))
        for name in set(globals()) - own:  # as if every solution had a process of its own
            del globals()[name]
    seconds = {"wall": time.perf_counter() - started, "cpu": time.process_time() - cpu}
    json.dump({"verdicts": rows, **seconds}, out)
    out.flush()
    os._exit(0)
