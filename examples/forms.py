"""A domain of one's own: a caller wants something booked; the agent finds out what the form needs, then fills it.

Each kind of form needs other fields, and the caller names only the form. The agent has to know (or find out) which
fields matter, ask for them one at a time, and hand in `field: value` lines. `params.yaml: suite: examples.forms:Forms`
takes the domain through every stage; `sweetrl.domain("examples.forms:Forms")` gives it to Python.
"""

import random
from itertools import product

from sweetrl import Demonstration, Domain, Judgment, Message, Pretraining, Task

# field: (how an agent asks for it, how a caller tells it, the values)
FIELDS = {
    "day": ("Which day?", "On {}.", ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]),
    "hour": ("At what hour?", "At {}.", [str(hour) for hour in range(8, 21)]),
    "guests": ("For how many?", "For {}.", [str(count) for count in range(1, 8)]),
    "name": (
        "Under which name?",
        "Under {}.",
        ["Adler", "Brandt", "Costa", "Duval", "Ekman", "Fischer", "Garcia", "Hansen"],
    ),
    "room": ("Which room?", "In {}.", ["blue", "green", "large", "small", "upper", "lower"]),
    "reason": ("What is it about?", "About {}.", ["repair", "advice", "payment", "delivery", "return"]),
}
FORMS = {
    "a table": ("day", "hour", "guests"),
    "a meeting": ("day", "hour", "room"),
    "a call back": ("hour", "name", "reason"),
    "a bed": ("day", "guests", "name"),
    "a visit": ("day", "name", "reason"),
}
USUAL = ("day", "hour", "guests")  # what is asked out of habit, whatever the form
OPENERS = ("I would like to book", "Could I have", "Please note down", "I need")
MARKER = "I WANT TO ANSWER:"


def fill(values: dict[str, str]) -> str:
    """Return the form with these values."""
    return "\n".join(f"{field}: {value}" for field, value in values.items())


def read(text: str) -> dict[str, str]:
    """Return the values of a filled form; lines of another kind are left out."""
    lines = (line.partition(": ") for line in text.splitlines())
    return {field.strip(): value.strip() for field, colon, value in lines if colon and field.strip() in FIELDS}


def asked(words: str) -> str | None:
    """Return the field that a question is about, or None."""
    return next((field for field, (question, _, _) in FIELDS.items() if question in words), None)


class Forms(Domain):
    """Fill a form for a caller."""

    prompt = "Find out what the form needs, then fill it in."
    contrasts = (("needed", "useless"), ("needed", "repeated"), ("complete", "premature"))
    pretraining = Pretraining(tuple(f" {value}" for _, _, values in FIELDS.values() for value in values), positions=512)

    def tasks(self, split, count, seed, difficulty):
        """Yield tasks: every fifth content is for tests."""
        every = [(form, values) for form, names in FORMS.items() for values in product(*(FIELDS[n][2] for n in names))]
        own = [content for number, content in enumerate(every) if (number % 5 == 0) == (split == "test")]
        rng = random.Random(f"{split}-{seed}")
        rng.shuffle(own)
        for number, (form, values) in enumerate(own[:count]):
            request = f"{rng.choice(OPENERS)} {form}."
            yield Task(f"forms-{split}-{seed}-{number}", request, fill(dict(zip(FORMS[form], values, strict=True))))

    def reply(self, task, messages, seed):
        """Say what the caller answers: the value that was asked for, if the form has it."""
        field = asked(messages[-1].content)
        values = read(task.ground_truth)
        if field is None:
            return "Sorry, what do you mean?"
        return FIELDS[field][1].format(values[field]) if field in values else "That does not matter."

    def reward(self, task, dialogue):
        """Nine tenths for the right fields, one for having asked for nothing else."""
        reference, answer = read(task.ground_truth), read(dialogue.answer or "")
        right = sum(answer.get(field) == value for field, value in reference.items()) / len(reference)
        extra = sum(field not in reference for field in answer) + sum(
            asked(words) not in reference for words in self.questions(dialogue)
        )
        return {"right": 0.9 * right, "brief": 0.1 * (right == 1.0 and extra == 0)}

    def judge(self, task, earlier, reply):
        """Return what a reply is worth: for the oracle, and to see what a critic has learnt."""
        reference = read(task.ground_truth)
        before = {asked(message.content) for message in earlier if message.role == "assistant"}
        if self.answers(reply):
            done = read(reply.partition(MARKER)[2]) == reference
            return Judgment(3.0, "complete") if done else Judgment(-1.0, "premature")
        field = asked(reply)
        if field in before or field is None:
            return Judgment(0.0, "repeated")
        return Judgment(2.0, "needed") if field in reference else Judgment(1.0, "useless")

    def demonstrate(self, task, settings, max_turns, seed):
        """Play an agent with a habit, that looks at the form at some turns: a base agent is pre-trained on these."""
        rng = random.Random(f"forms-demonstration-{seed}")
        reference, informed = read(task.ground_truth), rng.random() < settings.informed
        heed = settings.informed_heed if informed else rng.uniform(settings.heed_least, settings.heed_most)
        messages, values = [Message("user", task.problem_description)], {}
        while True:
            before = [asked(message.content) for message in messages[1::2]]
            left = [field for field in (reference if rng.random() < heed else USUAL) if field not in before]
            last = not left or len(before) >= max_turns - 1
            messages.append(Message("assistant", f"{MARKER}\n{fill(values)}" if last else FIELDS[left[0]][0]))
            if last:
                return Demonstration(tuple(messages), informed)
            messages.append(Message("user", self.reply(task, messages, seed)))
            if left[0] in reference:
                values = {name: reference[name] for name in reference if name in values or name == left[0]}
