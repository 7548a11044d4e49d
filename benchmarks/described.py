"""How much does the user of kind `described` know of real ColBench tasks, and does any of it leak?

    python benchmarks/described.py ../shared/colbench/backend_300.jsonl ../shared/colbench/backend_train_400.jsonl

For each file: facts a task, the share of the references' statements of each kind that have a sentence, leaks in all
sentences (the domain's own search, and pieces that a batch is searched for), and answers a second on one core. Whether
questions bring the facts out is what `sweetrl users check --user described` measures.
"""

from __future__ import annotations

import ast
import sys
import time
from collections import Counter
from pathlib import Path

from sweetrl.backend import Backend
from sweetrl.backend.facts import Describer
from sweetrl.colbench.described import DescribedUser
from sweetrl.colbench.files import read_tasks
from sweetrl.colbench.leaks import squeeze, told_fragment
from sweetrl.types import Message

KINDS = (ast.Assign, ast.AugAssign, ast.If, ast.For, ast.Return, ast.Raise)


def main() -> None:
    domain = Backend()
    for name in sys.argv[1:]:
        tasks = list(read_tasks(Path(name), domain))
        said, all_of, facts, leaks = Counter[str](), Counter[str](), [], 0
        for task in tasks:
            tree = ast.parse(task.ground_truth)
            describer = Describer(tree)
            describer.body(tree.body, ())
            facts.append(len(describer.facts))
            lost = {id(node) for unsaid in describer.unsaid for node in ast.walk(unsaid)}
            for node in ast.walk(tree):
                if isinstance(node, KINDS):
                    all_of[type(node).__name__] += 1
                    said[type(node).__name__] += id(node) not in lost
            fragments, request = domain.hidden_fragments(task), squeeze(task.problem_description)
            for fact in describer.facts:
                quoted = told_fragment(fragments, squeeze(fact.text), [request])
                leaks += domain.find_leak(task, fact.text) is not None or quoted is not None
        user, answers, started = DescribedUser(domain.facts), 0, time.monotonic()
        for task in tasks:
            for fact in domain.facts(task):
                messages = (Message("user", task.problem_description), Message("assistant", fact.question))
                user.reply(task, messages, 7)
                answers += 1
        rate = answers / (time.monotonic() - started)
        mean = sum(facts) / len(tasks)
        print(f"{Path(name).stem}: {len(tasks)} tasks, {mean:.2f} facts a task, {facts.count(0)} tasks without")
        print("  with a sentence: " + ", ".join(f"{kind} {said[kind]} of {all_of[kind]}" for kind in all_of))
        print(f"  leaks: {leaks} in {sum(facts)} sentences; {rate:,.0f} answers a second")


if __name__ == "__main__":
    main()
