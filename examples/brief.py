"""A reward of one's own on an existing domain: the hidden tests, minus a little for every question.

    reward: {function: examples.brief:brief}
    sources: {reward: examples/brief.py}

The domain scores the answer first, so `dialogue.reward` is its reward (the share of hidden tests passed). A dict names
the parts of the reward, which is their sum; success stays what the domain says it is.
"""

PRICE = 0.02


def brief(task, dialogue):
    """Return the domain's reward and the price of the questions."""
    questions = sum(message.role == "assistant" for message in dialogue.messages) - 1
    return {"tests": dialogue.reward, "questions": -PRICE * questions}
