"""Users who look at pages: the one who compares by rule, and the one whom a vision model plays."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from sweetrl.browser.page import Page
from sweetrl.config.settings import ServerSettings
from sweetrl.engines.openai import OpenAIEngine
from sweetrl.errors import SimulatorError, UserError
from sweetrl.frontend import Frontend
from sweetrl.frontend.phrases import NO_PAGE, UNKNOWN
from sweetrl.frontend.suite.agents import scripted_user
from sweetrl.frontend.suite.designs import Design, write_page
from sweetrl.frontend.suite.sketch import sketch
from sweetrl.frontend.users import AGENTS_PAGE, NO_AGENTS_PAGE, REFERENCE_PAGE, PageUser, VisionUser
from sweetrl.protocols import AsyncUserSimulator
from sweetrl.rollout.users import EngineSpeaker
from sweetrl.types import Message, Sampling, Task

FRONTEND = Frontend()
PLAIN = Design("gym", "Star Gym", ("about", "contact"))
REFERENCE = PLAIN.set({"header color": "red", "footer color": "blue"})
TASK = Task("p", "I need a web page.", write_page(REFERENCE), suite="frontend")
PNG = b"\x89PNG drawn"


def after(*texts: str) -> list[Message]:
    contents = ("I need a web page.", *texts)
    return [Message("assistant" if index % 2 else "user", content) for index, content in enumerate(contents)]


# By rule


def test_differences_then_agreement() -> None:
    reply = scripted_user().reply(TASK, after(f"Look: {write_page(PLAIN)}"), 3)
    assert "red" in reply and "footer" in reply and reply.count(".") == 2
    first, again = (scripted_user().reply(TASK, after(write_page(PLAIN)), 3) for _ in range(2))
    assert first == again
    assert "looks right" in scripted_user().reply(TASK, after(write_page(REFERENCE)), 3) or "right" in reply


def test_questions_come_first() -> None:
    reply = scripted_user().reply(TASK, after(f"What colour is the footer? {write_page(PLAIN)}"), 3)
    assert reply.startswith("The footer is blue. ") and "header" in reply
    assert scripted_user().reply(TASK, after("What colour is the footer?"), 3) == "The footer is blue."
    assert scripted_user().reply(TASK, after("Who are you?"), 3) in UNKNOWN
    assert scripted_user().reply(TASK, after("Here you are."), 3) in NO_PAGE
    assert "I do not know" not in scripted_user().reply(TASK, after(f"Is it good? {write_page(PLAIN)}"), 3)


def test_only_so_many_differences_are_named() -> None:
    far = REFERENCE.set({"page color": "light blue", "navigation color": "pink", "header align": "center"})
    task = Task("q", "A page.", write_page(far), suite="frontend")
    for most in (1, 2, 3):
        assert PageUser(sketch, most).reply(task, after(write_page(PLAIN)), 0).count(".") == most


@pytest.mark.parametrize(
    "broken_off",
    [
        '<html><body class="bg-white"><header class="text-center">Any header?<img src="https://picsum.photos/9?random=1">',
        "<!DOCTYPE html><body background='x?y' color='dark'>",
        "Here is the header.\n<header class='left'><a href='?page",
    ],
)
def test_a_page_without_an_end_asks_nothing(broken_off: str) -> None:
    assert scripted_user().reply(TASK, after(broken_off), 3) in NO_PAGE
    assert scripted_user().reply(TASK, after(f"What colour is the header? {broken_off}"), 3).startswith("The header is")


def test_pages_are_rendered_aside() -> None:
    assert isinstance(scripted_user(), AsyncUserSimulator)
    reply = asyncio.run(scripted_user().answer(TASK, after(write_page(PLAIN)), 3))
    assert reply == scripted_user().reply(TASK, after(write_page(PLAIN)), 3)


def test_a_browser_that_fails_loses_the_dialogue_and_a_missing_one_ends_the_run() -> None:
    def broken(html: str) -> Page:
        raise RuntimeError("it crashed")

    def missing(html: str) -> Page:
        raise UserError("there is no browser here; install one.")

    with pytest.raises(SimulatorError, match="task 'p': a page could not be rendered \\(it crashed\\)"):
        PageUser(broken).reply(TASK, after(write_page(PLAIN)), 0)
    with pytest.raises(UserError, match="no browser"):
        PageUser(missing).reply(TASK, after(write_page(PLAIN)), 0)


# By a vision model


def drawn(html: str) -> Page:
    return Page(PNG + html[-20:].encode(), 10, 10, (), (255, 255, 255), "ok", (), "fake")


def vision(server: Any, **how: Any) -> VisionUser:
    engine = OpenAIEngine(ServerSettings(urls=server.url, model="eyes"))
    return VisionUser(EngineSpeaker(engine, Sampling(256, 0.0)), FRONTEND, drawn, **how)


def test_one_message_of_texts_and_two_pictures(fake_server: Any) -> None:
    with fake_server(reply=lambda body: "The header should be red.") as server:
        reply = vision(server).reply(TASK, after("Blue?", "No.", f"Now? {write_page(PLAIN)}"), 5)
    assert reply == "The header should be red."
    (body,) = server.bodies
    (message,) = body["messages"]
    parts = message["content"]
    assert message["role"] == "user" and [part["type"] for part in parts] == [
        "text",
        "text",
        "image_url",
        "text",
        "image_url",
    ]
    assert [parts[1]["text"], parts[3]["text"]] == [AGENTS_PAGE, REFERENCE_PAGE]
    for part, html in ((parts[2], write_page(PLAIN)), (parts[4], TASK.ground_truth)):
        kind, _, data = part["image_url"]["url"].partition(",")
        assert kind == "data:image/png;base64" and base64.b64decode(data) == drawn(html).png
    text = parts[0]["text"]
    assert "Person: No.\nAssistant: Now? [SEE RENDERED HTML]" in text and "I need a web page." in text
    assert "<html" not in text and "bg-red" not in text
    assert body["temperature"] == 0.0


def test_where_there_is_no_page_a_sentence_says_so(fake_server: Any) -> None:
    with fake_server(reply=lambda body: "Blue.") as server:
        vision(server).reply(TASK, after(f"{write_page(PLAIN)}", "Red.", "Which blue?"), 5)
    parts = server.bodies[0]["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["text", "text", "text", "image_url"]
    assert parts[1]["text"] == NO_AGENTS_PAGE


def test_an_answer_with_markup_is_asked_for_again(fake_server: Any) -> None:
    replies = iter(["Use <header class='x'>.", "Put bg-red-600 there.", "Make the header red."])
    with fake_server(reply=lambda body: next(replies)) as server:
        assert vision(server, leaks="refuse").reply(TASK, after(write_page(PLAIN)), 5) == "Make the header red."
    again = server.bodies[2]["messages"][0]["content"][0]["text"]
    assert (
        "could not be sent" in again
        and "could not be sent" not in server.bodies[0]["messages"][0]["content"][0]["text"]
    )


@pytest.mark.parametrize(
    ("reply", "leaks"),
    [
        ("The header should be dark blue, about 64 pixels high.", False),
        ("Use <div>.", True),
        ("It is grid-cols-3.", True),
        ("A p-8 please.", True),
        ("```\nx\n```", True),
        ("The left-hand side, a well-known top-left logo, 2 < 3 and 4 > 3.", False),
    ],
)
def test_leaks_of_a_page(reply: str, leaks: bool) -> None:
    assert (FRONTEND.find_leak(TASK, reply) is not None) == leaks


def test_a_model_in_this_process_has_no_eyes() -> None:
    engine = OpenAIEngine(ServerSettings(urls="http://127.0.0.1:9/v1", model="local"))
    speaker = EngineSpeaker(engine, Sampling(8, 0.0), chat=object())  # type: ignore[arg-type]
    with pytest.raises(UserError, match="sees no pictures"):
        asyncio.run(speaker.say(("look", PNG), 1))
