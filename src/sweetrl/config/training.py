"""The sections of params.yaml that say how critics and policies learn; import them from sweetrl.config.settings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sweetrl.config.sections import PassTokens, Positive, Probability, Rate, Section, Seed


class LoraSettings(Section):
    """Low-rank adapters (peft)."""

    rank: Positive = Field(16, description="Rank r.")
    alpha: Rate = Field(32, description="Scale alpha.")
    dropout: Probability = Field(0.0, description="Dropout on the adapter's input.")
    target_modules: str = "all-linear"
    """peft's `target_modules`: `all-linear` or comma-separated names."""


class TrainerSettings(Section):
    """What all that trains has in common.

    `warm_start`, `critic`, `policy`, `multi_turn_dpo`, `rft` and `grpo` have these keys, too: what such a section does
    not state is as here. A default in its own table holds where neither states the key.
    """

    learning_rate: Rate = Field(2e-7, description="Peak learning rate (official: 2e-7, full fine-tuning of 8B).")
    epochs: Rate = Field(1.0, description="Passes over the pairs.")
    batch_size: Positive = Field(8, description="Pairs for one optimiser step.")
    micro_batch_size: Positive = 8
    """Maximum pairs in one forward pass; with `tokens: auto` on a GPU memory alone decides."""
    tokens: PassTokens = "auto"
    """Maximum tokens in one forward pass, with padding; a single pair may be longer. `auto`: what fits on the GPU;
    16384 on a CPU."""
    layout: Literal["trees", "flat"] = "trees"
    """`trees`: rows that begin alike are computed once. `flat`: each sequence is a padded row; the same losses, for
    checking."""
    max_pairs_per_group: Positive = 8
    """Maximum pairs of one dialogue (policy) or one task (critic) in a step: more share more computation, fewer make a
    step more diverse; 1 draws all pairs at random."""
    gradient_checkpointing: bool = False
    """Recompute activations to save memory; with `tokens: auto` also where a pair needs it."""
    warmup_ratio: Probability = Field(0.03, description="Share of the steps with a rising learning rate.")
    min_lr_ratio: Probability = Field(0.1, description="The cosine decays to this share of the peak.")
    max_grad_norm: Rate = Field(1.0, description="Largest gradient norm.")
    checkpoints: Positive = Field(5, description="Checkpoints over the run; a killed run continues from the last.")
    lora: LoraSettings = Field(default_factory=LoraSettings, description="The adapter.")


class WarmStartSettings(TrainerSettings):
    """Stage `warm-start`: a pretrained model imitates the scripted demonstrators of section `pretrain`
    (docs/real-models.md)."""

    base: str = Field("", description="The pretrained model's folder or hub name; `model.base` is what comes of it.")
    dialogues: Positive = 2000
    """Demonstrations, each about a task of its own where there are enough."""
    learning_rate: Rate = Field(5e-4, description="Peak learning rate.")
    epochs: Rate = 1.0
    """Passes over the demonstrations, first over those that heed the request at most turns (`pretrain.reading`)."""
    batch_size: Positive = Field(16, description="Demonstrations for one optimiser step.")
    micro_batch_size: Positive = Field(16, description="Maximum demonstrations in one forward pass.")
    seed: Seed = Field(11, description="Seed of the demonstrations, their order and the adapter.")


class VisionSettings(Section):
    """The vision-language model of a critic of pages (critic.parameterization: vision-head)."""

    model: str = Field("", description="A Qwen2-VL model's folder or hub name.")
    tokens: Positive = Field(256, description="Maximum tokens of one picture, of 28 x 28 pixels each.")


class CriticSettings(TrainerSettings):
    """Stage `train-critic`: the turn-wise advantage (Eqs. 2-3)."""

    beta: Rate = Field(0.1, description="beta of Eq. 2.")
    nll: float = Field(0.01, ge=0.0, description="Weight of the chosen trajectory's negative log-likelihood.")
    normalization: Literal["turn", "trajectory", "none"] = "turn"
    """`turn`: mean over each turn's tokens, then the sum (Eq. 3). `trajectory`: the official code."""
    privileged: bool = Field(True, description="Whether the critic sees the training-time information c.")
    pairs: Literal["official", "all"] = "official"
    """`official`: chosen is the first successful attempt, rejected every one with less. `all`: every two attempts whose
    rewards differ by `gap`."""
    gap: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    """Smallest difference of reward in a pair (pairs: all)."""
    parameterization: Literal["log-ratio", "regression-head", "value-head", "vision-head"] = "log-ratio"
    """`log-ratio`: Eq. 3. `regression-head` and `value-head` are in docs/concepts.md, `vision-head` (pages) in
    docs/frontend.md. Heads ignore `normalization` and `nll`."""
    vision: VisionSettings = Field(default_factory=VisionSettings, description="The critic's own model (vision-head).")
    privileged_position: Literal["system", "before"] = "system"
    """Where c stands: at the head of the system message, or `before` the begin-of-text token (the official code)."""
    token_set: Literal["replies", "official"] = "replies"
    """Which tokens are scored. `replies`: those that were sampled. `official`: in training also the last token of the
    assistant's header; in ranking the whole header and the reply without its end-of-turn, against a reference over the
    reply with it."""
    reference: Literal["conditioned", "unconditioned"] = "conditioned"
    """Whether pi_ref of Eq. 3 sees c in training (paper), or not (log-ratio only): then training starts from
    `rank.critic: privileged-ratio`, not from 0. `rank.reference` says the same of ranking."""


class RankSettings(Section):
    """Stage `rank`: candidate replies at the turns of the offline dialogues, ranked by the critic."""

    share: Annotated[float, Field(gt=0.0, le=1.0)] = Field(0.1, description="Share of the trajectories that are used.")
    candidates: Annotated[int, Field(ge=2)] = Field(16, description="Replies sampled at each turn.")
    pairs: Positive = 4
    """Pairs drawn at each turn."""
    margin: float = Field(0.0, ge=0.0, description="Smallest difference of advantage in a pair.")
    reference: Literal["conditioned", "unconditioned"] = "conditioned"
    """Whether pi_ref sees c in Eq. 3 (paper) or not (the official code)."""
    selection: Literal["halves", "extremes"] = "halves"
    """`halves`: chosen from the upper half, rejected from the lower (official). `extremes`: best against worst only."""
    distinct: bool = True
    """Whether the halves are formed over distinct replies (else over all samples, so that frequent replies are drawn
    more often, as in the official code)."""
    reply_types: Literal["any", "same", "mean_centered", "median_centered", "no_questions"] = "any"
    """Which replies may form a pair. `any`: any two. `same`: two questions, two final answers, or two pages that are
    shown. `mean_centered`, `median_centered`: any two, after the mean or median advantage of each type is subtracted.
    `no_questions`: any two but questions (docs/concepts.md says why)."""
    critic: Literal["trained", "privileged-ratio", "rollout-value", "judge", "random", "oracle"] = "trained"
    """Who ranks: the critic that `train-critic` has `trained`, or one without training: `privileged-ratio`,
    `rollout-value`, `judge`, `random`, `oracle` (docs/concepts.md)."""
    rollouts: Positive = 4
    """critic: rollout-value: continuations of each distinct reply to the dialogue's end."""
    block: Positive = 32
    """Dialogues ranked together; the most that a killed run repeats."""
    layout: Literal["trees", "flat"] = "trees"
    """As `trainer.layout`: a dialogue and all candidates of its turns are one tree, or each a padded row."""
    tokens: PassTokens = "auto"
    """Maximum tokens in one forward pass; a longer tree is split at its turns, exactly."""
    token_ratios: Annotated[int, Field(ge=0)] = 20
    """Of so many dialogues' candidates each token's log pi_theta - log pi_ref is kept for `sweetrl view` (critics that
    are log-ratios)."""


class JudgeSettings(Section):
    """The language model that ranks replies where `rank.critic` is `judge`."""

    model: str = Field("", description="Folder or hub name of the judge; empty: `model.base`.")
    prompt: str = ""
    """A shipped prompt's name, or your own text file with {reference}, {dialogue}, {first} and {second}; the reply must
    end with A or B. Empty: the domain's."""
    comparisons: Positive = 2
    """Replies that each reply is compared with, in both orders."""
    max_new_tokens: Positive = Field(256, description="Token limit of one verdict.")


class PreferenceSettings(TrainerSettings):
    """Preference training of an actor: the DPO loss and the likelihood terms beside it."""

    beta: Rate = Field(0.1, description="beta' of Eq. 4.")
    nll: float = Field(0.01, ge=0.0, description="Weight of the chosen reply's negative log-likelihood per token.")
    normalization: Literal["none", "token"] = "none"
    """`none`: summed log-ratios (Eq. 4). `token`: means over the reply's tokens."""
    loss: Literal["sigmoid", "ipo"] = "sigmoid"
    """`sigmoid`: DPO (Eq. 4). `ipo`: the squared distance of the margin from 1/(2 beta)."""
    label_smoothing: Annotated[float, Field(ge=0.0, lt=0.5)] = 0.0
    """Assumed share of pairs that are the wrong way round (loss: sigmoid)."""
    sft_replay: float = Field(0.0, ge=0.0)
    """Replies of successful dialogues trained on beside each pair (0.5: one for every two pairs)."""
    sft_replay_nll: float = Field(1.0, ge=0.0)
    """Weight of the replayed replies' negative log-likelihood per token."""
    sft_replay_turns: Literal["final", "all"] = "final"
    """Its final reply is replayed, or all its replies."""
    loss_tokens: Literal["replies", "all"] = "replies"
    """`all`: the loss covers the user's and the system's tokens, too (the official code); they count in the likelihood
    only, and not with `policy.objective: listwise`."""


class PolicySettings(PreferenceSettings):
    """Stage `train-policy`: training of the actor, which never sees c, on ranked candidate replies."""

    objective: Literal["dpo", "listwise"] = "dpo"
    """`dpo`: preferences between pairs of candidates (Eq. 4). `listwise`: the likelihood of all candidates of a state,
    weighted (docs/concepts.md)."""
    count_power: float = Field(1.0, ge=0.0)
    """listwise: power of how often a candidate was sampled; above 1 also sharpens."""
    advantage_temperature: float = Field(0.1, ge=0.0)
    """listwise: how far apart advantages must be to matter; 0 leaves them out."""
    learn_thoughts: bool = True
    """Whether policies of every method learn thoughts, or only what is said (of a reply without words its last token).
    `loss_tokens: all` learns everything."""
    states: Literal["equal", "advantage"] = "equal"
    """listwise. `equal`: the weights of a state sum to 1. `advantage`: they are not normalised (AWR), so that a state
    whose candidates are all poor counts little; each is at most 20."""


class MultiTurnSettings(PreferenceSettings):
    """Method `multi-turn-dpo`: DPO of the policy on pairs of whole trajectories, without c (Eq. 2 without a critic)."""

    epochs: Rate = Field(4.0, description="Passes over the pairs.")


class RftSettings(TrainerSettings):
    """Method `rft`: Rejection Fine-Tuning, the likelihood of every reply of the successful attempts."""

    epochs: Rate = Field(4.0, description="Passes over the successful attempts.")
    batch_size: Positive = Field(32, description="Attempts for one optimiser step.")
    min_reward: Probability = 1.0
    """Lowest reward of an attempt that is imitated, without the price of questions; less for pages, which hardly ever
    equal the reference."""


class GrpoSettings(TrainerSettings):
    """Method `grpo`: on-policy policy gradients with the user in the loop (GRPO, as in RAGEN).

    It plays iterations x tasks x group_size dialogues.
    """

    epochs: Rate = Field(1.0, description="Passes over the attempts of an iteration.")
    batch_size: Positive = Field(32, description="Attempts for one optimiser step.")
    micro_batch_size: Positive = Field(16, description="Maximum attempts in one forward pass.")
    max_pairs_per_group: Positive = 8
    """Maximum attempts at one task in a step: their prompts are computed once."""
    checkpoints: Positive = 20
    """Checkpoints over the run, at the ends of iterations."""
    iterations: Positive = Field(20, description="How often the current policy samples dialogues.")
    staleness: Literal[0, 1] = 0
    """1: while an iteration is learnt from, the policy before plays the next one's dialogues; the ratio is to that."""
    tasks: Positive = Field(25, description="Tasks attempted in an iteration; the next iteration takes the next ones.")
    group_size: Annotated[int, Field(ge=2)] = 8
    """Attempts at each: the group within which returns are compared."""
    clip_ratio: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    """e: the ratio to the policy that sampled is clipped to 1 - e ... 1 + e."""
    kl_coef: float = Field(0.02, ge=0.0, description="Weight of KL(pi_theta || pi_ref) per token; pi_ref is the base.")
    credit: Literal["trajectory", "turn", "infopo", "igpo", "privileged", "distillation"] = "trajectory"
    """What a token is worth: `trajectory`: the return, normalised in its group. `turn`: the discounted return of its
    turn, likewise. `infopo`: the return, and what the user's answer changes in the next reply. `igpo`: what the turn
    adds to the probability of the reference. `privileged`: how much likelier it is for the base that sees c, without
    rewards. `distillation`: the same over the whole vocabulary. docs/concepts.md has the equations."""
    discount: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """credit: turn, igpo: the discount of a later turn."""
    intrinsic_weight: float = Field(0.5, ge=0.0)
    """credit: infopo: weight of the information gain beside the outcome."""
    intrinsic_gate_temperature: Rate = 0.05
    """credit: infopo: T of the gate sigmoid(-d / T), d the deviation of the rewards in the group."""
