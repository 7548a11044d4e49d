"""The page and its JSON over HTTP: answers and refusals; runs, pictures, and the exported folder."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from made import EXPLAINED

from sweetrl.colbench.find import find_domain
from sweetrl.errors import UserError
from sweetrl.types import Message, Trajectory
from sweetrl.viewer.dialogue import difference, pictures
from sweetrl.viewer.export import export
from sweetrl.viewer.index import SHARD
from sweetrl.viewer.server import ASSETS, Viewer


@pytest.fixture
def client(address: str) -> httpx.Client:
    return httpx.Client(base_url=address, trust_env=False, timeout=60)


def test_the_page_loads_nothing_from_anywhere_else(client: httpx.Client) -> None:
    page = client.get("/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy and "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    files = re.findall(r'(?:src|href)="([^"#]+)"', page.text)
    assert len(files) == len(list(ASSETS.iterdir())) - 1
    for name in files:
        assert client.get(f"/{name}").status_code == 200, name
    for path in ASSETS.iterdir():
        text = path.read_text(encoding="utf-8")
        assert "http://" not in text.replace("http://www.w3.org/", ""), path.name
        assert "https://" not in text, path.name
        writes = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
        assert not re.search(writes, text), path.name
    for name in ("../server.py", "%2e%2e/server.py", "..%2fserver.py", "nothing.js"):
        assert client.get(f"/{name}").status_code == 404, name


def test_other_sites_read_and_change_nothing(client: httpx.Client) -> None:
    for path, headers in (
        ("/api/meta", {"Host": "evil.example:8010"}),
        ("/", {"Host": "evil.example"}),
        ("/api/meta", {"Sec-Fetch-Site": "cross-site"}),
        ("/api/dialogue/0", {"Sec-Fetch-Site": "same-site"}),
        ("/report.html", {"Sec-Fetch-Site": "cross-site"}),
    ):
        refused = client.get(path, headers=headers)
        assert refused.status_code == 403 and "error" in refused.json()
        assert "content-security-policy" in refused.headers
    for headers in (
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "application/json", "Origin": "https://evil.example"},
        {"Content-Type": "application/json", "Sec-Fetch-Site": "cross-site"},
    ):
        assert client.post("/api/dialogue/0/run", content="{}", headers=headers).status_code == 403


def test_the_table_dialogues_and_searches_are_json(client: httpx.Client, viewer: Viewer) -> None:
    meta = client.get("/api/meta").json()
    assert meta["count"] == 64 and meta["shard"] == SHARD and meta["server"] and meta["report"]
    assert meta["harm"].startswith("mean reward changed by −19.0 points")
    assert meta["words"]["method"] == ["base", "models/base", "trained"]
    assert client.get("/api/rows/0").json() == viewer.dialogues.catalogue.rows(0)
    assert client.get("/api/dialogue/5").json() == json.loads(json.dumps(viewer.dialogues.describe(5)))
    assert client.get("/api/search", params={"q": "onerror"}).json() == {"rows": [27]}
    assert client.get("/api/dialogue/64").status_code == client.get("/api/dialogue/-1").status_code == 404
    report = client.get("/report.html")
    assert '<a href="/">' in report.text and "script" not in report.headers["content-security-policy"]


def test_tests_are_run_again_with_every_value(client: httpx.Client, viewer: Viewer) -> None:
    description = viewer.dialogues.describe(1)  # base: a program that returns 1
    runs = client.post("/api/dialogue/1/run", json={}).json()
    assert [run["call"] for run in runs] == [run["call"] for run in description["task"]["tests"]]
    assert all(run["got"] == "1" for run in runs) and all(run["seconds"] > 0 for run in runs)
    assert {run["passed"] for run in runs} <= {run["expected"] == "1" for run in runs} | {False}
    right = client.post("/api/dialogue/0/run", json={}).json()
    assert all(run["passed"] and run["got"] == run["expected"] for run in right)


def test_what_cannot_be_had_is_an_error(client: httpx.Client) -> None:
    refused = client.post("/api/dialogue/0/heat", json={})
    assert refused.status_code == 400 and "no trained log-ratio critic" in refused.json()["error"]


def test_pages_are_drawn_with_their_difference_from_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    def png(color: str, size: tuple[int, int]) -> bytes:
        target = io.BytesIO()
        Image.new("RGB", size, color).save(target, "PNG")
        return target.getvalue()

    domain = find_domain("frontend")
    page, reference = png("black", (40, 30)), png("white", (40, 50))
    monkeypatch.setattr(type(domain), "picture", lambda self, content: reference if "reference" in content else page)
    (task,) = domain.tasks("test", 1, 1, 2)
    messages = (Message("user", "a page"), Message("assistant", "<html><body>page</body></html>"))
    drawn = pictures(Trajectory(replace(task, ground_truth="<html>reference</html>"), 0, messages), domain)
    assert set(drawn["pages"]) == {"1"} and drawn["reference"].startswith("data:image/png;base64,")
    change = difference(page, reference)
    with Image.open(io.BytesIO(change)) as image:
        assert image.size == (40, 50) and image.getpixel((5, 5)) == 0 and image.getpixel((5, 45)) == 255


def take(path: Path) -> Any:
    """The data that a script of an exported folder hands to the page."""
    call = re.fullmatch(r'sweetrl\.take\("[\w-]+",(.*)\);\n', path.read_text(encoding="ascii"), re.S)
    assert call, path
    return json.loads(call[1])


def rankings_of(shown: Any) -> list[Any]:
    return [state for turn in shown.get("turns", ()) for state in turn["rankings"].values()]


def test_a_folder_holds_what_the_server_says(folder: Path, viewer: Viewer) -> None:
    catalogue = viewer.dialogues.catalogue
    assert take(folder / "data/meta.js")["count"] == 64
    assert take(folder / "data/rows-0.js") == json.loads(json.dumps(catalogue.rows(0)))
    assert take(folder / "data/words-0.js") == catalogue.words(0, 64)
    shown = [entry for part in (0, 1) for entry in take(folder / f"data/dialogues-{part}.js")]
    computed = [entry.pop("computed", None) for entry in shown]
    assert shown == [json.loads(json.dumps(viewer.dialogues.describe(row))) for row in range(64)]
    stored = [entry for entry in shown if any(state["candidates"][0]["heat"] for state in rankings_of(entry))]
    assert len(stored) == EXPLAINED and not viewer.heat.there, "tokens of what `rank` has stored, without a model"
    assert [row for row, entry in enumerate(computed) if entry] == [0, 21, 42] and "run" in computed[0]
    page = (folder / "index.html").read_text()
    assert "Content-Security-Policy" in page
    assert 'href="index.html"' in (folder / "report.html").read_text()


def test_a_folder_of_somebody_else_is_left_alone(viewer: Viewer, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="no earlier export"):
        export(viewer, tmp_path, 0)
    with pytest.raises(UserError, match="no folder can be made here"):
        export(viewer, tmp_path / "mine.txt/view", 0)
    assert export(viewer, tmp_path / "out", 0) == 64
    (tmp_path / "out/data/rows-9.js").write_text("old")
    assert export(viewer, tmp_path / "out", 0) == 64
    assert not (tmp_path / "out/data/rows-9.js").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
