"""What `make run` does, on fewer tasks and in minutes: `make demo`. The same steps are examples/first_look.ipynb."""

# %% The main job's settings, and the small model that ships with the project.
import os
import textwrap
from itertools import zip_longest
from pathlib import Path

import sweetrl
from sweetrl.evaluation.report import verdicts

os.chdir(Path(sweetrl.__file__).parents[2])  # the project's root
env = sweetrl.domain(params="params.yaml")
base = sweetrl.Policy.load("models/base", threads=1)
tasks, held_out = 60, 60

# %% The agent attempts training tasks, four times each, with a scripted user; hidden unit tests score its programs.
dialogues = sweetrl.collect(env, base, tasks=tasks, attempts=4, seed=7)
solved = sum(dialogue.success for dialogue in dialogues)
print(f"{len(dialogues)} dialogues about {tasks} tasks, of which {solved} end with a program that passes every test")

# %% A critic, which sees the reference program, learns from pairs of attempts what a turn is worth (Eqs. 2 and 3).
critic = sweetrl.train_critic(env, base, dialogues, seed=7)
for turn, advantage in zip(dialogues[0].turns, critic.advantages(dialogues[0]), strict=True):
    print(f"advantage {advantage:+.3f}  {turn.raw.splitlines()[0]}")

# %% It ranks replies that are sampled at such turns, and the policy learns from the ranks.
ranking = sweetrl.rank(env, base, critic, dialogues, seed=7)
trained = sweetrl.train("sweet", env, base, ranking=ranking, seed=7)

# %% Both agents attempt the same held-out tasks, without sampling.
evaluation = sweetrl.evaluate(env, [base, trained], tasks=held_out, seed=7)
pairs = list(zip(evaluation.dialogues["base"], evaluation.dialogues["trained"], strict=True))


# %% One dialogue of each, side by side: about the first task that changed its reward.
def pane(title: str, dialogue: sweetrl.Trajectory) -> list[str]:
    """Return the lines of a dialogue, with its reward."""
    said = [line for message in dialogue.messages[1:] for line in f"{message.role}: {message.content}".splitlines()]
    reward = f"reward {dialogue.reward:.2f}: the share of {len(dialogue.tests)} hidden tests passed"
    return [title, *(part for line in said for part in textwrap.wrap(line, 56) or [""]), reward]


before, after = next((pair for pair in pairs if pair[0].reward != pair[1].reward), pairs[0])
print(textwrap.fill(f"user: {before.messages[0].content}", 116), end="\n\n")
for left, right in zip_longest(pane("BEFORE TRAINING", before), pane("AFTER TRAINING", after), fillvalue=""):
    print(f"{left:<58}  {right}".rstrip())

# %% What that shows: the paired differences with their intervals. So little training may show nothing.
rose, fell = (sum(sign * (new.reward - old.reward) > 0 for old, new in pairs) for sign in (1, -1))
print(f"\nOf {len(pairs)} held-out tasks the reward rose on {rose} and fell on {fell}.")
for verdict in verdicts(evaluation.comparison):
    policies = evaluation.comparison["policies"]
    rates = (policies[policy][verdict.measure]["value"] for policy in ("base", "trained"))
    print(f"{verdict.label}: {' -> '.join(f'{rate:.1%}' for rate in rates)}. {verdict.sentence}")
