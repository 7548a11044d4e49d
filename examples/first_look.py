"""Load an agent, let it talk with a user, score what it hands over, and ask a critic which turns were worth it."""

import sweetrl

env = sweetrl.domain("backend", agent={"max_new_tokens": 192})
policy = sweetrl.Policy.load("models/base", threads=2)

# One dialogue with the scripted user, scored by hidden unit tests in the sandbox.
dialogue = sweetrl.play(env, policy, seed=7)
for message in dialogue.messages:
    print(f"{message.role:>9}: {message.content}")
passed = sum(test.passed for test in dialogue.tests)
print(f"reward {dialogue.reward:.2f}: {passed} of {len(dialogue.tests)} hidden tests passed")

# Some attempts at some tasks, and a critic that learns from pairs of them what a turn is worth.
dialogues = sweetrl.collect(env, policy, tasks=8, attempts=4, seed=7)
critic = sweetrl.train_critic(env, policy, dialogues, learning_rate=1e-3, epochs=2)
for turn, advantage in zip(dialogue.turns, critic.advantages(dialogue), strict=True):
    print(f"{advantage:+.4f}  {turn.raw.splitlines()[0]}")
