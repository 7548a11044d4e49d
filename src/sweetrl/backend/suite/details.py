"""The kinds of hidden detail of a synthetic task: how each is asked for, told, and written as Python.

A program of the suite takes one number and computes another. It is a fixed sequence of steps, each step the business of
one kind of detail; a task hides some of them. `KINDS` is in the order in which the steps stand in a program. A step
names its values before it uses them, and a user says the same name before the value; all questions about a kind share
a word. Some kinds are told in two parts: only a second question about them (a follow-up) brings out the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

CURRENCIES = ("EUR", "USD", "GBP", "CHF", "JPY", "SEK", "NOK", "PLN", "CZK", "INR", "BRL", "CAD")


@dataclass(frozen=True)
class Kind:
    """One kind of detail.

    `questions` are wordings an agent may use, `answers` wordings of the user ({0}, {1} are the values), `code` the
    lines of the step ({x} is the argument), `values` the inclusive ranges the values are drawn from (empty: a currency
    word). `pattern` recognises a question about this kind in free text; `more_specific_than` names kinds that a match
    overrules. Where there are `follow_ups`, the first question brings out `answers` and a second question `rest` (from
    a terse user: `short_rest`).
    """

    name: str
    questions: tuple[str, ...]
    answers: tuple[str, ...]
    code: tuple[str, ...]
    values: tuple[tuple[int, int], ...]
    pattern: str
    more_specific_than: tuple[str, ...] = ()
    follow_ups: tuple[str, ...] = ()
    rest: tuple[str, ...] = ()
    short_rest: str = ""
    short: str = ""

    @property
    def terse(self) -> str:
        """What a terse user says first: the name that the value has in the program, unless it is `short`."""
        return self.short or f"Yes: {self.code[0].removesuffix(' = {0}')} {{0}}."

    @property
    def parts(self) -> int:
        """How many questions bring out all of it."""
        return 2 if self.follow_ups else 1


KINDS: tuple[Kind, ...] = (
    Kind(
        "negative",
        (
            "Negative input: what should happen?",
            "Negative numbers: which code do they get?",
            "Negative values: are they possible?",
        ),
        ("The code for negative input is {0}.", "If it is negative, return {0}.", "For negative numbers return {0}."),
        ("negative = {0}", "if {x} < 0:", "    return negative"),
        ((40, 99),),
        r"negative|below zero|less than (zero|0)|error code|invalid",
    ),
    Kind(
        "zero",
        ("Zero: what is the result?", "Zero as input: is it special?", "Zero: what do you get for it?"),
        ("The result for zero is {0}.", "If it is zero, return {0}.", "For zero the result is {0}."),
        ("zero = {0}", "if {x} == 0:", "    return zero"),
        ((2, 39),),
        r"\bzero\b|\b0\b|\bnothing at all\b|empty",
    ),
    Kind(
        "pack",
        (
            "Packs: does the input count them?",
            "Packs: how many units are in one?",
            "Packs: is the number given by them?",
        ),
        ("The input counts packs, a pack has {0} units.", "The units in a pack are {0}.", "Yes, with a pack of {0}."),
        ("pack = {0}", "{x} = {x} * pack"),
        ((2, 24),),
        r"\bpacks?\b|bundle|unit of (the )?(input|measure)|conver",
    ),
    Kind(
        "allowance",
        ("Free units: are there any?", "Free units: how many are there?", "Free allowance: is there one?"),
        ("The number of free units is {0}.", "There is a free allowance of {0}.", "You get the free first {0}."),
        ("free = {0}", "{x} = max({x} - free, 0)"),
        ((2, 9),),
        r"allowance|first .*\bfree\b|units .*\bfree\b|\bincluded\b|\bfree (units|hours|minutes|days)\b|grace",
    ),
    Kind(
        "every",
        ("Bonus units: how often?", "Bonus: is there one every so often?", "Bonus: after every how many units?"),
        ("There is a bonus unit every {0} units.", "Yes, one bonus every {0}.", "The bonus comes every {0} units."),
        ("every = {0}", "{x} = {x} - {x} // every"),
        ((3, 12),),
        r"every so many|after how many|one (is|in .*) free|\bbonus\b|\bnth\b|every .* free",
        ("allowance",),
    ),
    Kind(
        "rate",
        ("Rate: how high is it?", "Rate per unit: what is it?", "Rate: is there one for each unit?"),
        ("The rate is {0} per unit.", "Each unit has a rate of {0}.", "Use a rate of {0}."),
        ("rate = {0}", "total = {x} * rate"),
        ((2, 99),),
        r"\brates?\b|(price|cost|much|charge|points?|paid|pay)\b.*\b(per|each|one|every|an?) ",
    ),
    Kind(
        "tier",
        ("Extra cost: above which limit?", "Extra: from which limit on?", "Extra count: is there a limit for it?"),
        (
            "Each unit above a limit of {0} costs something on top.",
            "Past the limit of {0} each unit costs more.",
            "Over the limit {0} the units count more.",
        ),
        ("limit = {0}", "extra = {1}", "if {x} > limit:", "    total = total + ({x} - limit) * extra"),
        ((10, 40), (2, 19)),
        r"second rate|rate change|\bextra\b|overtime|tier|different rate|higher rate|above (a|which|what) ",
        ("rate",),
        ("Extra: how much is it?", "Extra: how much for each unit?"),
        ("The extra is {1} per unit.", "Each unit has an extra {1}.", "Add an extra {1} for each of them."),
        "The extra {1}.",
    ),
    Kind(
        "insurance",
        ("Insurance: is there any?", "Insurance: how much is it?", "Insurance: should it be added?"),
        ("The insurance is {0} per unit.", "Each unit has an insurance of {0}.", "Yes, insurance of {0} a unit."),
        ("insurance = {0}", "total = total + {x} * insurance"),
        ((2, 29),),
        r"insur|cover\b",
        ("rate",),
    ),
    Kind(
        "base",
        ("Fixed amount: is there one?", "Fixed amount: how much is added?", "Fixed start: what is it?"),
        ("The fixed amount is {0}.", "Start from a fixed {0}.", "Add a fixed amount of {0}."),
        ("fixed = {0}", "total = total + fixed"),
        ((5, 99),),
        r"fixed|\bbase\b|flat|\bset-?up\b|start(s|ing)? (from|with|at|fee)|initial",
        ("rate",),
    ),
    Kind(
        "bulk",
        ("Bulk orders: is something taken off?", "Bulk: from which number on?", "Bulk orders: are they cheaper?"),
        ("It is a bulk above {0}.", "Yes, bulk begins above {0}.", "A bulk of more than {0} is cheaper."),
        ("bulk = {0}", "off = {1}", "if {x} > bulk:", "    total = total - off"),
        ((10, 40), (5, 49)),
        r"bulk|large (orders?|numbers? .*off)|cheaper|volume|quantity discount",
        ("discount",),
        ("Bulk orders: how much is taken off?", "Bulk: what is taken off?"),
        ("Take off {1}.", "We take off {1} in all.", "They take off {1}."),
        "Take off {1}.",
    ),
    Kind(
        "discount",
        ("Discount: is there one?", "Discount: does one apply?", "Discount: should it be taken off?"),
        ("Yes, there is one, in percent.", "Yes, some percent.", "There is one, in percent."),
        ("discount = {0}", "total = total - total * discount / 100"),
        ((5, 60),),
        r"discount|rebate|percent(age)? off|reduc",
        (),
        ("Discount: how many percent?", "Discount: how high is it?"),
        ("The discount is {0} percent.", "Take a discount of {0} percent.", "It is a discount of {0} percent."),
        "The discount {0}.",
        short="Yes, some.",
    ),
    Kind(
        "tax",
        ("Tax: is there one?", "Tax: how high is it?", "Tax: should it be added?"),
        ("The tax is {0} percent.", "Add a tax of {0} percent.", "There is a tax of {0} percent on top."),
        ("tax = {0}", "total = total + total * tax / 100"),
        ((3, 30),),
        r"\btax(es)?\b|\bvat\b|\bgst\b",
        ("rate", "base"),
    ),
    Kind(
        "credit",
        ("Credit: is there one?", "Credit: is it subtracted?", "Credit: how much is there?"),
        ("A credit of {0} is subtracted.", "Subtract a credit of {0}.", "There is a credit of {0}."),
        ("credit = {0}", "total = total - credit"),
        ((5, 99),),
        r"credit|advance|deposit|voucher|prepaid|already paid",
    ),
    Kind(
        "minimum",
        ("Minimum: is there one?", "Minimum: what is it?", "Minimum result: is it given?"),
        ("The minimum is {0}.", "It has a minimum of {0}.", "Yes, a minimum of {0}."),
        ("minimum = {0}", "total = max(total, minimum)"),
        ((5, 99),),
        r"minimum|lowest|at least|\bmin\b|floor|very small|smallest",
    ),
    Kind(
        "maximum",
        ("Maximum: is there one?", "Maximum: what is it?", "Maximum result: is it given?"),
        ("The maximum is {0}.", "It has a maximum of {0}.", "Yes, a maximum of {0}."),
        ("maximum = {0}", "total = min(total, maximum)"),
        ((60, 199),),
        r"maximum|highest|at most|\bmax\b|\bcap(ped)?\b|ceiling|upper limit|largest",
    ),
    Kind(
        "split",
        ("Split by people: is it?", "Split: by how many people?", "Split of the total: is there one?"),
        ("It is split by {0} people.", "Yes, split by {0}.", "The total is split by {0} people."),
        ("split = {0}", "total = total / split"),
        ((2, 12),),
        r"\bsplit\b|\bshared?\b|how many people|divided? (by|among|between)",
    ),
    Kind(
        "rounding",
        ("Rounding: is there any?", "Rounding: how is it done?", "Rounding: to which step?"),
        (
            "It is rounded to a step of {0}.",
            "The result is rounded to a step of {0}.",
            "Yes, rounded by a step of {0}.",
        ),
        ("step = {0}", "total = round(total / step) * step"),
        ((2, 50),),
        r"\bround|decimal|precision|nearest|multiples",
        ("split",),
    ),
    Kind(
        "label",
        (
            "Currency: which one is shown?",
            "Currency in the result: is there one?",
            "Currency: should the result show it?",
        ),
        ("Show the currency {0}.", "Return a text with {0}.", "The format is the number and then {0}."),
        ('total = f"{{total}} {0}"',),
        (),
        r"currenc|\btext\b|\bformat|string|label|symbol|return type|output look",
        short="Yes: currency {0}.",
    ),
)

BY_NAME = {kind.name: kind for kind in KINDS}
_PATTERNS = tuple((kind, re.compile(kind.pattern, re.IGNORECASE)) for kind in KINDS)

_CODE = re.compile(r"(```|~~~|\"{3}|'{3}).*?(\1|\Z)|``[^\n]*?``|`[^`\n]*`", re.DOTALL)
_COMMENT = re.compile(r"\s#\s.*")
_CODE_LINE = re.compile(
    r"^\s*((async )?def |class \w+.*:\s*$|(return|assert)\b|raise \w+|import |from \w+ import|@\w|>>>|#"
    r"|[\w.]+\(.*\)\s*$|((if|for|while|elif|with|except)\b.*|else|try|finally):\s*$|[\w.\[\]]+\s*([-+*/%]|//|\*\*)?=)"
)
_ASKS = re.compile(
    r"\?[*_\s]*$|\btell (me|us)\b|^\W*give (me|us)\b|\blet (me|us) know\b|\bneed to know\b"
    r"|\bplease\b.*\b(say|state|specify|clarify|confirm|explain|describe|provide|give|list)\b"
    r"|^\W*((could|can|would|will|do|did) you|(is|are) there)\b"
    r"|^\W*(what|which|how|who|when|where|is|are|do|does|did|should|shall|can|could|will|would)\b(?!.*[.:!;,]\W*$)",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?<!e\.g\.)(?<!i\.e\.)(?<=[.?!])\s+")
LONGEST = 4_000  # characters of a reply that are read


def questions_in(reply: str) -> tuple[str, ...]:
    """The sentences of a reply that ask something; code and statements are left out, whatever words they hold."""
    lines = [_COMMENT.sub("", line) for line in _CODE.sub(" ", reply[:LONGEST]).splitlines()]
    sentences = [part for line in lines if not _CODE_LINE.match(line) for part in _SENTENCE_END.split(line)]
    return tuple(part for part in sentences if _ASKS.search(part))


@lru_cache(maxsize=4096)
def kinds_asked(reply: str) -> tuple[str, ...]:
    """Names of the kinds of detail that the questions in a reply are about, in program order; empty if none."""
    questions = questions_in(reply)
    names = {name for words in {*questions, " ".join(questions)} for name in _kinds_in(words)}
    return tuple(name for name in BY_NAME if name in names)


def _kinds_in(question: str) -> set[str]:
    matches = [kind for kind, pattern in _PATTERNS if pattern.search(question)]
    return {kind.name for kind in matches} - {name for kind in matches for name in kind.more_specific_than}
