"""The domains of the synthetic suite: what a user may want computed, which kinds of detail matter, their areas."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Domain:
    """One kind of task. `relevant` names the kinds of detail that a task of this domain may hide (no others occur)."""

    name: str
    phrases: tuple[str, ...]
    functions: tuple[str, ...]
    arguments: tuple[str, ...]
    relevant: tuple[str, ...]


DOMAINS: tuple[Domain, ...] = (
    Domain(
        "parking",
        ("the price of a parking ticket", "what a car owner pays in our garage", "a parking fee"),
        ("parking_fee", "garage_price", "ticket_price"),
        ("hours", "h"),
        ("negative", "zero", "allowance", "rate", "tier", "discount", "minimum", "maximum", "rounding"),
    ),
    Domain(
        "taxi",
        ("the fare of a taxi ride", "what a passenger pays for a cab", "a taxi fare"),
        ("taxi_fare", "ride_price", "cab_fare"),
        ("kilometres", "distance"),
        ("allowance", "rate", "tier", "base", "discount", "minimum", "split", "rounding", "label"),
    ),
    Domain(
        "hotel",
        ("the price of a hotel stay", "what a guest pays for a room", "a hotel bill"),
        ("hotel_price", "stay_cost", "room_bill"),
        ("nights", "stay"),
        ("zero", "rate", "insurance", "base", "bulk", "tax", "credit", "split", "label"),
    ),
    Domain(
        "rental",
        ("the price of a rental car", "what we charge for a rented van", "a car rental bill"),
        ("rental_price", "car_cost", "van_rental"),
        ("days", "rented"),
        ("allowance", "rate", "insurance", "base", "bulk", "discount", "tax", "credit", "maximum"),
    ),
    Domain(
        "parcel",
        ("the postage of a parcel", "what it costs to ship a box", "a shipping fee"),
        ("parcel_postage", "shipping_cost", "box_fee"),
        ("weight", "kilos"),
        ("negative", "pack", "rate", "tier", "insurance", "base", "bulk", "minimum", "label"),
    ),
    Domain(
        "power",
        ("an electricity bill", "what a household pays for power", "the cost of electric energy"),
        ("power_bill", "energy_cost", "electricity_price"),
        ("kwh", "energy"),
        ("negative", "allowance", "rate", "tier", "base", "tax", "credit", "rounding", "label"),
    ),
    Domain(
        "water",
        ("a water bill", "what a farm pays for water", "the cost of tap water"),
        ("water_bill", "water_cost", "tap_price"),
        ("litres", "volume"),
        ("zero", "pack", "allowance", "rate", "tier", "base", "credit", "minimum", "maximum"),
    ),
    Domain(
        "gym",
        ("the price of a gym membership", "what a member pays at our gym", "a fitness club fee"),
        ("gym_fee", "member_price", "club_cost"),
        ("months", "period"),
        ("negative", "zero", "every", "rate", "base", "discount", "tax", "credit", "maximum"),
    ),
    Domain(
        "dinner",
        ("a restaurant bill", "what a party pays for dinner", "the cost of a group meal"),
        ("dinner_bill", "meal_cost", "party_price"),
        ("guests", "people"),
        ("allowance", "rate", "base", "bulk", "discount", "tax", "minimum", "split", "label"),
    ),
    Domain(
        "loyalty",
        ("loyalty points of a customer", "the points on a bonus card", "a reward score for shoppers"),
        ("loyalty_points", "card_points", "reward_score"),
        ("purchases", "visits"),
        ("negative", "zero", "allowance", "every", "rate", "base", "bulk", "maximum", "rounding"),
    ),
    Domain(
        "library",
        ("a library fine", "what a late book costs", "the fee for overdue books"),
        ("library_fine", "late_fee", "book_fine"),
        ("days_late", "delay"),
        ("negative", "allowance", "every", "rate", "discount", "credit", "minimum", "maximum", "rounding"),
    ),
    Domain(
        "phone",
        ("a phone bill", "what a caller pays each month", "the cost of phone calls"),
        ("phone_bill", "call_cost", "calls_price"),
        ("minutes", "talk"),
        ("pack", "allowance", "every", "rate", "tier", "base", "tax", "credit", "maximum"),
    ),
    Domain(
        "wage",
        ("the weekly pay of a worker", "what I pay a helper", "a wage"),
        ("weekly_pay", "wage", "helper_pay"),
        ("hours_worked", "work"),
        ("every", "rate", "tier", "base", "tax", "credit", "minimum", "maximum", "rounding"),
    ),
    Domain(
        "exam",
        ("the score of an exam", "the points of a quiz", "a test result"),
        ("exam_score", "quiz_points", "test_result"),
        ("answers", "correct"),
        ("negative", "zero", "every", "rate", "base", "bulk", "minimum", "maximum", "rounding"),
    ),
    Domain(
        "tickets",
        ("the price of concert tickets", "what a group pays for a show", "the cost of festival tickets"),
        ("concert_price", "show_cost", "festival_price"),
        ("tickets", "seats"),
        ("every", "rate", "insurance", "bulk", "discount", "tax", "credit", "split", "label"),
    ),
    Domain(
        "cleaning",
        ("the price of a cleaning service", "what a client pays for clean rooms", "a cleaning bill"),
        ("cleaning_price", "cleaner_cost", "rooms_bill"),
        ("rooms", "offices"),
        ("pack", "rate", "insurance", "base", "discount", "tax", "minimum", "split", "label"),
    ),
)

BY_NAME = {domain.name: domain for domain in DOMAINS}

OPENERS = (
    "I need a function that computes",
    "Please write a function for",
    "Can you help me to calculate",
    "I want some Python code for",
    "Write me a Python function that gives",
)
PLACES = (
    "for my shop", "for our town", "for a small company", "for my family", "for a client", "for our website",
    "for a school project", "for my brother", "for our office", "for a friend",
)  # fmt: skip
CLOSERS = ("We have rules about {}.", "There are rules about {}.", "Mind our rules about {}.")


@dataclass(frozen=True)
class Area:
    """Details that belong together. A request names the areas in which it hides details, by one of `words` each."""

    words: tuple[str, ...]
    kinds: tuple[str, ...]


AREAS: tuple[Area, ...] = (
    Area(("input", "entries"), ("negative", "zero", "pack")),
    Area(("quantity", "units"), ("allowance", "every", "tier")),
    Area(("price", "charges"), ("rate", "insurance", "base", "tax")),
    Area(("savings", "reductions"), ("bulk", "discount", "credit")),
    Area(("limits", "bounds"), ("minimum", "maximum")),
    Area(("result", "output"), ("split", "rounding", "label")),
)
