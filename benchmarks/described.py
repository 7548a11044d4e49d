"""How much does the user of kind `described` know of real ColBench tasks, and does any of it leak?

    python benchmarks/described.py ../shared/colbench/backend_300.jsonl ../shared/colbench/backend_train_400.jsonl

For each file: facts a task, the share of the references' statements of each kind that have a sentence, how many facts
a question about each brings out, asked as `sweetrl users check` does and in other words, leaks in all sentences (the
domain's own search, and pieces that a batch is searched for), and answers a second on one core.
"""

from __future__ import annotations

import ast
import sys
import time
from collections import Counter
from pathlib import Path

from sweetrl.backend import Backend
from sweetrl.backend.facts import Describer
from sweetrl.backend.vocabulary import words_of
from sweetrl.colbench.described import DescribedUser
from sweetrl.colbench.files import read_tasks
from sweetrl.colbench.leaks import leaked_fragment, squeeze
from sweetrl.types import Message

# The questions of `users check` in other words, which say no more of the fact than a name that it is about.
OTHER_WORDS = {
    "default": "Suppose nobody says anything about {}: what then?",
    "constant": "Please say how much {} amounts to.",
    "table": "Please list the entries that belong to {}.",
    "condition": "In what way does {} influence things?",
    "empty": "And with no usable {} at all?",
    "computation": "By what arithmetic do you arrive at {}?",
    "return": "What does the caller finally receive?",
    "fields": "Which pieces of information come with {}?",
    "start": "Where does {} stand before anything happens?",
    "loop": "What is done with every one of {}?",
    "error": "Which situations are not acceptable?",
}
KINDS = (ast.Assign, ast.AugAssign, ast.If, ast.For, ast.Return, ast.Raise)


def main() -> None:
    domain = Backend()
    for name in sys.argv[1:]:
        tasks = list(read_tasks(Path(name), domain))
        described, all_of, facts, leaks = Counter[str](), Counter[str](), [], 0
        for task in tasks:
            tree = ast.parse(task.ground_truth)
            describer = Describer(tree)
            describer.body(tree.body, ())
            facts.append(len(describer.facts))
            lost = {id(node) for unsaid in describer.unsaid for node in ast.walk(unsaid)}
            for node in ast.walk(tree):
                if isinstance(node, KINDS):
                    all_of[type(node).__name__] += 1
                    described[type(node).__name__] += id(node) not in lost
            fragments, request = domain.hidden_fragments(task), squeeze(task.problem_description)
            for fact in describer.facts:
                quoted = leaked_fragment(fragments, squeeze(fact.text), [request])
                leaks += domain.find_leak(task, fact.text) is not None or quoted is not None
        user, answered, answers, started = DescribedUser(domain.facts), Counter[str](), 0, time.monotonic()
        for task in tasks:
            task_facts = domain.facts(task)
            for fact in task_facts:
                subject = words_of(fact.about[0]) if fact.about else "it"
                same = [other.text for other in task_facts if other.question == fact.question]
                for how, question in (("check", fact.question), ("other", OTHER_WORDS[fact.kind].format(subject))):
                    messages = (Message("user", task.problem_description), Message("assistant", question))
                    words = user.reply(task, messages, 7)
                    answered[how] += any(text in words for text in same)
                    answers += 1
        rate = answers / (time.monotonic() - started)
        mean = sum(facts) / len(tasks)
        print(f"{Path(name).stem}: {len(tasks)} tasks, {mean:.2f} facts a task, {facts.count(0)} tasks without")
        print("  with a sentence: " + ", ".join(f"{kind} {described[kind]} of {all_of[kind]}" for kind in all_of))
        shares = {how: count / sum(facts) for how, count in answered.items()}
        print(f"  told when asked as `users check` does: {shares['check']:.1%}, in other words: {shares['other']:.1%}")
        print(f"  leaks: {leaks} in {sum(facts)} sentences; {rate:,.0f} answers a second")


if __name__ == "__main__":
    main()
