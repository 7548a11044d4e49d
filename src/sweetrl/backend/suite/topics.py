"""The domains of the synthetic suite: what users want computed, which details may matter, what requests hint at.

Nine kinds of detail are plausible in a domain, which is more than there are turns to ask in. A request hints at those
that are worth asking for: it names cells of a grid, an aspect (small, large, regular, ...) of a matter (entries,
quantities, charges, totals). Neither word alone tells the kind, and both come in several wordings.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Domain:
    """One kind of task. `relevant` names the kinds of detail that a task of this domain may hide (no others occur).

    Tasks of a domain that is `held_out` are in the test split only.
    """

    name: str
    phrases: tuple[str, ...]
    functions: tuple[str, ...]
    arguments: tuple[str, ...]
    relevant: tuple[str, ...]
    held_out: bool = False


def _domain(name: str, names: str, phrases: tuple[str, ...], relevant: str, held_out: bool = False) -> Domain:
    """Write a domain down: `names` are its functions and, behind a colon, their arguments."""
    functions, arguments = (tuple(words.split()) for words in names.split(":"))
    return Domain(name, phrases, functions, arguments, tuple(relevant.split()), held_out)


DOMAINS: tuple[Domain, ...] = (
    _domain(
        "parking", "parking_fee garage_price ticket_price: hours h",
        ("the price of a parking ticket", "what a car owner pays in our garage", "a parking fee"),
        "negative zero allowance rate tier discount minimum maximum rounding",
    ),
    _domain(
        "taxi", "taxi_fare ride_price cab_fare: kilometres distance",
        ("the fare of a taxi ride", "what a passenger pays for a cab", "a taxi fare"),
        "allowance rate tier base discount minimum split rounding label",
    ),
    _domain(
        "hotel", "hotel_price stay_cost room_bill: nights stay",
        ("the price of a hotel stay", "what a guest pays for a room", "a hotel bill"),
        "zero rate insurance base bulk tax credit split label",
    ),
    _domain(
        "rental", "rental_price car_cost van_rental: days rented",
        ("the price of a rental car", "what we charge for a rented van", "a car rental bill"),
        "allowance rate insurance base bulk discount tax credit maximum",
    ),
    _domain(
        "parcel", "parcel_postage shipping_cost box_fee: weight kilos",
        ("the postage of a parcel", "what it costs to ship a box", "a shipping fee"),
        "negative pack rate tier insurance base bulk minimum label",
    ),
    _domain(
        "power", "power_bill energy_cost electricity_price: kwh energy",
        ("an electricity bill", "what a household pays for power", "the cost of electric energy"),
        "negative allowance rate tier base tax credit rounding label",
    ),
    _domain(
        "water", "water_bill water_cost tap_price: litres volume",
        ("a water bill", "what a farm pays for water", "the cost of tap water"),
        "zero pack allowance rate tier base credit minimum maximum",
    ),
    _domain(
        "gym", "gym_fee member_price club_cost: months period",
        ("the price of a gym membership", "what a member pays at our gym", "a fitness club fee"),
        "negative zero every rate base discount tax credit maximum",
    ),
    _domain(
        "dinner", "dinner_bill meal_cost party_price: guests people",
        ("a restaurant bill", "what a party pays for dinner", "the cost of a group meal"),
        "allowance rate base bulk discount tax minimum split label",
    ),
    _domain(
        "loyalty", "loyalty_points card_points reward_score: purchases visits",
        ("loyalty points of a customer", "the points on a bonus card", "a reward score for shoppers"),
        "negative zero allowance every rate base bulk maximum rounding",
    ),
    _domain(
        "library", "library_fine late_fee book_fine: days_late delay",
        ("a library fine", "what a late book costs", "the fee for overdue books"),
        "negative allowance every rate discount credit minimum maximum rounding",
    ),
    _domain(
        "phone", "phone_bill call_cost calls_price: minutes talk",
        ("a phone bill", "what a caller pays each month", "the cost of phone calls"),
        "pack allowance every rate tier base tax credit maximum",
    ),
    _domain(
        "wage", "weekly_pay wage helper_pay: hours_worked work",
        ("the weekly pay of a worker", "what I pay a helper", "a wage"),
        "every rate tier base tax credit minimum maximum rounding",
    ),
    _domain(
        "exam", "exam_score quiz_points test_result: answers correct",
        ("the score of an exam", "the points of a quiz", "a test result"),
        "negative zero every rate base bulk minimum maximum rounding",
    ),
    _domain(
        "tickets", "concert_price show_cost festival_price: tickets seats",
        ("the price of concert tickets", "what a group pays for a show", "the cost of festival tickets"),
        "every rate insurance bulk discount tax credit split label",
    ),
    _domain(
        "cleaning", "cleaning_price cleaner_cost rooms_bill: rooms offices",
        ("the price of a cleaning service", "what a client pays for clean rooms", "a cleaning bill"),
        "pack rate insurance base discount tax minimum split label",
    ),
    _domain(
        "bakery", "bread_price bakery_bill rolls_cost: loaves rolls",
        ("the price of a bread order", "what a bakery customer pays", "a bill for rolls and cakes"),
        "negative pack every rate bulk discount tax minimum label",
    ),
    _domain(
        "moving", "moving_price movers_bill removal_cost: boxes crates",
        ("the price of a house move", "what a family pays the movers", "a removal bill"),
        "zero pack tier insurance base discount credit maximum rounding",
    ),
    _domain(
        "laundry", "laundry_price washing_bill laundry_cost: shirts loads",
        ("the price of a laundry service", "what a guest pays for washing", "a washing bill"),
        "negative allowance every rate tier bulk credit minimum split",
    ),
    _domain(
        "courier", "courier_fee delivery_price sender_cost: stops deliveries",
        ("the fee of a bike courier", "what a sender pays for delivery", "a delivery fee"),
        "negative zero rate tier insurance base discount maximum label",
    ),
    _domain(
        "printing", "print_price copies_cost print_bill: pages copies",
        ("the price of a print job", "what a student pays for copies", "a copy shop bill"),
        "zero pack allowance rate bulk tax credit minimum rounding",
    ),
    _domain(
        "camping", "camping_fee tent_price camp_bill: tents campers",
        ("the fee of a camp site", "what campers pay for their tent", "a camping bill"),
        "zero every rate insurance base discount tax split maximum",
    ),
    _domain(
        "museum", "museum_fee tour_price entrance_cost: visitors pupils",
        ("the entrance fee of a museum", "what a class pays for a tour", "the cost of museum tickets"),
        "negative zero allowance every bulk credit split rounding label",
    ),
    _domain(
        "storage", "storage_rent storage_bill room_rent: shelves metres",
        ("the rent of a storage room", "what a customer pays to store things", "a storage bill"),
        "pack allowance tier insurance base tax minimum maximum label",
    ),
    _domain(
        "tutoring", "lesson_price tutor_bill lessons_cost: lessons classes",
        ("the price of private lessons", "what parents pay a tutor", "a bill for lessons"),
        "negative pack every rate base discount credit split rounding",
    ),
    _domain(
        "toll", "road_toll bridge_toll lorry_fee: axles crossings",
        ("a road toll", "what a lorry pays on the motorway", "the toll of a bridge"),
        "zero allowance rate tier bulk tax credit minimum rounding", held_out=True,
    ),
    _domain(
        "catering", "catering_price buffet_cost buffet_bill: plates portions",
        ("the price of a catered party", "what a couple pays for a buffet", "a catering bill"),
        "negative pack every insurance base discount minimum split label", held_out=True,
    ),
    _domain(
        "fuel", "fuel_bill pump_price diesel_cost: gallons fuel",
        ("a fuel bill", "what a driver pays at the pump", "the cost of diesel"),
        "negative zero rate base bulk discount tax maximum rounding", held_out=True,
    ),
    _domain(
        "boat", "boat_price ferry_fare trip_cost: miles passengers",
        ("the price of a boat trip", "what we charge for a hired boat", "a ferry fare"),
        "zero every tier insurance tax credit maximum split label", held_out=True,
    ),
    _domain(
        "garden", "garden_price gardener_bill lawn_cost: lawns trees",
        ("the price of garden work", "what an owner pays a gardener", "a gardening bill"),
        "negative pack allowance rate tier base credit minimum maximum", held_out=True,
    ),
)  # fmt: skip

OPENERS = (
    "I need a function that computes",
    "Please write a function for",
    "Can you help me to calculate",
    "I want some Python code for",
    "Write me a Python function that gives",
)
PLACES = (
    "for my shop", "for our town", "for a small company", "for my family", "for a large client", "for our website",
    "for a school project", "for my brother", "for our office", "for a friend",
)  # fmt: skip
CLOSERS = (
    "We have rules about {}.", "There are rules about {}.", "Mind our rules about {}.", "Think of {}.",
    "Some care is needed with {}.",
)  # fmt: skip
# Sentences that tell nothing: they hold words of the grid, but name no aspect of a matter.
ASIDES = (
    "It need not be fast.", "The entries come from a form.", "We had large trouble with the last one.",
    "The totals go to our accountant.", "It is only a small thing.", "My regular programmer is away.",
    "The charges are my own idea.", "You get extra time if you need it.",
)  # fmt: skip

ASPECTS: dict[str, tuple[str, ...]] = {
    "small": ("small", "low", "little", "tiny"),
    "large": ("large", "big", "high", "huge"),
    "regular": ("regular", "steady", "usual", "constant"),
    "extra": ("extra", "added", "further", "additional"),
    "reduced": ("reduced", "lowered", "cut", "cheaper"),
    "shared": ("shared", "joint", "common", "divided"),
    "printed": ("printed", "shown", "displayed", "written"),
}
MATTERS: dict[str, tuple[str, ...]] = {
    "entries": ("entries", "inputs", "readings", "arguments"),
    "quantities": ("quantities", "amounts", "volumes", "counts"),
    "charges": ("charges", "prices", "fees", "costs"),
    "totals": ("totals", "results", "sums", "outcomes"),
}
GRID: dict[tuple[str, str], tuple[str, ...]] = {
    ("small", "entries"): ("negative", "zero"),
    ("large", "entries"): ("pack",),
    ("small", "quantities"): ("allowance",),
    ("regular", "quantities"): ("every",),
    ("large", "quantities"): ("tier", "bulk"),
    ("regular", "charges"): ("rate",),
    ("extra", "charges"): ("insurance", "tax"),
    ("small", "charges"): ("base",),
    ("reduced", "charges"): ("discount",),
    ("reduced", "totals"): ("credit",),
    ("small", "totals"): ("minimum",),
    ("large", "totals"): ("maximum",),
    ("shared", "totals"): ("split",),
    ("printed", "totals"): ("rounding", "label"),
}
CELL_OF = {kind: cell for cell, kinds in GRID.items() for kind in kinds}
Hints = Literal["grid", "plain"]
# The cells as a plain request names them: each wording stands for all kinds of its cell.
PLAIN: dict[tuple[str, str], tuple[str, ...]] = {
    ("small", "entries"): (
        "negative numbers and zero", "zero and negative numbers", "numbers of zero or less", "zero or negative input",
    ),
    ("large", "entries"): (
        "packs of several units", "packs instead of single units", "the units in a pack", "input that counts packs",
    ),
    ("small", "quantities"): ("free units", "a free allowance", "units that are free", "the first units being free"),
    ("regular", "quantities"): ("bonus units", "a bonus every so often", "units as a bonus", "the bonus that some get"),
    ("large", "quantities"): (
        "bulk orders and the extra above a limit", "a limit, the extra above it and bulk orders",
        "extra cost above a limit and bulk orders", "bulk orders and a limit for extra cost",
    ),
    ("regular", "charges"): ("the rate per unit", "a rate for each unit", "the unit rate", "what one unit costs"),
    ("extra", "charges"): (
        "insurance and tax", "tax and insurance", "an insurance and a tax", "a tax and an insurance",
    ),
    ("small", "charges"): ("a fixed amount", "an amount that is fixed", "a fixed start", "the fixed part"),
    ("reduced", "charges"): ("a discount", "discounts", "the discount", "some percent of discount"),
    ("reduced", "totals"): ("a credit", "credits", "the credit", "subtracting a credit"),
    ("small", "totals"): ("a minimum", "the minimum", "the lowest result", "a least result"),
    ("large", "totals"): ("a maximum", "the maximum", "the highest result", "a greatest result"),
    ("shared", "totals"): ("a split by people", "a split of the total", "people who split it", "splitting it"),
    ("printed", "totals"): (
        "rounding and the currency", "the currency and rounding", "a currency and how to round",
        "how to round and which currency to show",
    ),
}  # fmt: skip
_WORDINGS = {
    form.format(aspect=aspect, matter=matter): (name, of)
    for name, aspects in ASPECTS.items()
    for aspect in aspects
    for of, matters in MATTERS.items()
    for matter in matters
    for form in ("{aspect} {matter}", "{matter} that are {aspect}")
} | {words: cell for cell, wordings in PLAIN.items() for words in wordings}
_CELLS = re.compile("|".join(rf"\b{re.escape(words)}\b" for words in _WORDINGS))


def word_cell(cell: tuple[str, str], rng: random.Random, hints: Hints = "grid") -> str:
    """Word a cell of the grid, three times in four as "low fees", else as "fees that are low"; or plainly."""
    if hints == "plain":
        return rng.choice(PLAIN[cell])
    aspect, matter = rng.choice(ASPECTS[cell[0]]), rng.choice(MATTERS[cell[1]])
    return f"{aspect} {matter}" if rng.random() < 0.75 else f"{matter} that are {aspect}"


def named_kinds(request: str) -> frozenset[str]:
    """The kinds of detail in the cells that a request names."""
    cells = (_WORDINGS[words] for words in _CELLS.findall(request))
    return frozenset(kind for cell in cells for kind in GRID.get(cell, ()))
