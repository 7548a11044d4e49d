import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from sweetrl.evaluation.charts import inline_svg
from sweetrl.evaluation.metrics import compare, result_of
from sweetrl.evaluation.report import (
    AdvantageState,
    RatedReply,
    Report,
    example_states,
    examples,
    p_value,
    percent,
    points,
    render,
    verdict,
)
from sweetrl.types import Message, Task, TestResult, Trajectory

EVIL = "<script>alert('x')</script> & \"quotes\""
VOID = {"meta", "br", "hr", "img", "input", "link", "use", "path"}


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
    AdvantageState(f"task-{index:03d}", 0, turn, (
        RatedReply(f"What is the rate? {EVIL}", 9, 0.4 + index),
        RatedReply("Is it blue?", 4, 0.1),
        RatedReply("I WANT TO ANSWER: def f(): ...", 3, -0.5),
    ))
    for index in range(5) for turn in range(2)
)  # fmt: skip


@pytest.fixture(scope="module")
def report():
    results = [result_of(one, "base") for one in BEFORE] + [result_of(one, "trained") for one in AFTER]
    contexts = {(one.task.id, 0): one for one in BEFORE}
    return Report(compare(results, resamples=300), results, BEFORE, AFTER, STATES, {"Seed": 7}, contexts)


@pytest.fixture(scope="module")
def html(report):
    return render(report)


class Checker(HTMLParser):
    """Sees to it that every element is closed, and collects tags and ids."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.ids, self.links = [], set(), [], []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


def test_the_page_is_whole_and_stands_alone(html):
    checker = Checker()
    checker.feed(html)
    assert checker.open == []
    assert "script" not in checker.tags and "link" not in checker.tags and "img" not in checker.tags
    assert len(checker.ids) == len(set(checker.ids))
    assert all(link.startswith("#") for link in checker.links)
    assert not re.search(r"url\((?!#)", html)
    assert html.count("<svg") == 4


def test_everything_from_outside_is_escaped(html):
    assert "<script" not in html
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &#34;quotes&#34;" in html


def test_equal_evaluations_give_equal_bytes(report, html):
    assert render(report) == html


def test_the_headline_and_the_verdict(report, html):
    assert "37.5\u00a0%" in html and "75.0\u00a0%" in html
    assert "No difference is shown: success changed by +37.5 points on 8 held-out tasks" in html
    gain = report.comparison["difference"]["success"]
    helped = {**report.comparison, "difference": {"success": {**gain, "low": 0.1, "p_value": 1e-9}}}
    assert verdict(helped).startswith("Training helped") and "p\u00a0<\u00a00.001" in verdict(helped)
    hurt = {**report.comparison, "difference": {"success": {**gain, "value": -0.2, "low": -0.3, "high": -0.1}}}
    assert verdict(hurt).startswith("Training hurt: success changed by −20.0 points")


def test_one_example_of_each_kind(report):
    results = report.results
    found = examples(results[:8], results[8:], BEFORE, AFTER)
    assert [(one["kind"], one["task"].id) for one in found] == [
        ("won", "task-007"),  # from 0 to 10 of 10
        ("lost", "task-001"),
        ("neither", "task-003"),
    ]
    assert len(found[0]["sides"][0]["messages"]) == 4 and found[0]["sides"][1]["passed"] == 10


def test_the_critics_section_is_there_when_there_are_candidates(report, html):
    assert "What the critic thinks" in html and "+4.400" in html and "−0.500" in html
    assert [state.task_id for state in example_states(STATES)] == ["task-004", "task-003", "task-002"]
    without = render(replace(report, states=()))
    assert "What the critic thinks" not in without and without.count("<svg") == 3


def test_numbers():
    assert (percent(0.2345), points(-0.05), points(-0.0001)) == ("23.4\u00a0%", "−5.0", "0.0")
    assert (p_value(0.04), p_value(1e-5)) == ("p\u00a0=\u00a00.040", "p\u00a0<\u00a00.001")


def test_svg_ids_are_kept_apart():
    svg = '<?xml version="1.0"?>\n<svg width="10pt" height="5pt" viewBox="0 0 10 5"><metadata>x</metadata>'
    svg += '<g id="figure_1" clip-path="url(#p1)"/><clipPath id="p1"/></svg>'
    assert inline_svg(svg, "n") == '<svg viewBox="0 0 10 5"><g clip-path="url(#n-p1)"/><clipPath id="n-p1"/></svg>'
