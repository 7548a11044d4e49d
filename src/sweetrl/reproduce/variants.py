"""What is compared: one variant for each row of the paper's tables, as differences from params.yaml.

The paper's numbers stand beside ours for their order, not for their size: other model, other tasks.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sweetrl.config.overrides import set_key
from sweetrl.config.settings import OFFICIAL
from sweetrl.errors import UserError
from sweetrl.methods.base import Method, find_method
from sweetrl.types import ANSWER_MARKER


@dataclass(frozen=True)
class Variant:
    """One row: `settings` by dotted name over those of the profile; `data` is the share of the tasks learnt from.

    `paper` is (tests passed, success) in per cent on Llama-3.1-8B (Table 4: 70B), None where the paper has no number;
    `pages` the same of pages: (cosine, win rate against GPT-4o). `against` names the variant that it is compared with.
    `permuted` says what is changed in the data (sweetrl.reproduce.permuted): c is another task's for critic and ranking
    (`references`), or the critic's pairs go by permuted rewards (`rewards`). What an agent says in its last turn begins
    with `opening` when it is measured.
    """

    name: str
    label: str
    table: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    paper: tuple[float | None, float | None] = (None, None)
    data: float = 1.0
    pages: tuple[float | None, float | None] = (None, None)
    against: str = "sweet"
    permuted: Literal["", "references", "rewards"] = ""
    opening: str = ""

    @property
    def folder(self) -> str:
        """Where its results lie: apart for those that other parts of the pipeline do not depend on."""
        return {ONLINE: "online", LARGE: "large"}.get(self.table, "variants")

    @property
    def method(self) -> Method:
        """How its policy is trained."""
        return find_method(str(self.settings.get("method", "sweet")))

    @property
    def trained(self) -> bool:
        """Whether anything is trained for it."""
        return self.method.trains

    @property
    def ranks(self) -> bool:
        """Whether replies are ranked for it."""
        return "preferences" in self.method.needs


METHODS, ABLATIONS, CONTROLS, AMOUNTS = "Table 2", "Table 3", "Controls", "Figure 3b"
OFFICIALLY, LARGE, ONLINE = "Official code", "Table 4", "Online"
TABLES = (METHODS, ABLATIONS, OFFICIALLY, CONTROLS, AMOUNTS, LARGE, ONLINE)

PRETRAINED = "models/smollm2"  # the project's; `make smollm2`
LARGE_BASE = "models/base-large"  # in the profile's folder; the dialogues are the small base's


def _large(name: str, label: str, paper: float | None = None, **settings: Any) -> Variant:
    changes = {"model.base": LARGE_BASE, **settings}
    return Variant(f"large-{name}", f"larger base, {label}", LARGE, changes, (None, paper), against="large-sweet")


def _grpo(credit: str, label: str, more: Mapping[str, Any] | None = None) -> Variant:
    return Variant(f"grpo-{credit}", label, ONLINE, {"method": "grpo", "grpo.credit": credit, **(more or {})})


RATIO = {"rank.critic": "privileged-ratio"}
NO_REPLAY = {"policy.sft_replay": 0.0}
ANSWER = f"{ANSWER_MARKER}\n"
CONDITIONED = {"critic.reference": "conditioned", "rank.reference": "conditioned"}
UNTRAINED = {"method": "zero-shot", "model.base": PRETRAINED}
NOT_TOLD = "without training-time information"
DPO = {"policy.objective": "dpo"}
EVERY_QUESTION = "sweetrl.reproduce.filters:EveryQuestion"
# The critic begins at zero then, whatever its reference; what else is here was chosen for it on validation tasks.
WITHOUT = {
    "critic.privileged": False,
    "critic.learning_rate": 1e-3,
    "policy.advantage_temperature": 0.02,
    "policy.epochs": 3.0,
}
MEDIAN = {"rank.reply_types": "median_centered"}
# Self-distillation: the policy imitates its own replies by how often it gives them, squared; no critic, and no reward:
# no successful dialogues either.
SHARPENED = {
    "rank.critic": "random",
    "policy.objective": "listwise",
    "policy.advantage_temperature": 0.0,
    "policy.count_power": 2.0,
    "policy.states": "equal",
    **NO_REPLAY,
}


_VARIANTS = (
    Variant("zero-shot", "zero-shot", METHODS, {"method": "zero-shot"}, (34.2, 22.4), pages=(72.4, 33.8)),
    Variant("pretrained", "the pretrained model, before its warm start", METHODS, UNTRAINED, against="pretrained"),
    Variant("single-turn", "single-turn zero-shot", METHODS, {"method": "single-turn"}, (None, 6.9)),
    Variant("rft", "Rejection Fine-Tuning", METHODS, {"method": "rft"}, (40.9, 28.2), pages=(75.2, 38.6)),
    Variant(
        "multi-turn-dpo", "Multi-Turn DPO", METHODS, {"method": "multi-turn-dpo"}, (48.0, 34.4), pages=(76.9, 42.8)
    ),
    Variant("answered-turns", "imitation of answered questions", METHODS, {"method": "answered-turns"}),
    Variant("sweet", "SWEET-RL", METHODS, {}, (56.8, 40.4), pages=(77.7, 48.2)),
    Variant("no-privileged", NOT_TOLD, ABLATIONS, WITHOUT, (44.0, 31.2)),
    Variant("conditioned", "Eq. 3 as printed: the reference sees c", ABLATIONS, CONDITIONED),
    Variant(
        "regression-head", "regression head", ABLATIONS, {"critic.parameterization": "regression-head"}, (45.3, 36.2)
    ),
    Variant("value-head", "value function", ABLATIONS, {"critic.parameterization": "value-head"}),
    Variant("no-normalisation", "without normalisation", ABLATIONS, {"critic.normalization": "none"}, (4.2, 3.6)),
    Variant("median-centred", "centred by the median", ABLATIONS, MEDIAN),
    Variant("median-centred-no-c", "centred by the median, no c", ABLATIONS, {**WITHOUT, **MEDIAN}),
    Variant("median-centred-conditioned", "by the median, Eq. 3 as printed", ABLATIONS, {**CONDITIONED, **MEDIAN}),
    Variant("sweet-dpo", "pairs of replies (DPO) in place of lists", ABLATIONS, DPO),
    Variant("official", "as the official code does it", OFFICIALLY, {"preset": "official"}),
    *(
        Variant(
            f"official-{key.replace('_', '-')}", f"only critic.{key}: {value}", OFFICIALLY, {f"critic.{key}": value}
        )
        for key, value in OFFICIAL["critic"].items()  # its other switches change nothing here, or are `sweet-dpo`
    ),
    # After `agent.max_turns` - 1 questions, a number that is chosen on validation tasks (`variant_settings`).
    Variant("forced-answer", "zero-shot, made to answer", CONTROLS, {"method": "zero-shot"}, opening=ANSWER),
    Variant("every-question", "imitation of every question", CONTROLS, {"method": EVERY_QUESTION}),
    Variant("sharpened", "sharpened, without rewards", CONTROLS, SHARPENED),
    Variant("privileged-ratio", "ranking by the base that knows c", CONTROLS, RATIO),
    Variant("other-c", "with another task's c", CONTROLS, permuted="references"),
    Variant(
        "median-centred-other-c", "centred by the median, another task's c", CONTROLS, MEDIAN, permuted="references"
    ),
    Variant(
        "privileged-ratio-other-c", "ranking by the base, another task's c", CONTROLS, RATIO, permuted="references"
    ),
    Variant("permuted-rewards", "critic of permuted rewards", CONTROLS, permuted="rewards"),
    Variant("no-replay", "without replay of successes", CONTROLS, NO_REPLAY),
    Variant("no-rewards", "critic of permuted rewards, no replay", CONTROLS, NO_REPLAY, permuted="rewards"),
    Variant("rollout-value", "ranking by further dialogues", CONTROLS, {"rank.critic": "rollout-value"}),
    Variant("random", "random ranking", CONTROLS, {"rank.critic": "random"}),
    Variant("oracle", "ranking by an oracle", CONTROLS, {"rank.critic": "oracle"}),
    Variant("sweet-third", "SWEET-RL, a third of the tasks", AMOUNTS, {}, data=1 / 3),
    Variant("no-privileged-third", f"{NOT_TOLD}, a third of the tasks", AMOUNTS, WITHOUT, data=1 / 3),
    Variant("sweet-tenth", "SWEET-RL, a tenth of the tasks", AMOUNTS, {}, data=1 / 10),
    Variant("no-privileged-tenth", f"{NOT_TOLD}, a tenth of the tasks", AMOUNTS, WITHOUT, data=1 / 10),
    Variant("dpo-third", "Multi-Turn DPO, a third of the tasks", AMOUNTS, {"method": "multi-turn-dpo"}, data=1 / 3),
    Variant("rft-third", "Rejection Fine-Tuning, a third of the tasks", AMOUNTS, {"method": "rft"}, data=1 / 3),
    _large("zero-shot", "zero-shot", 35.0, method="zero-shot"),
    _large("rft", "Rejection Fine-Tuning", method="rft"),
    _large("multi-turn-dpo", "Multi-Turn DPO", method="multi-turn-dpo"),
    _large("sweet", "SWEET-RL", 45.6),
    Variant("sweet-iterations", "SWEET-RL, three iterations", ONLINE, {"iterations": 3}),
    Variant("grpo", "GRPO, on-policy", ONLINE, {"method": "grpo"}),
    _grpo("turn", "GRPO, credit by turn", {"grpo.discount": 0.9}),
    _grpo("infopo", "GRPO, credit by what answers change"),
    _grpo("privileged", "privileged self-distillation, on-policy, without rewards"),
    _grpo("distillation", "privileged self-distillation over the whole vocabulary, on-policy, without rewards"),
    _grpo("igpo", "GRPO, credit by what turns tell"),
)
VARIANTS = {variant.name: variant for variant in _VARIANTS}


def variant_named(name: str) -> Variant:
    """Return the variant; a name that is none is a UserError."""
    if name not in VARIANTS:
        raise UserError(f"reproduce: there is no variant `{name}`; there are {', '.join(VARIANTS)}.")
    return VARIANTS[name]


def merged(values: Mapping[str, Any], *changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree `values` with each of `changes` (dotted names) over it; a name that is not there is an error."""
    tree = copy.deepcopy(dict(values))
    for name, value in (pair for change in changes for pair in change.items()):
        set_key(tree, name, value, "reproduce")
    return tree
