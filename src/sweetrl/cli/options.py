"""Options that several commands of `sweetrl` take, with their help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from sweetrl.seeds import MOST

STDOUT = Path("-")


Engines = Literal["transformers", "vllm", "openai"]  # who produces the agent's tokens (docs/real-models.md)

# Options that `collect` and `evaluate` share; what is not given comes from params.yaml.
Tasks = Annotated[Path, Option(help="Official task file (.jsonl, .parquet) or a table of `sweetrl tasks`.")]
EngineName = Annotated[Engines | None, Option(help="The agent's engine; with --url: openai.")]
Url = Annotated[list[str] | None, Option(help="Address of the agent's server, as in http://HOST:8000/v1; any number.")]
Model = Annotated[
    str | None, Option(help="The agent: its name at the server (openai), else a model's folder or hub name.")
]
Adapter = Annotated[Path | None, Option(help="A trained adapter's folder (transformers and vllm).")]
UserName = Annotated[
    str | None,
    Option(
        help="Who answers the agent: scripted, described, llm, vision, replay, human, or a path as in "
        "my_package.users:Terse; with --user-url: llm (pages: vision)."
    ),
]
UserUrl = Annotated[list[str] | None, Option(help="Address of the user's server; any number.")]
UserModel = Annotated[str | None, Option(help="The user's model: its name at that server.")]
RecordingFile = Annotated[Path | None, Option(help="Answers of the user: kept and found here (llm), or replayed.")]
Limit = Annotated[int | None, Option(help="Only so many tasks, from the first.", min=1)]
Concurrency = Annotated[int | None, Option(help="Dialogues under way at a time.", min=1)]
Seed = Annotated[int | None, Option(help="Seed of everything random.", min=0, max=MOST)]
Suite = Annotated[str | None, Option(help="The domain: backend, frontend, or a path as in my_package.forms:Forms.")]
Set = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="KEY=VALUE",
        help="Take VALUE for a key of params.yaml in this call, as in agent.max_turns=5; any number.",
    ),
]
Json = Annotated[bool, Option("--json", help="Print the result as JSON to stdout, and nothing else there.")]
JsonFile = Annotated[
    Path | None,
    Option(
        "--json",
        metavar="[FILE]",
        help="Print the result as JSON to stdout, and nothing else there; with FILE, write it to that file.",
    ),
]
# What `export` and `serve` take.
Agent = Annotated[
    str,
    Argument(
        help="MODEL, MODEL@ALIAS, MODEL/VERSION, or an adapter's folder as models/policy.", metavar="MODEL[@ALIAS]"
    ),
]
# What `play` and `show` take.
CriticFolder = Annotated[
    Path | None,
    Option("--critic", help="A trained critic's folder, as models/critic: each reply comes with its advantage."),
]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print the result and errors only: no progress, no hints.")]

# What `sweetrl run`, `ingest`, `restore`, `status` and `prune` take, and hand on to their flows, which take the same.
DryRun = Annotated[bool, Option("--dry-run", "-n", help="Say which stages would run, and why; change nothing.")]
SetFirst = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="KEY=VALUE",
        help="Write VALUE into params.yaml first, as in rank.candidates=16; any number, all or none.",
    ),
]
Profile = Annotated[
    str | None, Option(help="Write the settings of reproduce/NAME/params.yaml into params.yaml first.", metavar="NAME")
]
Begin = Annotated[str | None, Option("--from", help="Leave the stages before this one as they are.", metavar="STAGE")]
Until = Annotated[str | None, Option(help="Stop after this stage.", metavar="STAGE")]
Source = Annotated[str, Argument(help="s3://BUCKET/PREFIX or a folder; default: `ingest.source` of params.yaml.")]
Kind = Annotated[
    Literal["dialogues", "tasks"] | None, Option(help="What the files hold; default: as params.yaml says.")
]
Again = Annotated[bool, Option("--again", help="Look once more at the files in which something was bad.")]
NoPush = Annotated[bool, Option("--no-push", help="Keep the batch on this machine alone.")]
NoEvent = Annotated[bool, Option("--no-event", help="Start no retraining.")]
Version = Annotated[
    str, Argument(help="A version's number, or an alias; without it, who was champion.", metavar="[N|@ALIAS]")
]
Prometheus = Annotated[
    Path | None,
    Option(help="Write it as metrics into this file (node_exporter's folder for text files), and print nothing."),
]
Reason = Annotated[str, Option(help="Why; it is kept in the history of champions.")]
Keep = Annotated[int, Option(help="How many of the last champions stay, so that they can be restored.", min=1)]
Days = Annotated[float, Option(help="What is younger stays.", min=1)]
Remote = Annotated[
    bool, Option("--remote", help="Prune git's remote, and DVC's, which must be this project's alone, too.")
]
PruneDryRun = Annotated[bool, Option("--dry-run", "-n", help="Say what would go, and why the rest stays.")]
