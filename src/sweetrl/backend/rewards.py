"""Rewards of the backend suite: the fraction of hidden unit tests that an answer passes, whatever the answer tries.

Semantics:
  official               the official evaluator's verdict: its fences, its ban list, separate globals and locals, `==`
  official-noblacklist   the same without the ban list
  fixed                  one namespace, every kind of fence, optional float tolerance, NaN equal to NaN
In all of them a test whose reference gives None (or nothing) never counts, as in the official evaluator.

Why a test passed or not (TestResult.reason):
  passed, wrong          the values are equal, or not
  exception              the call raised (detail: type and last line), `memory`: it ran out of memory
  not_defined            the function under test does not exist
  timeout, killed        no result in time; the process died (detail: how)
  refused                the answer is banned, or its value cannot be written down within the limits
  no_answer              there is no answer; `no_reference`: the reference itself gives nothing to compare with
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import lru_cache, partial
from itertools import islice

from sweetrl.backend.checks import NOT_PLAIN, Check, function_name, parse_check
from sweetrl.backend.extraction import banned_word, fixed_sources, official_source
from sweetrl.colbench.files import NO_ANSWER
from sweetrl.config.settings import RewardSettings
from sweetrl.errors import UserError
from sweetrl.sandbox.client import Sandbox
from sweetrl.sandbox.compare import Rules, equal, render
from sweetrl.sandbox.limits import CallResult, Job, Limits, Outcome
from sweetrl.types import Score, Task, TestResult, TestRun, Trajectory

Pair = tuple[CallResult, CallResult]  # what the reference gives for a test, and an answer
REFERENCE_SEED = 1  # answers are run with seed 0, so that a random answer does not agree with a random reference


class CodeScorer(AbstractContextManager["CodeScorer"]):
    """Scores answers in a sandbox that starts with the first answer. Thread-safe; use as a context manager or close().

    A `sandbox` given by the caller is used instead of a new one, and is closed with the scorer. References draw at
    random by `seed`, answers never by the same.
    """

    thread_safe = True

    def __init__(self, reward: RewardSettings, sandbox: Sandbox | None = None, seed: int = REFERENCE_SEED) -> None:
        self.settings, self._seed = reward, seed
        self._official = reward.semantics != "fixed"
        self.rules = Rules() if self._official else Rules(tolerance=reward.tolerance, nan=True, arrays=True)
        libraries = tuple(reward.libraries.split())
        self.sandbox = sandbox or Sandbox(limits_of(reward), reward.workers, libraries, unsafe=reward.unsafe)
        # The official evaluator does not limit the reference; here a generous limit keeps a run from hanging.
        limits = self.sandbox.limits
        self._patient = replace(
            limits,
            wall_seconds=max(60.0, limits.wall_seconds),
            call_seconds=max(20.0, limits.call_seconds),
            output_kib=max(8192, limits.output_kib),
            nodes=max(1_000_000, limits.nodes),
        )
        self._references: dict[tuple[str, tuple[str, ...]], Future[Outcome]] = {}
        self._lock = threading.Lock()

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the sandbox. May be called twice."""
        self.sandbox.close()

    def score(self, dialogues: Sequence[Trajectory]) -> list[Score]:
        """Score the dialogues' answers, in order."""
        return self.score_answers([(dialogue.task, dialogue.answer) for dialogue in dialogues])

    def score_answers(self, items: Sequence[tuple[Task, str | None]]) -> list[Score]:
        """Score (task, answer) pairs, in order; equal pairs are run once."""
        return list(self.stream(items))

    def stream(self, items: Iterable[tuple[Task, str | None]], window: int = 256) -> Iterator[Score]:
        """Yield the scores of `items` in order, with at most `window` answers under way."""
        waiting: deque[Future[Score]] = deque()
        recent: dict[tuple[str, tuple[tuple[str, str], ...], str], Future[Score]] = {}
        for task, answer in items:
            key = (task.ground_truth, task.test_cases, answer or "")
            pending = recent.get(key)
            if pending is None:
                pending = recent[key] = self._begin(task, answer)
                while len(recent) > 4 * window:
                    del recent[next(iter(recent))]
            waiting.append(pending)
            if len(waiting) >= window:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _begin(self, task: Task, answer: str | None) -> Future[Score]:
        if not task.test_cases:
            raise UserError(f"task {task.id}: only tasks with unit tests can be scored by running code.")
        checks = checks_of(task.test_cases, self._official)
        if answer is None or not answer.strip() or answer.strip() == NO_ANSWER:
            return self._unrun(checks, "no_answer")
        word = banned_word(answer) if self.settings.semantics == "official" else None
        if word is not None:
            return self._unrun(checks, "refused", f"the answer holds `{word}`")
        calls = _calls(checks)
        expected = self._reference(task.ground_truth, calls)
        score: Future[Score] = Future()
        self.run(task, answer, calls).add_done_callback(lambda done: self._follow(task, checks, expected, done, score))
        return score

    def run(self, task: Task, answer: str, calls: tuple[str, ...]) -> Future[Outcome]:
        """Run `answer`, read as the semantics say, for `calls`."""
        official = self._official
        sources = (official_source(answer),) if official else fixed_sources(answer, _name(task.test_cases))
        return self.sandbox.submit(Job(sources, calls, "split" if official else "one"))

    def reference_job(self, reference: str, calls: tuple[str, ...]) -> Job:
        """Return the job that runs a reference for `calls`."""
        return Job((reference,), calls, "split" if self._official else "one", self._seed, self._patient)

    def run_reference(self, reference: str, calls: tuple[str, ...]) -> Future[Outcome]:
        """Run a reference for `calls`, in the same sandbox as everything else."""
        return self.sandbox.submit(self.reference_job(reference, calls))

    def _reference(self, reference: str, calls: tuple[str, ...]) -> Future[Outcome]:
        """What a reference gives for `calls`; each is run once."""
        with self._lock:
            if (reference, calls) not in self._references:
                self._references[reference, calls] = self.run_reference(reference, calls)
            return self._references[reference, calls]

    def _unrun(self, checks: tuple[Check, ...], reason: str, detail: str = "") -> Future[Score]:
        tests = tuple(TestResult(check.name, False, reason, detail) for check in checks)
        score: Future[Score] = Future()
        score.set_result(Score(0.0, tests, semantics=self.settings.semantics, isolation="not run"))
        return score

    def _follow(
        self,
        task: Task,
        checks: tuple[Check, ...],
        expected: Future[Outcome],
        actual: Future[Outcome],
        score: Future[Score],
    ) -> None:
        # Judged at once, in the sandbox's thread: what an answer returns may be large, and many are under way. The
        # reference's future lives on and keeps its callbacks, so the callback must not keep the outcome.
        held = [actual]

        def judge(done: Future[Outcome]) -> None:
            try:
                outcome = held.pop().result()
                pairs, questions = self._pairs(checks, done.result().calls, outcome.calls)
                if not questions:
                    score.set_result(self._judge(checks, pairs, outcome.isolation))
                    return
                job = Job((task.ground_truth,), tuple(questions.values()), "one", REFERENCE_SEED)
                self.sandbox.submit(job).add_done_callback(partial(finish, outcome, pairs, list(questions)))
            except BaseException as error:  # the caller that waits for the score gets it
                score.set_exception(error)

        def finish(outcome: Outcome, pairs: list[Pair], places: list[int], replies: Future[Outcome]) -> None:
            try:
                for place, result in zip(places, replies.result().calls, strict=True):
                    pairs[place] = (pairs[place][0], result)
                score.set_result(self._judge(checks, pairs, outcome.isolation))
            except BaseException as error:
                score.set_exception(error)

        expected.add_done_callback(judge)

    def _pairs(
        self, checks: tuple[Check, ...], expected: Sequence[CallResult], results: Sequence[CallResult]
    ) -> tuple[list[Pair], dict[int, str]]:
        """What reference and answer give for each check; and by place the question that the reference must answer."""
        sources, pairs, questions = (iter(expected), iter(results)), list[Pair](), dict[int, str]()
        for place, check in enumerate(checks):
            reference_calls, answer_calls = (tuple(islice(source, len(check.calls))) for source in sources)
            reference, value = check.value(reference_calls, self.rules), check.value(answer_calls, self.rules)
            if check.condition and isinstance(reference_question := check.question(reference_calls), str):
                question = check.question(answer_calls)
                if question == reference_question:
                    value = reference
                elif isinstance(question, str):
                    questions[place] = question
                else:
                    value = question
            elif check.decides and reference.kind == "value":
                reference = CallResult("refused", None, NOT_PLAIN)
            pairs.append((reference, value))
        return pairs, questions

    def _judge(self, checks: tuple[Check, ...], pairs: Sequence[Pair], isolation: str) -> Score:
        results = [self._test(check.name, *pair) for check, pair in zip(checks, pairs, strict=True)]
        passed = sum(test.passed for test in results)
        return Score(passed / len(results), tuple(results), semantics=self.settings.semantics, isolation=isolation)

    def _test(self, name: str, reference: CallResult, value: CallResult) -> TestResult:
        if value.kind != "value":
            return TestResult(name, False, value.kind, value.detail)
        if reference.kind != "value" or reference.tree is None:
            detail = reference.detail or "the reference returns None"
            return TestResult(name, False, "no_reference", detail)
        if equal(reference.tree, value.tree, self.rules):
            return TestResult(name, True, "passed")
        return TestResult(name, False, "wrong", f"returned {render(value.tree)}")


@lru_cache(maxsize=4096)
def checks_of(tests: tuple[tuple[str, str], ...], official: bool) -> tuple[Check, ...]:
    """Return the checks of a task's tests; UserError for a test that cannot be put to an answer (`fixed` alone)."""
    function, checks = _name(tests), []
    for name, call in tests:
        try:
            checks.append(parse_check(name, call, official, function))
        except ValueError as error:
            raise UserError(
                f"`test_cases.{name}`: `{call[:100]}` cannot be put to an answer ({error}); write it as "
                f"`{function or 'f'}(...) == value`."
            ) from error
    return tuple(checks)


@lru_cache(maxsize=4096)
def _name(tests: tuple[tuple[str, str], ...]) -> str:
    return function_name([call for _, call in tests])


def limits_of(reward: RewardSettings) -> Limits:
    """The sandbox's limits that the settings ask for."""
    return Limits(reward.wall_seconds, reward.call_seconds, reward.memory_mib)


def _calls(checks: Sequence[Check]) -> tuple[str, ...]:
    return tuple(call for check in checks for call in check.calls)


# References run twice


def unsettled_tests(reward: RewardSettings, tasks: Sequence[Task], hash_seed: int = 0) -> list[str]:
    """Return for each task a test to which its reference gives another value in another process, "" where all agree.

    A reference that draws at random, or reads a time or an address, is scored by chance; with another `hash_seed` so is
    one that depends on the order of a set. A test that runs into a limit in either process does not count.
    """
    parsed = [checks_of(task.test_cases, reward.semantics != "fixed") for task in tasks]
    if not any(parsed):
        return [""] * len(tasks)
    sandbox = Sandbox(limits_of(reward), reward.workers, tuple(reward.libraries.split()), (), reward.unsafe, hash_seed)
    with CodeScorer(reward) as first, CodeScorer(reward, sandbox, REFERENCE_SEED + 1) as second:
        rules = replace(first.rules, nan=True, arrays=True)
        runs = (_references(scorer, tasks, parsed) for scorer in (first, second))
        changing = []
        for task, checks, outcome, repeat in zip(tasks, parsed, *runs, strict=True):
            results, repeats = iter(outcome.calls), iter(repeat.calls)
            differ = [_differ(check, results, repeats, rules) for check in checks]
            changing.append(next((call for (_, call), bad in zip(task.test_cases, differ, strict=True) if bad), ""))
        return changing


def _references(scorer: CodeScorer, tasks: Sequence[Task], parsed: Sequence[tuple[Check, ...]]) -> Iterator[Outcome]:
    """Run the references of `tasks` for their checks, few at a time."""
    pairs = zip(tasks, parsed, strict=True)
    return scorer.sandbox.run(scorer.reference_job(task.ground_truth, _calls(checks)) for task, checks in pairs)


def _differ(check: Check, results: Iterator[CallResult], repeats: Iterator[CallResult], rules: Rules) -> bool:
    """Whether a test has two values, given the next results of two runs."""
    first, second = (check.value(tuple(islice(source, len(check.calls))), rules) for source in (results, repeats))
    if {first.kind, second.kind} & {"timeout", "memory", "killed"}:
        return False
    return first.kind != second.kind or not (first.tree == second.tree or equal(first.tree, second.tree, rules))


# Hidden tests run once more, for people


def run_tests(reward: RewardSettings, task: Task, answer: str) -> list[TestRun]:
    """Return the tests of `task` in their order; UserError for a task without tests, or where there is no sandbox.

    The verdicts are the scorer's. Every test has a child process of its own, so that its time is its own: that of
    executing the program and the call. An answer that the scorer would not run is not run here either: an empty
    answer, or one that the semantics ban.
    """
    checks = checks_of(task.test_cases, reward.semantics != "fixed")
    runs = []
    with CodeScorer(reward) as scorer:
        (score,) = scorer.score_answers([(task, answer)])
        refused = all(test.reason in ("no_answer", "refused") for test in score.tests)
        answers = [None if refused else scorer.run(task, answer, check.calls) for check in checks]
        references = [scorer.run_reference(task.ground_truth, check.calls) for check in checks]
        rows = zip(task.test_cases, checks, score.tests, answers, references, strict=True)
        for (name, call), check, test, pending, reference in rows:
            outcome = pending.result() if pending else None
            actual, seconds = (_shown(check, outcome.calls), outcome.seconds) if outcome else ("", 0.0)
            expected = _shown(check, reference.result().calls)
            runs.append(TestRun(name, call, expected, actual, test.passed, test.reason, test.detail, seconds))
    return runs


def _shown(check: Check, results: tuple[CallResult, ...]) -> str:
    value = check.value(results, Rules())
    return render(value.tree) if value.kind == "value" else f"{value.kind}: {value.detail}".rstrip(": ")
