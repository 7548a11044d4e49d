"""What an evaluation says and shows about pages."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from PIL import Image

from sweetrl.browser.page import Page
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import EvaluateSettings
from sweetrl.evaluation.metrics import compare, result_of
from sweetrl.evaluation.report import VIEWER
from sweetrl.frontend import Frontend
from sweetrl.frontend.evaluation import (
    Pages,
    examples,
    first_page,
    look_at_pages,
    pictured,
    render,
    summary,
    thumbnail,
    win_rate,
)
from sweetrl.frontend.rewards import PageTools
from sweetrl.types import OUTGROWN, AgentTurn, Message, Report, Task, Trajectory
from tests.html_checker import Checker

FRONTEND = Frontend()
RULER = 0.95, 200, 0
EVIL = "<script>alert('x')</script> \"quoted\""


def page(number):
    return f"<html><body>{number} {EVIL}</body></html>"


def trajectory(index, reward, shown=2, status="ok"):
    task = Task(f"page-{index:02d}", f"Request {index} {EVIL}", page(f"reference {index}"), suite="frontend")
    messages = [Message("user", task.problem_description)]
    for turn in range(shown):
        final = "I WANT TO ANSWER:\n" if turn == shown - 1 else f"Look {EVIL}\n"
        messages += [
            Message("assistant", final + page(f"{index} {turn} {reward}")), Message("user", f"Not so {EVIL}")
        ]  # fmt: skip
    if not shown:
        messages += [Message("assistant", "What colour is the header?"), Message("user", "Red.")]
    messages = tuple(messages[:-1])
    answer = page(f"{index} {shown - 1} {reward}") if shown else None
    extra = {"reward": "layout", "page": status if shown else "none"}
    return Trajectory(task, 0, messages, (), answer, reward, extra=extra)


BEFORE = [trajectory(index, reward) for index, reward in enumerate([0.5, 0.9, 0.2, 0.4, 0.6])] + [trajectory(5, 0.0, 0)]
AFTER = [trajectory(index, reward, 3) for index, reward in enumerate([0.7, 0.6, 0.2, 0.9, 1.0])] + [
    trajectory(5, 0.0, 2, "timeout")
]
DIALOGUES = {"base": BEFORE, "trained": AFTER}
FIRST = {
    (policy, dialogue.task.id): 0.1 if first_page(dialogue.messages) else 0.0
    for policy, attempts in DIALOGUES.items()
    for dialogue in attempts
}
RESULTS = [result_of(dialogue, policy, FRONTEND, 6) for policy, attempts in DIALOGUES.items() for dialogue in attempts]
PNG = io.BytesIO()
Image.effect_noise((1366, 4000), 60).convert("RGB").save(PNG, "PNG")
PICTURE = thumbnail(PNG.getvalue())


@pytest.fixture(scope="module")
def pages():
    pictures = dict.fromkeys(pictured(RESULTS, BEFORE, AFTER), PICTURE)
    return Pages("layout", FIRST, pictures, "rival.jsonl", {dialogue.task.id: 0.5 for dialogue in AFTER[:4]})


@pytest.fixture(scope="module")
def report(pages):
    comparison = compare(RESULTS, resamples=200) | {"pages": summary(DIALOGUES, RESULTS, pages, RULER)}
    return Report(FRONTEND, comparison, RESULTS, BEFORE, AFTER, (), {"Seed": 7}, {})


def test_the_summary_says_what_became_of_the_pages(report):
    before, after = (report.comparison["pages"]["policies"][name] for name in ("base", "trained"))
    assert before["last_page"]["value"] == pytest.approx(2.6 / 6)
    assert after["first_page"]["value"] == pytest.approx(0.1) and before["first_page"]["value"] == pytest.approx(
        0.5 / 6
    )
    assert after["gained_in_dialogue"]["value"] == pytest.approx((3.4 - 0.6) / 6)
    assert before["no_answer"]["value"] == pytest.approx(1 / 6) and after["no_answer"]["value"] == 0.0
    assert before["not_rendered"]["value"] == 0.0 and after["not_rendered"]["value"] == pytest.approx(1 / 6)
    assert after["wins_over_other"]["value"] == pytest.approx((3 + 2 / 2) / 6)
    assert before["wins_over_other"]["value"] == pytest.approx((1 + 2 / 2) / 6)
    assert after["wins_over_rival"]["value"] == pytest.approx(3 / 4) and after["wins_over_rival"]["n"] == 4


def test_lost_dialogues_are_left_out(pages):
    lost = replace(AFTER[0], reward=None, outcome="lost")
    dialogues = {"base": BEFORE, "trained": [lost, *AFTER[1:]]}
    results = [result_of(dialogue, policy, FRONTEND, 6) for policy in dialogues for dialogue in dialogues[policy]]
    policies = summary(dialogues, results, pages, RULER)["policies"]
    assert policies["base"]["last_page"]["n"] == policies["trained"]["no_answer"]["n"] == 5


class Drawn:
    """A renderer that draws nothing, and a reward for which a missing page is worth something, as CLIP's is."""

    name = "half"

    def render_many(self, htmls):
        picture = io.BytesIO()
        Image.new("RGB", (1366, 682)).save(picture, "PNG")
        for _ in htmls:
            yield Page(picture.getvalue(), 1366, 682, (), (255, 255, 255), "ok", (), "none")

    def score(self, pairs):
        return [0.5 if answer is None else 0.8 for answer, _ in pairs]


def looked_at(before, after, rival=""):
    dialogues = {"base": before, "trained": after}
    results = [result_of(dialogue, policy, FRONTEND, 6) for policy in dialogues for dialogue in dialogues[policy]]
    pages = look_at_pages(FRONTEND, dialogues, results, PageTools(Drawn(), Drawn()), EvaluateSettings(rival=rival))
    return pages, summary(dialogues, results, pages, RULER)["policies"]


def test_who_shows_no_page_gains_nothing():
    """The missing page has the reward of one at the beginning as well as at the end."""
    silent = [trajectory(index, 0.5, 0) for index in range(4)]
    base = looked_at(silent, AFTER[:4])[1]["base"]
    assert base["first_page"]["value"] == 0.5 and base["gained_in_dialogue"]["value"] == 0.0


def test_a_dialogue_that_outgrew_the_context_has_its_first_page():
    outgrown = replace(AFTER[0], reward=None, outcome="lost", error=OUTGROWN, turns=(AgentTurn(1, "x"),))
    pages, policies = looked_at(BEFORE[:4], [outgrown, *AFTER[1:4]])
    assert pages.first["trained", outgrown.task.id] == 0.8 and policies["trained"]["first_page"]["value"] == 0.8


def test_dialogues_that_a_rival_lost_are_nobody_s(tmp_path):
    lost = replace(AFTER[0], reward=None, answer=None, outcome="lost", error="the server failed")
    TrajectoryStore(tmp_path / "rival").write_shard(
        0, [lost, replace(AFTER[0], attempt=1), replace(lost, task=AFTER[1].task)]
    )
    pages, policies = looked_at(BEFORE[:4], AFTER[:4], str(tmp_path / "rival"))
    assert pages.rival_rewards == {AFTER[0].task.id: 0.8} and policies["trained"]["wins_over_rival"]["n"] == 1


def test_a_win_rate_counts_ties_half():
    assert win_rate({"a": 1.0, "b": 0.2, "c": 0.4}, {"a": 0.5, "b": 0.2, "d": 0.9}, RULER)["value"] == 0.75
    assert win_rate({"a": 1.0}, {}, RULER)["n"] == 0
    alone = win_rate({"a": 1.0}, {"a": 0.5}, RULER)
    assert (alone["value"], alone["low"], alone["high"], alone["n"]) == (1.0, 0.0, 1.0, 1)


def test_the_dialogues_shown_are_of_different_tasks():
    assert [(kind, before.task_id) for kind, _, (_, before), _ in examples(RESULTS, BEFORE, AFTER)] == [
        ("won", "page-03"), ("lost", "page-01"), ("neither", "page-05"), ("neither", "page-04"),
    ]  # fmt: skip
    assert len(examples([RESULTS[0], RESULTS[6]], BEFORE, AFTER)) == 1


def test_the_report_is_complete_stands_alone_and_escapes_everything(report, pages):
    html = render(report, pages)
    checker = Checker(html)
    assert "script" not in checker.tags and "link" not in checker.tags
    assert all(source.startswith(("#", "data:image/png;base64,", VIEWER)) for source in checker.links)
    assert "<script" not in html and "&lt;script&gt;" in html and not re.search(r"url\((?!#)", html)
    assert html.count("<img ") == 4 + 2 * 8 - 2  # page-05 has none before training
    assert "no page was shown" in html and "[SEE RENDERED HTML]" in html and "Not so &lt;script&gt;" in html
    assert "Likeness to the reference (layout)" in html and "rival.jsonl" in html
    assert "No difference is shown: mean reward changed by +13.3 points" in html
    assert render(report, pages) == html
