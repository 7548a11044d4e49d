"""What the endpoint counts, as Prometheus reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

# Upper ends of the buckets of how long a request took, in seconds.
BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Numbers:
    """Requests by status, their seconds, and tokens read and written."""

    def __init__(self) -> None:
        self.requests: Counter[int] = Counter()
        self.prompt_tokens = self.generated_tokens = 0
        self.dialogues: Mapping[str, int] | None = None
        """How many dialogues were kept, dropped and forgotten, or could not be written; None where none are kept."""
        self._seconds = 0.0
        self._buckets: Counter[float] = Counter()

    def count(self, status: int, seconds: float) -> None:
        """Count one request."""
        self.requests[status] += 1
        self._seconds += seconds
        self._buckets.update(limit for limit in BUCKETS if seconds <= limit)

    def text(self, model: str, version: str, waiting: int, changes: int, failures: int) -> str:
        """Return everything in Prometheus' text format; `model` and `version` answer now."""
        return "\n".join(self._lines(model, version, waiting, changes, failures)) + "\n"

    def _lines(self, model: str, version: str, waiting: int, changes: int, failures: int) -> Iterator[str]:
        yield from _head("sweetrl_agent_info", "gauge", "The agent that answers now.")
        yield f'sweetrl_agent_info{{model="{_label(model)}",version="{_label(version)}"}} 1'
        yield from _head("sweetrl_requests_total", "counter", "Chat requests by HTTP status.")
        for status, number in sorted(self.requests.items()):
            yield f'sweetrl_requests_total{{status="{status}"}} {number}'
        total = self.requests.total()
        yield from _head("sweetrl_request_seconds", "histogram", "Seconds from a chat request to its answer.")
        for limit in BUCKETS:
            yield f'sweetrl_request_seconds_bucket{{le="{limit:g}"}} {self._buckets[limit]}'
        yield f'sweetrl_request_seconds_bucket{{le="+Inf"}} {total}'
        yield f"sweetrl_request_seconds_sum {self._seconds:.6f}"
        yield f"sweetrl_request_seconds_count {total}"
        for name, kind, number, about in (
            ("requests_waiting", "gauge", waiting, "Chat requests that wait for the agent."),
            ("prompt_tokens_total", "counter", self.prompt_tokens, "Tokens of the dialogues that were answered."),
            ("generated_tokens_total", "counter", self.generated_tokens, "Tokens of the replies."),
            ("agent_changes_total", "counter", changes, "How often another version has taken over."),
            ("follow_failures_total", "counter", failures, "Failed looks at the registry, failed loads of a version."),
        ):
            yield from _head(f"sweetrl_{name}", kind, about)
            yield f"sweetrl_{name} {number}"
        if self.dialogues is not None:
            yield from _head("sweetrl_dialogues_total", "counter", "Dialogues with consent, by what became of them.")
            for how in ("kept", "dropped", "forgotten", "failed"):
                yield f'sweetrl_dialogues_total{{became="{how}"}} {self.dialogues.get(how, 0)}'


def _head(name: str, kind: str, about: str) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
