"""The kinds of hidden detail of a synthetic task: how each is asked for, told, and written as Python.

A program of the suite takes one number and computes another. It is a fixed sequence of steps, each step the business of
one kind of detail; a task hides some of them. `KINDS` is in the order in which the steps stand in a program. A step
names its values before it uses them, and a user says the same name before the value; all questions about a kind share
a word.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

CURRENCIES = ("EUR", "USD", "GBP", "CHF", "JPY", "SEK", "NOK", "PLN", "CZK", "INR", "BRL", "CAD")


@dataclass(frozen=True)
class Kind:
    """One kind of detail.

    `questions` are wordings an agent may use, `answers` wordings of the user ({0}, {1} are the values), `code` the
    lines of the step ({x} is the argument), `values` the inclusive ranges the values are drawn from (empty: a currency
    word). `pattern` recognises a question about this kind in free text; `more_specific_than` names kinds that a match
    overrules.
    """

    name: str
    questions: tuple[str, ...]
    answers: tuple[str, ...]
    code: tuple[str, ...]
    values: tuple[tuple[int, int], ...]
    pattern: str
    more_specific_than: tuple[str, ...] = ()


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
            "Above a limit of {0} each unit counts an extra {1}.",
            "Past the limit of {0} add an extra {1} per unit.",
            "Over the limit {0} there is an extra {1} for each unit.",
        ),
        ("limit = {0}", "extra = {1}", "if {x} > limit:", "    total = total + ({x} - limit) * extra"),
        ((10, 40), (2, 19)),
        r"second rate|rate change|\bextra\b|overtime|tier|different rate|higher rate|above (a|which|what) ",
        ("rate",),
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
        (
            "For bulk above {0} take off {1}.",
            "It is a bulk order above {0}, take off {1}.",
            "A bulk above {0} is cheaper, it takes off {1}.",
        ),
        ("bulk = {0}", "off = {1}", "if {x} > bulk:", "    total = total - off"),
        ((10, 40), (5, 49)),
        r"bulk|large (orders?|numbers? .*off)|cheaper|volume|quantity discount",
        ("discount",),
    ),
    Kind(
        "discount",
        ("Discount: is there one?", "Discount: how many percent?", "Discount: does one apply?"),
        ("The discount is {0} percent.", "Take a discount of {0} percent.", "There is a discount of {0} percent."),
        ("discount = {0}", "total = total - total * discount / 100"),
        ((5, 60),),
        r"discount|rebate|percent(age)? off|reduc",
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
    ),
)

BY_NAME = {kind.name: kind for kind in KINDS}
_PATTERNS = tuple((kind, re.compile(kind.pattern, re.IGNORECASE)) for kind in KINDS)


def kinds_asked(question: str) -> tuple[str, ...]:
    """Names of the kinds of detail that a question in free English is about, in program order; empty if none."""
    found = [kind for kind, pattern in _PATTERNS if pattern.search(question)]
    overruled = {name for kind in found for name in kind.more_specific_than}
    return tuple(kind.name for kind in found if kind.name not in overruled)
