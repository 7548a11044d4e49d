"""The viewer's page and its JSON, at an address of this machine.

What a page of somebody else could ask for through the reader's browser is refused: requests under a foreign host name
(DNS rebinding), from other sites, and changes that no page of ours sends. The page itself loads nothing from anywhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.requests import Request
from starlette.staticfiles import StaticFiles

from sweetrl.errors import UserError
from sweetrl.listening import Guard, listening, other_site, own_name, serve_app
from sweetrl.viewer.dialogue import Dialogues, pictures
from sweetrl.viewer.heat import Heat
from sweetrl.viewer.labels import LONGEST_NOTE, Change, Labels
from sweetrl.viewer.overview import linked_report, overview
from sweetrl.viewer.sources import Target

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain
    from sweetrl.types import Trajectory

ASSETS = Path(__file__).parent / "static"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
LONGEST_BODY = 2**16  # bytes: two notes with every letter escaped
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Viewer:
    """What is looked at."""

    target: Target
    dialogues: Dialogues
    heat: Heat
    labels: Labels

    def meta(self) -> dict[str, Any]:
        """Return what is said of the dialogues together; `labels` are (reward, note) by row, None without a place."""
        catalogue, kept = self.dialogues.catalogue, self.labels.all()
        labels = {row: (kept[key].reward, kept[key].note) for row, key in catalogue.with_key(kept).items()}
        labelling = {"labels": None if self.labels.folder is None else labels, "longest_note": LONGEST_NOTE}
        return catalogue.meta() | overview(catalogue, self.target, self.dialogues.tracked) | labelling

    def compute(self, what: str, dialogue: Trajectory, domain: Domain) -> Any:
        """Compute of a dialogue `what`: "run" (tests), "heat" (log-ratios), "prompts" or "pictures"."""
        if what == "heat":
            return self.heat.ratios(dialogue)
        if what == "prompts":
            return self.heat.prompts(dialogue)
        if what == "pictures":
            return pictures(dialogue, domain)
        return [asdict(run) for run in domain.run_tests(dialogue.task, dialogue.answer or "")]


def make_app(viewer: Viewer, host: str = "127.0.0.1") -> FastAPI:
    """Return the application; `host` is the address it is bound to, a further name under which it answers."""
    catalogue = viewer.dialogues.catalogue
    app = FastAPI(
        title="sweetrl view",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        exception_handlers={
            UserError: _answer(400),
            IndexError: _answer(404, "There is no such dialogue."),
            OSError: _answer(500, "A file that this needs cannot be read any more; start `sweetrl view` again."),
        },
    )

    @app.middleware("http")
    async def guard(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        response = _refusal(request, host) or await go_on(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    @app.get("/report.html")
    def report() -> Response:
        page = linked_report(viewer.target, "/")
        if page is None:
            return JSONResponse({"error": "There is no report here."}, 404)
        return HTMLResponse(page, headers={"Content-Security-Policy": REPORT_POLICY})

    @app.get("/api/meta")
    def meta() -> dict[str, Any]:
        return viewer.meta() | {"heat": viewer.heat.there, "server": True}

    @app.get("/api/rows/{shard}")
    def rows(shard: int) -> Response:
        return JSONResponse(catalogue.rows(shard))

    @app.get("/api/search")
    def search(q: str) -> Response:
        return JSONResponse({"rows": catalogue.search(q)})

    @app.get("/api/dialogue/{row}")
    def dialogue(row: int) -> Response:
        return JSONResponse(viewer.dialogues.describe(row))

    @app.post("/api/dialogue/{row}/{what}")
    def computed(row: int, what: Literal["run", "heat", "prompts", "pictures"]) -> Any:
        return viewer.compute(what, *viewer.dialogues.read(row))

    @app.post("/api/label/{row}")
    def label(row: int, change: Change) -> dict[int, tuple[float | None, str]]:
        key = viewer.labels.put(*viewer.dialogues.read(row), change)
        return dict.fromkeys(catalogue.with_key([key]), (change.reward, change.note))

    app.mount("/", StaticFiles(directory=ASSETS, html=True))  # behind all of the above
    app.add_middleware(Guard, host=None, longest=LONGEST_BODY)
    return app


def _answer(status: int, words: str = "") -> Any:
    """Return a handler of errors that answers with `words`, or with the error's own."""

    async def handler(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": words or str(error)}, status)

    return handler


def _refusal(request: Request, host: str) -> Response | None:
    """Return the answer to who may not ask; other sites may only lead to the page."""
    own = own_name(request.headers.get("host", ""), host)
    foreign = request.url.path != "/" and other_site(request.headers)
    as_json = request.headers.get("content-type", "").startswith("application/json")
    if own and not foreign and (as_json or request.method in ("GET", "HEAD")):
        return None
    return JSONResponse({"error": "Only the viewer's own page may ask this; open the address that it printed."}, 403)


def serve(viewer: Viewer, host: str, port: int, opened: Callable[[str], None]) -> None:
    """Serve until interrupted; `opened` is called with the address once connections are accepted there."""
    with listening(host, port) as listener:
        serve_app(make_app(viewer, host), listener, host, lambda address: opened(f"{address}/"), patience=2)
