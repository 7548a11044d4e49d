"""Real ColBench tasks with a small real language model that plays agent and user: does everything around it hold?

    python benchmarks/real_tasks.py --tasks ../shared/colbench/backend_300.jsonl --count 20 [--model models/smollm2]
    python benchmarks/real_tasks.py --tasks ../shared/colbench/frontend_150.jsonl --count 5 --suite frontend
    ... --vllm .venv-vllm/bin/python       # through a vLLM server, with that environment's Python

For pages the user is the scripted one, who compares rendered pages: the model cannot see.

Not about success, which is near 0 for so small a model: about what nobody has scripted. Dialogues are collected by
`sweetrl collect` and read back. The table says what was said; then follow the checks, each on all dialogues:

ids        the token ids of every reply are the text that is stored, and end with the end of a turn if the reply ended
marker     a dialogue ends at the first reply with the marker, or at the last turn; its answer is what the rules take
length     no reply of the user is longer than its limit
leaks      what the leak check finds in the stored words is what was counted while they were said
hidden     no stretch of the reference stands in what the agent reads, but where a leak is counted
scores     a second scoring gives every answer the same reward and verdicts
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from sweetrl.colbench.domain import Domain
from sweetrl.colbench.find import load_domain
from sweetrl.colbench.leaks import leaks_of, squeeze
from sweetrl.colbench.markers import visible_reply
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import EngineSettings, Settings, load_settings
from sweetrl.engines.chat import ChatFormat
from sweetrl.engines.policy import watched
from sweetrl.models.load import load_tokenizer
from sweetrl.types import Trajectory

# A vLLM on the CPU, small, and without a thread for each core.
SMALL = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=Path, required=True, help="an official task file")
    parser.add_argument("--count", type=int, default=20, help="how many tasks, from the first")
    parser.add_argument("--suite", default="backend")
    parser.add_argument("--user", default="", help="who answers, as `described`; empty: the model, of pages a script")
    parser.add_argument("--model", type=Path, default=Path("models/smollm2"), help="plays the agent and the user")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=256, help="limit of a reply of the agent")
    parser.add_argument("--user-tokens", type=int, default=96, help="limit of a reply of the user")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--vllm", default="", help="the Python of an environment with vLLM; empty: transformers")
    parser.add_argument("--show", action="store_true", help="print the first dialogue")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = write_settings(folder, options)
        out = folder / "dialogues"
        started = time.monotonic()
        with server(settings, options, folder) as urls:
            command = [sys.executable, "-m", "sweetrl.cli", "collect", "--tasks", str(options.tasks.resolve())]
            command += ["--limit", str(options.count), "--out", str(out), "--concurrency", str(options.concurrency)]
            command += ["--user", user_of(options), *urls]
            done = subprocess.run(command, cwd=folder, check=False)
        if done.returncode:
            sys.exit(done.returncode)
        seconds = time.monotonic() - started
        dialogues = list(TrajectoryStore(out).read())
        domain = load_domain(settings)
        print(f"| {options.suite}, {'vLLM' if options.vllm else 'transformers'} | |\n|---|---|")
        for what, value in facts(dialogues):
            print(f"| {what} | {value} |")
        print(f"| seconds, with start | {seconds:.0f} |", flush=True)
        found = dict(checks(dialogues, domain, ChatFormat(load_tokenizer(options.model))))
        for check, wrong in found.items():
            print(f"{check}: {wrong or 'holds'}", flush=True)
        if options.show:
            for message in dialogues[0].messages:
                print(f"--- {message.role}\n{message.content}")
        sys.exit(any(found.values()))


def user_of(options: argparse.Namespace) -> str:
    """Who talks with the agent: the model itself; of pages the scripted user, because the model cannot see."""
    return str(options.user) or ("scripted" if options.suite == "frontend" else "llm")


def write_settings(folder: Path, options: argparse.Namespace) -> Settings:
    """Write params.yaml for `sweetrl collect` to `folder`, and read it."""
    model = str(options.model.resolve())
    values = {
        "seed": 7,
        "suite": options.suite,
        "model": {"base": model, "dtype": options.dtype, "threads": 1},
        "agent": {
            "prompt": "full",
            "max_turns": options.turns,
            "max_new_tokens": options.tokens,
            "temperature": 0.7,
        },
        "simulator": {
            "kind": user_of(options),
            "server": {"model": model, "max_new_tokens": options.user_tokens},
        },
        "reward": {"semantics": "official"} if options.suite == "backend" else {},
    }
    path = folder / "params.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return load_settings(path)


@contextmanager
def server(settings: Settings, options: argparse.Namespace, folder: Path) -> Iterator[list[str]]:
    """Yield what tells `sweetrl collect` who speaks: one vLLM server for both, if one is asked for."""
    if not options.vllm:
        yield []
        return
    os.environ.update(SMALL)
    engine = EngineSettings(
        kind="vllm",
        command=f"'{Path(options.vllm).absolute()}' -m vllm.entrypoints.openai.api_server --model {{model}}",
        # Prompts prefilled in parts end vLLM 0.32 on CPUs where requests have seeds.
        arguments="--enforce-eager --no-enable-chunked-prefill --max-model-len 8192",
        start_seconds=1800.0,
    )
    log = folder / "vllm.log"
    try:
        with watched(engine, settings.model, log) as (running, _):
            name = running.model
            user = ["--user-url", running.urls, "--user-model", name] if user_of(options) == "llm" else []
            yield ["--engine", "vllm", "--url", running.urls, *user]
    except BaseException:
        if log.exists():
            print(*log.read_text(errors="replace").splitlines()[-15:], sep="\n", file=sys.stderr)
        raise


def facts(dialogues: Sequence[Trajectory]) -> Iterator[tuple[str, Any]]:
    """What was said, as rows of the table."""
    turns = [turn for one in dialogues for turn in one.turns]
    said = [message.content for one in dialogues for message in one.messages[2::2]]
    scored = [one for one in dialogues if one.reward is not None]
    yield "dialogues", len(dialogues)
    yield (
        "outcomes",
        ", ".join(f"{name} {count}" for name, count in Counter(d.outcome for d in dialogues).most_common()),
    )
    yield "errors", ", ".join(sorted({one.error for one in dialogues if one.error})) or "none"
    yield "replies", len(turns)
    yield "of them cut by the token limit", sum(turn.finish_reason == "length" for turn in turns)
    yield "of them with the marker", sum("I WANT TO ANSWER:" in turn.raw for turn in turns)
    yield (
        "first replies with code and without the marker",
        sum(
            "```" in one.turns[0].raw and "I WANT TO ANSWER:" not in one.turns[0].raw for one in dialogues if one.turns
        ),
    )
    yield "sampled tokens", sum(len(turn.token_ids) for turn in turns)
    yield "user's replies", len(said)
    yield "longest, characters", max(map(len, said), default=0)
    yield "dialogues with a leak", sum("leaks" in one.extra for one in dialogues)
    kinds = Counter(kind.split(":")[1] for one in dialogues for kind in one.extra.get("leaks", "").split())
    yield "leaks by kind", ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()) or "none"
    yield "mean reward", f"{sum(one.reward or 0.0 for one in scored) / max(1, len(scored)):.3f} of {len(scored)} scored"
    yield "successes", sum(one.success for one in dialogues)
    reasons = Counter(test.reason for one in dialogues for test in one.tests)
    yield "verdicts of tests", ", ".join(f"{reason} {count}" for reason, count in reasons.most_common()) or "none"


def checks(dialogues: Sequence[Trajectory], domain: Domain, chat: ChatFormat) -> Iterator[tuple[str, list[str]]]:
    """Yield every check with what is wrong: names of dialogues, and where."""
    limit = domain.settings.simulator.reply_characters or domain.reply_characters
    turns = domain.settings.agent.max_turns
    whole = [one for one in dialogues if one.outcome != "lost"]
    yield "ids", [f"{one.task.id}: message {turn.message_index}" for one in dialogues for turn in one.turns
                  if not _same_words(turn, chat)]  # fmt: skip
    yield "marker", [one.task.id for one in whole if not _ends_by_the_rules(one, domain, turns)]
    yield "length", [f"{one.task.id}: {len(message.content)} characters" for one in dialogues
                     for message in one.messages[2::2] if len(message.content) > limit]  # fmt: skip
    again = {one.task.id: leaks_of(one.task, one.messages, domain.find_leak) for one in dialogues}
    counted = {name: " ".join(f"{index}:{leak.kind}" for index, leak in found) for name, found in again.items()}
    yield "leaks", [one.task.id for one in dialogues if counted[one.task.id] != one.extra.get("leaks", "")]
    yield "hidden", [one.task.id for one in dialogues if "leaks" not in one.extra and _hidden(one, domain)]
    with domain.open() as tools:
        second = domain.scorer(tools).score(whole)
    yield "scores", [one.task.id for one, score in zip(whole, second, strict=True)
                     if (one.reward, one.tests) != (score.reward, score.tests)]  # fmt: skip


def _same_words(turn: Any, chat: ChatFormat) -> bool:
    ids = list(turn.token_ids)
    ended = bool(ids) and turn.finish_reason == "stop"
    return bool(ids) and chat.tokenizer.decode(ids[:-1] if ended else ids, skip_special_tokens=True) == turn.raw


def _ends_by_the_rules(one: Trajectory, domain: Domain, turns: int) -> bool:
    replies = [turn.raw for turn in one.turns]
    ends = [domain.answers(visible_reply(reply)) for reply in replies]
    if any(ends[:-1]) or (one.outcome == "answered") != ends[-1] or (not ends[-1] and len(replies) != turns):
        return False
    return one.answer == domain.final_answer(one.messages)


def _hidden(one: Trajectory, domain: Domain) -> bool:
    own = {turn.message_index for turn in one.turns}  # the agent may read what it wrote itself
    written = squeeze("\n".join(one.messages[index].content for index in own))
    heard = squeeze("\n".join(message.content for message in one.messages[2::2]))
    return any(piece.text in heard and piece.text not in written for piece in domain.hidden_fragments(one.task))


if __name__ == "__main__":
    main()
