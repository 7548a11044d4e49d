import re
from dataclasses import replace

import pytest

from sweetrl.backend import Backend
from sweetrl.config.settings import Settings
from sweetrl.evaluation.metrics import compare, result_of
from sweetrl.evaluation.report import (
    ENDED,
    VIEWER,
    example_states,
    examples,
    harm,
    headline,
    level,
    render,
    verdicts,
    without_viewer,
)
from sweetrl.rollout.scored import THOUGHTS
from sweetrl.types import Candidate, Message, RankedState, Report, Result, Task, TestResult, Trajectory
from tests.html_checker import Checker

BACKEND = Backend()
EVIL = "<script>alert('x')</script> & \"quotes\""


def trajectory(index, passed, turns=3):
    task = Task(
        f"task-{index:03d}", f"Request {index} {EVIL}", f"def f(): return '{EVIL}'",
        tuple((f"test{n}", f"f({n})") for n in range(1, 11)), f"rate: {index}",
    )  # fmt: skip
    words = [f"Question {turn}?" if turn % 2 == 0 else f"Reply {EVIL}" for turn in range(2 * (turns - 1))]
    contents = [task.problem_description, *words, f"I WANT TO ANSWER:\ndef f(): return {EVIL}"]
    messages = tuple(Message("assistant" if i % 2 else "user", text) for i, text in enumerate(contents))
    tests = tuple(TestResult(name, n < passed, "passed" if n < passed else "wrong", EVIL) for n, (name, _) in
                  enumerate(task.test_cases))  # fmt: skip
    return Trajectory(task, 0, messages, (), contents[-1].split(":")[1], passed / 10, tests)


BEFORE = [trajectory(index, passed) for index, passed in enumerate([10, 10, 3, 0, 5, 10, 2, 0])]
AFTER = [trajectory(index, passed, 5) for index, passed in enumerate([10, 4, 10, 6, 10, 10, 10, 10])]
STATES = tuple(
    RankedState(f"task-{index:03d}", 0, turn, (1, 2), (
        Candidate((3,), f"What is the rate? {EVIL}", 9, 0.4 + index),
        Candidate((4,), "Is it blue?", 4, 0.1),
        Candidate((5,), "I WANT TO ANSWER: def f(): ...", 3, -0.5),
    ))
    for index in range(5) for turn in range(2)
)  # fmt: skip


@pytest.fixture(scope="module")
def report():
    results = [result_of(dialogue, "base", BACKEND) for dialogue in BEFORE]
    results += [result_of(dialogue, "trained", BACKEND) for dialogue in AFTER]
    contexts = {(dialogue.task.id, 0): dialogue for dialogue in BEFORE}
    return Report(BACKEND, compare(results, resamples=300), results, BEFORE, AFTER, STATES, {"Seed": 7}, contexts)


@pytest.fixture(scope="module")
def html(report):
    return render(report)


def test_the_level_keeps_its_digits():
    assert [level({"confidence": confidence}) for confidence in (0.95, 0.9999)] == ["95\u00a0%", "99.99\u00a0%"]


def test_the_page_is_complete_and_stands_alone(html):
    checker = Checker(html)
    assert "script" not in checker.tags and "link" not in checker.tags and "img" not in checker.tags
    assert len(checker.ids) == len(set(checker.ids))
    assert all(link.startswith(("#", VIEWER)) for link in checker.links)
    assert not re.search(r"url\((?!#)", html)
    assert html.count("<svg") == 4


def test_the_page_leads_into_the_viewer(html):
    assert "<code>sweetrl view</code>" in html
    won = "#/dialogue/data%2Fevaluation%2Fbase/task-007/0?with=data%252Fevaluation%252Ftrained%2Ftask-007%2F0"
    assert f'<a class="viewer" href="{VIEWER}{won}">' in html
    bare = without_viewer(html)
    assert VIEWER not in bare and "sweetrl view" not in bare and "task-007" in bare
    Checker(bare)


def test_everything_from_outside_is_escaped(html):
    assert "<script" not in html
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &#34;quotes&#34;" in html


def test_equal_evaluations_give_equal_bytes(report, html):
    assert render(report) == html


def test_tokens_of_thoughts_stand_beside_the_turns(report, html):
    assert "<h3>Turns: 3.0 before, 5.0 after on average</h3>" in html
    policies = report.comparison["policies"]
    trained = {**policies["trained"], THOUGHTS: {"value": 12.34}}
    thinking = {**report.comparison, "policies": {**policies, "trained": trained}}
    shown = "5.0 after on average; tokens of thoughts a reply: 0.0 before, 12.3 after on average</h3>"
    assert shown in render(replace(report, comparison=thinking))


def test_the_headline_and_the_verdict(report, html):
    assert "37.5\u00a0%" in html and "75.0\u00a0%" in html
    assert "No difference is shown: success rate changed by +37.5 points on 8 held-out tasks" in html
    gain = report.comparison["difference"]["success"]
    helped = {**report.comparison, "difference": {"success": {**gain, "low": 0.1, "p_value": 1e-9}}}
    (verdict,) = verdicts(helped)
    assert verdict.sentence.startswith("Training helped") and "p\u00a0<\u00a00.001" in verdict.sentence
    assert harm(helped) == ""


def test_harm_in_the_reward_alone_is_red_and_first(report):
    """Success is 0 before and after, and the mean reward falls from 22.3 to 3.0 %."""
    rows = [
        Result(f"t{index:02d}", policy, "taxi", reward, False, "answered", 0, 1, 2, 1, 0)
        for index in range(40)
        for policy, reward in (("base", 0.2 + 0.001 * index), ("trained", 0.03))
    ]
    comparison = compare(rows, resamples=500)
    assert [(each.measure, each.tone) for each in verdicts(comparison)] == [("reward", "worse"), ("success", "open")]
    assert harm(comparison).startswith("mean reward changed by −18.9 points on 40 held-out tasks")
    named = {**comparison, "labels": {"success": "Success rate", "reward": "Tests passed"}}
    page = render(replace(report, comparison=named))
    first, second = re.findall(r'<p class="verdict (\w+)">([^<]*)</p>', page)
    assert first == ("worse", f"Training hurt: {harm(named)}.")
    assert second[0] == "open" and re.search(r"\.verdict\.worse \{[^}]* color: var\(--bad\)", page)


@pytest.mark.parametrize(("tasks", "gained", "lost"), [(2, 2, 0), (100, 3, 0), (500, 4, 0)])
def test_nothing_is_shown_where_the_test_does_not_agree(tasks, gained, lost):
    """With few tasks that differ a bootstrap's interval may lie above zero."""
    rows = []
    for index in range(tasks):
        for policy, success in (("base", gained <= index < gained + lost), ("trained", index < gained)):
            rows.append(Result(f"t{index}", policy, "taxi", float(success), success, "answered", 0, 1, 2, 1, 0))
    comparison = compare(rows, resamples=500)
    gain = comparison["difference"]["success"]
    assert gain["low"] > 0 and gain["p_value"] > 0.05
    assert verdicts(comparison)[0].sentence.startswith("No difference is shown: success rate")
    assert headline(comparison, "success", "Success")["tone"] == "open"


def test_one_example_of_each_kind(report):
    results = report.results
    shown = examples(results[:8], results[8:], BEFORE, AFTER)
    assert [(example["kind"], example["task"].id) for example in shown] == [
        ("won", "task-007"),  # from 0 to 10 of 10
        ("lost", "task-001"),
        ("neither", "task-003"),
    ]
    assert len(shown[0]["sides"][0]["messages"]) == 4 and shown[0]["sides"][1]["passed"] == 10


@pytest.mark.parametrize("outcome", ["answered", "max_turns_reached", "user_left"])
def test_how_a_dialogue_ended_stands_above_its_answer(report, outcome):
    after = [replace(dialogue, outcome=outcome) for dialogue in AFTER]
    sides = render(replace(report, after=after)).split("After training")[1:]
    assert len(sides) == 3
    assert all(f'<div class="small">{ENDED[outcome]}</div>\n      <pre>' in side for side in sides)


def test_the_critics_section_is_there_when_there_are_candidates(report, html):
    assert "What the critic thinks" in html and "+4.400" in html and "−0.500" in html
    assert [state.task_id for state in example_states(STATES)] == ["task-004", "task-003", "task-002"]
    without = render(replace(report, states=()))
    assert "What the critic thinks" not in without and without.count("<svg") == 3


def test_every_type_of_reply_has_its_line_and_its_place_in_the_legend(report, html):
    class Haggling(Backend):
        reply_types = ("offer", "question", "deal")

        def reply_type(self, text):
            return "deal" if self.answers(text) else "offer" if "blue" in text else "question"

    shown = render(replace(report, domain=Haggling()))
    for page, labels in ((html, ["questions", "answers"]), (shown, ["offers", "questions", "deals"])):
        legend = page[page.index("Mean advantage of the sampled replies") :].partition("<svg")[0]
        assert re.findall(r'<b style="background: #[0-9a-f]{6}"></b>(\w+)', legend) == labels
        colors = re.findall(r"background: (#[0-9a-f]{6})", legend)
        chart = page[page.index("Mean advantage") :].partition("<svg")[2].partition("</svg>")[0]
        assert len(set(colors)) == len(labels) and all(color in chart for color in colors)


def test_a_reward_of_ones_own_is_called_a_reward(report, html):
    own = BACKEND.configured(Settings.model_validate({"reward": {"function": "somewhere:brief"}}))
    shown = render(replace(report, domain=own))
    for words in ("Tests passed", "hidden unit tests decided", "hidden tests passed, %"):
        assert words in html and words not in shown
    for words in ("Mean reward", "the reward decided", "reward, %", "Success is what the domain itself says"):
        assert words in shown and words not in html


def test_names_of_topics_are_words_and_many_of_them_are_no_chart(report):
    def named(names):
        results = [replace(result, topic=names[index % len(BEFORE)]) for index, result in enumerate(report.results)]
        return render(replace(report, results=results, comparison=compare(results, resamples=300)))

    page = named(["$\\frac$", "a$b$c", "US$_", EVIL, "price^{", "\n", "€ 5", "x" * 200])
    assert "$\\frac$ (1)" in page and "a$b$c (1)" in page and EVIL not in page
    first = report.results[0]
    many = [
        replace(first, task_id=f"t{n}", topic=f"t{n}", policy=name) for n in range(61) for name in ("base", "trained")
    ]
    comparison = compare(many, resamples=300)
    page = render(replace(report, results=many, comparison=comparison, before=(), after=()))
    assert "There are 61 kinds of tasks, too many for a chart." in page and "<td>t60</td>" in page
    assert "too many for a chart" not in render(report)
