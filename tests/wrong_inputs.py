"""Wrong inputs, one after the other, each with a part of the sentence that it is answered with.

tests/test_wrong_inputs.py gives them to the command line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

TASK = {
    "problem_description": "I want a function for the price of a ticket. def price(hours)",
    "ground_truth": "def price(hours):\n    return hours * 7",
    "test_cases": {"test1": "price(1)", "test2": "price(2)"},
}
ROW = json.dumps(TASK)
TASKS = "".join(json.dumps({**TASK, "id": f"t-{number}"}) + "\n" for number in range(3))
ANSWER = '{"index": 0, "answer": "def price(hours): return 7"}\n'
PARAMETERS = "agent: {max_turns: 3}\ntracking: {uri: 'sqlite:///mlflow.db'}\n"
BASE = {"params.yaml": PARAMETERS, "tasks.jsonl": TASKS, "answers.jsonl": ANSWER}
PIPELINE = {
    "dvc.yaml": "stages: {tasks: {cmd: a}, collect: {cmd: b}}\n",
    "flows/__init__.py": "",
    "reproduce/small/params.yaml": "settings: {}\n",
}
SCORE = "score --tasks tasks.jsonl --answers answers.jsonl"
EVALUATE = "evaluate --tasks tasks.jsonl --user human"


@dataclass(frozen=True)
class Wrong:
    """A command line that cannot work: its words, files beside those of BASE, and what the answer says."""

    what: str
    words: str
    message: str
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    code: int = 1

    def prepare(self, folder: Path) -> None:
        """Write the files that the command finds."""
        for name, content in {**BASE, **self.files}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())


def parameters(text: str) -> dict[str, str]:
    """The files of a project with this params.yaml."""
    return {"params.yaml": text}


WRONG = [
    # The command line itself
    Wrong("a command mistyped", "evalute", "No such command 'evalute'. Did you mean 'evaluate'?", code=2),
    Wrong(
        "an option mistyped", "evaluate --task x.jsonl", "No such option: --task (Possible options: --tasks)", code=2
    ),
    Wrong("an option is missing", "score --tasks tasks.jsonl", "Missing option '--answers'", code=2),
    Wrong("an argument is missing", "export --out out", "Missing argument 'MODEL[@ALIAS]'", code=2),
    Wrong("a word for a number", "tasks --split train --count many --out x.jsonl", "'--count': ", code=2),
    Wrong("a port out of bounds", "serve models/policy --port 99999", "'--port': ", code=2),
    # params.yaml and --set
    Wrong(
        "an unknown parameter", "lineage", "unknown parameter `agnt` (did you mean `agent`?)", parameters("agnt: {}\n")
    ),
    Wrong(
        "a section pasted a second time",
        "lineage",
        "`rank` is there twice, in lines 1 and 3",
        parameters("rank: {margin: 0.2}\nseed: 1\nrank: {candidates: 32}\n"),
    ),
    Wrong(
        "broken YAML", "lineage", "params.yaml: line 2: this is not YAML", parameters("agent: {max_turns: 3\nseed: 1\n")
    ),
    Wrong("a value of the wrong type", "lineage", "parameter `seed` = 'seven'", parameters("seed: seven\n")),
    Wrong("a list for the parameters", "lineage", "expected sections of settings", parameters("- seed\n")),
    Wrong("--set mistyped", f"{SCORE} --set reward.tolerence=0.1", "(did you mean `reward.tolerance`?)"),
    Wrong("--set without a value", f"{SCORE} --set reward.tolerance", "write KEY=VALUE"),
    Wrong("--set of a section", f"{SCORE} --set reward=3", "`reward` is a section"),
    Wrong("--set of a wrong value", f"{SCORE} --set reward.workers=none", "parameter `reward.workers` = 'none'"),
    Wrong("an unknown domain", "show --suite backed", "`suite: backed` is not known"),
    Wrong("a domain that is nowhere", "show --suite nowhere.forms:Forms", "nowhere.forms"),
    # Files
    Wrong(
        "a file that is not there",
        "score --tasks tasks.json --answers answers.jsonl",
        "tasks.json: there is no such file",
    ),
    Wrong("a folder for a file", "score --tasks . --answers answers.jsonl", "this cannot be read as a file"),
    Wrong("an address for a file", "score --tasks s3://bucket/tasks.jsonl --answers answers.jsonl", "an address"),
    Wrong(
        "a line that is no JSON",
        SCORE,
        "answers.jsonl: line 2: this is not JSON",
        {"answers.jsonl": ANSWER + '{"ind\n'},
    ),
    Wrong("an answer to no task", SCORE, "holds tasks 0 to 2", {"answers.jsonl": '{"index": 9, "answer": "x"}\n'}),
    Wrong("a key is missing", SCORE, "the key `answer` is missing", {"answers.jsonl": '{"index": 0}\n'}),
    Wrong(
        "a key twice", SCORE, "`index` is there twice", {"answers.jsonl": '{"index": 0, "index": 1, "answer": "x"}\n'}
    ),
    Wrong("bytes that are no text", SCORE, "is not UTF-8", {"tasks.jsonl": b'{"a": "\xff"}\n'}),
    Wrong("an empty file", SCORE, "the file holds no tasks", {"tasks.jsonl": ""}),
    Wrong(
        "no Parquet", "score --tasks t.parquet --answers answers.jsonl", "no complete Parquet file", {"t.parquet": ROW}
    ),
    Wrong(
        "two tasks of one name",
        SCORE,
        "two tasks are called",
        {"tasks.jsonl": '{"id": "a", ' + ROW[1:] + "\n" + '{"id": "a", ' + ROW[1:] + "\n"},
    ),
    Wrong("a task without tests", SCORE, "test_cases", {"tasks.jsonl": ROW.replace("test_cases", "tests") + "\n"}),
    Wrong("rows that are no dialogues", "import answers.jsonl --out in", "neither a log"),
    Wrong("dialogues that are not there", "import logs.jsonl --out in", "logs.jsonl: there is no such file"),
    Wrong("a model's file that is none", "convert tasks.jsonl --to models/new", "this is no GGUF file"),
    Wrong("an output that is there", "tasks --split test --count 1 --out tasks.jsonl", "this is there already"),
    Wrong("the folder that one stands in", "view --export .", "`--export .`: this folder is there already"),
    Wrong("a program that is not there", "sandbox run none.py --call f(1)", "none.py"),
    Wrong("a page that is not there", "browser render none.html --out p.png", "none.html: there is no such file"),
    # Agents, users and what the registry has
    Wrong("too few tasks", "evaluate --tasks tasks.jsonl --limit 1 --user human", "at least 2 tasks"),
    Wrong("an impossible temperature", f"{EVALUATE} --temperature -1", "a temperature of -1 is impossible"),
    Wrong("a model's folder that is not there", f"{EVALUATE} --model models/none", "models/none"),
    Wrong("a folder that holds no model", f"{EVALUATE} --model empty", "empty", {"empty/readme": ""}),
    Wrong("an address that is none", f"{EVALUATE} --url localhost:8000 --model m", "localhost:8000"),
    Wrong("a server's model without a name", f"{EVALUATE} --url http://127.0.0.1:9/v1", "model"),
    Wrong("a user who knows nothing", "evaluate --tasks tasks.jsonl --model m", "the scripted user knows nothing"),
    Wrong(
        "a recording that is not there",
        "evaluate --tasks tasks.jsonl --user replay --recording none.jsonl",
        "none.jsonl",
    ),
    Wrong("no dialogues yet", "show t-1", "there are no dialogues here"),
    Wrong("a folder without dialogues", "show --dialogues .", ".: there are no dialogues here"),
    Wrong("a task that is not there", "play t-9 --tasks tasks.jsonl", "no task 't-9'"),
    Wrong("an empty registry", "lineage", "no version is registered yet"),
    Wrong("a version that is no number", "lineage sweetrl-agent/last", "sweetrl-agent"),
    Wrong("an agent that is not there", "export models/none --out out", "models/none"),
    # The pipeline
    Wrong("no project", "run", "run from the project's root"),
    Wrong("an unknown stage", "run --until colect", "no such stage (did you mean `collect`?)", PIPELINE),
    Wrong("--set without its section", "run --set candidates=1", "(did you mean `rank.candidates`?)", PIPELINE),
    Wrong("--set of broken YAML", "run --set seed=[", "this is not YAML", PIPELINE),
    Wrong("an unknown profile", "run --profile smal", "(did you mean `small`?)", PIPELINE),
]
