"""What a suite needs around its dialogues: the person who answers and the scorer of answers, as the settings say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sweetrl.errors import UserError
from sweetrl.rollout.people import identity_of, make_speaker, person
from sweetrl.settings import Settings

if TYPE_CHECKING:
    from sweetrl.colbench.frontend.people import Render
    from sweetrl.colbench.simulators import Simulator
    from sweetrl.rollout.scored import Scores


@contextmanager
def scene(settings: Settings) -> Iterator[tuple[Simulator, Scores]]:
    """Yield (person, scorer) of `settings.suite`: programs and the sandbox, or pages and the browser."""
    if settings.suite == "backend":
        from sweetrl.colbench.rewards import Scorer

        if settings.simulator.kind == "vision":
            raise UserError("simulator.kind: `vision` looks at pages; set `suite: frontend` or take `llm`.")
        with person(settings.simulator, settings.model) as simulator, Scorer(settings.reward) as scorer:
            yield simulator, scorer
        return
    from sweetrl.browser.renderer import Renderer
    from sweetrl.colbench.frontend.scoring import PageScorer
    from sweetrl.colbench.frontend_rewards import make_reward

    reward = make_reward(settings.similarity)  # before the browser: it fails sooner
    with Renderer(settings.browser) as renderer, page_person(settings, renderer.render) as simulator:
        yield simulator, PageScorer(reward, renderer)


@contextmanager
def page_person(settings: Settings, render: Render) -> Iterator[Simulator]:
    """Yield the person who talks about pages; `render` draws what they look at."""
    from sweetrl.colbench.frontend.people import PagePerson, VisionPerson
    from sweetrl.colbench.recording import Recording

    wanted = settings.simulator
    if wanted.kind == "scripted":
        yield PagePerson(render)
    elif wanted.kind == "llm":
        raise UserError("simulator.kind: `llm` cannot see pages; take `vision` (a vision model) or `scripted`.")
    elif wanted.kind == "vision":
        if not wanted.server.urls.strip():
            raise UserError(
                "simulator.server: `urls` is empty; name the server of the vision model that is the person."
            )
        engine, speaker = make_speaker(wanted.server, settings.model)
        try:
            yield VisionPerson(
                speaker,
                render,
                wanted.vision_prompt,
                reply_characters=wanted.page_characters,
                leaks=wanted.leaks,
                attempts=wanted.leak_attempts,
                recording=Recording(Path(wanted.recording)) if wanted.recording else None,
                identity=identity_of(wanted),
            )
        finally:
            engine.close()
    else:
        with person(wanted, settings.model, "frontend") as simulator:
            yield simulator
