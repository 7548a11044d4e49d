"""The kinds of hidden detail of a synthetic task: how each is asked for, told, and written as Python.

A program of the suite takes one number and computes another. It is a fixed sequence of steps, each step the business of
one kind of detail; a task hides some of them. `KINDS` is in the order in which the steps stand in a program.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

CURRENCIES = ("EUR", "USD", "GBP", "CHF", "JPY", "SEK", "NOK", "PLN", "CZK", "INR", "BRL", "CAD")


@dataclass(frozen=True)
class Kind:
    """One kind of detail.

    `questions` are wordings an agent may use, `answers` wordings of the person ({0}, {1} are the values), `code` the
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
            "What should happen with negative input?",
            "Which error code do negative numbers get?",
            "Can the input be negative?",
        ),
        (
            "Return the error code {0} for negative input.",
            "Negative numbers get the error code {0}.",
            "If negative, return {0}.",
        ),
        ("if {x} < 0:", "    return {0}"),
        ((40, 99),),
        r"negative|below zero|less than (zero|0)|error code|invalid",
    ),
    Kind(
        "zero",
        (
            "What is the result for zero?",
            "Is there a special case for zero?",
            "What do you get when the input is zero?",
        ),
        ("For zero the result is {0}.", "Zero always gives {0}.", "When it is zero, return {0}."),
        ("if {x} == 0:", "    return {0}"),
        ((2, 39),),
        r"\bzero\b|\b0\b|\bnothing at all\b|empty",
    ),
    Kind(
        "pack",
        ("Does the input count packs?", "How many units are in one pack?", "Is the number given in packs?"),
        ("The input counts packs of {0}.", "One pack has {0} units.", "Yes, in packs of {0}."),
        ("{x} = {x} * {0}",),
        ((2, 24),),
        r"\bpacks?\b|bundle|unit of (the )?(input|measure)|conver",
    ),
    Kind(
        "allowance",
        ("Are the first units free?", "How many units are free?", "Is there a free allowance?"),
        ("The first {0} are free.", "There is a free allowance of {0}.", "You get {0} for free."),
        ("{x} = max({x} - {0}, 0)",),
        ((2, 9),),
        r"allowance|first .*\bfree\b|units .*\bfree\b|\bincluded\b|\bfree (units|hours|minutes|days)\b|grace",
    ),
    Kind(
        "every",
        ("Is every so many units free?", "After how many units is one free?", "Is there a bonus unit?"),
        ("Every {0} units one is free.", "One in {0} is free.", "Out of {0} units one is a bonus."),
        ("{x} = {x} - {x} // {0}",),
        ((3, 12),),
        r"every so many|after how many|one (is|in .*) free|bonus unit|\bnth\b|every .* free",
        ("allowance",),
    ),
    Kind(
        "rate",
        ("What is the rate per unit?", "How much is one unit?", "Is there a rate for each unit?"),
        ("The rate is {0} per unit.", "Each unit counts {0}.", "One unit is {0}."),
        ("total = {x} * {0}",),
        ((2, 99),),
        r"\brates?\b|(price|cost|much|charge|points?|paid|pay)\b.*\b(per|each|one|every|an?) ",
    ),
    Kind(
        "tier",
        (
            "Does the rate change for large numbers?",
            "From which number on is there an extra rate?",
            "Is there a second rate?",
        ),
        (
            "Above {0} each unit counts {1} extra.",
            "Over {0} there is a second rate of {1}.",
            "Past {0} add {1} for each unit.",
        ),
        ("if {x} > {0}:", "    total = total + ({x} - {0}) * {1}"),
        ((10, 40), (2, 19)),
        r"second rate|rate change|extra rate|overtime|tier|different rate|higher rate",
        ("rate",),
    ),
    Kind(
        "insurance",
        ("Is there insurance?", "How much is the insurance?", "Should insurance be added?"),
        ("The insurance is {0} per unit.", "Insurance adds {0} for each unit.", "Yes, insurance of {0} a unit."),
        ("total = total + {x} * {0}",),
        ((2, 29),),
        r"insur|cover\b",
        ("rate",),
    ),
    Kind(
        "base",
        ("Is there a fixed amount?", "Which fixed amount is added?", "Does it start from a base amount?"),
        ("The fixed amount is {0}.", "Start from a base amount of {0}.", "Add {0} as a fixed amount."),
        ("total = total + {0}",),
        ((5, 99),),
        r"fixed|\bbase\b|flat|\bset-?up\b|start(s|ing)? (from|with|at|fee)|initial",
        ("rate",),
    ),
    Kind(
        "bulk",
        ("Is something taken off large orders?", "From which number on is it cheaper?", "Is there a bulk reduction?"),
        (
            "Above {0} take off {1}.",
            "Over {0} there is a bulk reduction of {1}.",
            "For more than {0} it is {1} cheaper.",
        ),
        ("if {x} > {0}:", "    total = total - {1}"),
        ((10, 40), (5, 49)),
        r"bulk|large (orders?|numbers? .*off)|cheaper|volume|quantity discount",
        ("discount",),
    ),
    Kind(
        "discount",
        ("Is there a discount?", "How many percent is the discount?", "Does a discount apply?"),
        ("The discount is {0} percent.", "Take {0} percent discount.", "A discount of {0} percent applies."),
        ("total = total - total * {0} / 100",),
        ((5, 60),),
        r"discount|rebate|percent(age)? off|reduc",
    ),
    Kind(
        "tax",
        ("Is there a tax?", "How high is the tax?", "Should tax be added?"),
        ("The tax is {0} percent.", "Add {0} percent tax.", "A tax of {0} percent comes on top."),
        ("total = total + total * {0} / 100",),
        ((3, 30),),
        r"\btax(es)?\b|\bvat\b|\bgst\b",
        ("rate", "base"),
    ),
    Kind(
        "credit",
        ("Was something paid in advance?", "Is a credit subtracted?", "How much credit is there?"),
        ("A credit of {0} is subtracted.", "Subtract {0} paid in advance.", "There is {0} of credit."),
        ("total = total - {0}",),
        ((5, 99),),
        r"credit|advance|deposit|voucher|prepaid|already paid",
    ),
    Kind(
        "minimum",
        ("Is there a minimum?", "What is the lowest possible result?", "Can the result be very small?"),
        ("The minimum is {0}.", "It is never less than {0}.", "At least {0}."),
        ("total = max(total, {0})",),
        ((5, 99),),
        r"minimum|lowest|at least|\bmin\b|floor|very small|smallest",
    ),
    Kind(
        "maximum",
        ("Is there a maximum?", "What is the highest possible result?", "Should the total be capped?"),
        ("The maximum is {0}.", "It is never more than {0}.", "Cap it at {0}."),
        ("total = min(total, {0})",),
        ((60, 199),),
        r"maximum|highest|at most|\bmax\b|\bcap(ped)?\b|ceiling|upper limit|largest",
    ),
    Kind(
        "split",
        ("Is the total shared by people?", "How many people share the total?", "Should the total be split?"),
        ("Split the total by {0} people.", "It is shared by {0} people.", "Yes, {0} people share it."),
        ("total = total / {0}",),
        ((2, 12),),
        r"\bsplit\b|\bshared?\b|how many people|divided? (by|among|between)",
    ),
    Kind(
        "rounding",
        ("Should the result be rounded?", "How is the result rounded?", "Is there any rounding?"),
        ("Round to the nearest {0}.", "Rounding is to steps of {0}.", "It is rounded to multiples of {0}."),
        ("total = round(total / {0}) * {0}",),
        ((2, 50),),
        r"\bround|decimal|precision|nearest|multiples",
        ("split",),
    ),
    Kind(
        "label",
        ("Which currency should the result show?", "Should the result be a text?", "In which format is the result?"),
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
