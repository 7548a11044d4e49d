"""What sections of the settings are made of, and some of them: pages rendered and compared, dialogues collected.

Everything else, and how the sections come together, is in sweetrl.settings.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Probability = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0.0)]


class Section(BaseModel):
    """A frozen group of settings that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class BrowserSettings(Section):
    """How pages are rendered (docs/browser.md). Width, height, maximum height and javascript are part of the result."""

    path: str = Field("", description="The browser's program (Chromium or its headless shell); empty: searched for.")
    width: Positive = Field(1366, description="Width of the viewport and of every picture, in CSS pixels.")
    height: Positive = Field(682, description="Height of the viewport and least height of a picture (officially 682).")
    maximum_height: Positive = Field(8000, description="A taller page is cut here, and says so.")
    seconds: Rate = Field(5.0, description="Wall-clock limit of one page; twice as long in the second try, alone.")
    tabs: Positive = Field(4, description="Pages under way at a time.")
    recycle: Positive = Field(200, description="Pages before a tab is replaced.")
    restart: Positive = Field(1000, description="Pages before the browser is replaced.")
    memory_mib: int = Field(2048, ge=0, description="Limit of a browser process's own memory; 0 is none.")
    cache: str = Field(".cache/pages", description="Folder of rendered pages, by HTML and renderer; empty: none.")
    javascript: bool = Field(False, description="Let pages run scripts (still without network); slower.")


class SimilaritySettings(Section):
    """How alike a page is to the reference: the reward of Frontend Design. Its name is part of every result."""

    kind: Literal["layout", "clip"] = Field(
        "layout", description="`layout` needs no model; `clip` is the cosine of CLIP's image embeddings, as officially."
    )
    model: str = Field("openai/clip-vit-base-patch32", description="clip: a model's folder or hub name.")
    view: Literal["official", "squash"] = Field(
        "official", description="clip: the page's centre square, as officially, or the whole page made square."
    )
    device: str = Field("auto", description="clip: `auto` takes a CUDA device where there is one, else the CPU.")
    batch: Positive = Field(16, description="clip: pictures embedded at a time.")


class CollectSettings(Section):
    """Stage `collect`: offline trajectories of the base policy, or dialogues that others have made."""

    source: Literal["sampled", "files"] = Field(
        "sampled",
        description="`sampled`: the base policy attempts training tasks. `files`: the dialogues in "
        "`sources.trajectories`, official trajectory files or logs (docs/own-dialogues.md); no agent and no user is "
        "needed.",
    )
    tasks: Positive = Field(400, description="How many training tasks to attempt.")
    first: int = Field(0, ge=0, description="The first training task of the batch; a retraining advances it.")
    attempts: Positive = Field(4, description="Attempts at each task (k contiguous blocks when exported).")
    batch: Positive = Field(128, description="Dialogues in progress at a time.")
    shard: Positive = Field(
        256,
        description="Dialogues in one Parquet shard; what a killed run repeats at most (engine: transformers; with a "
        "server every finished dialogue is kept).",
    )
    lost_share: Probability = Field(
        0.05, description="The stage stops when more than this share of the dialogues is lost; finished ones are kept."
    )
    keep_rewards: bool = Field(
        False,
        description="source: files: take the rewards that official files have, instead of scoring the answers. Logs "
        "always keep theirs.",
    )
    skip_bad: int = Field(
        0,
        ge=0,
        description="source: files: how many bad rows may be left out; they lie in bad-rows.jsonl beside the shards.",
    )
