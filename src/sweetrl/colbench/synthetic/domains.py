"""The domains of the synthetic suite: what a person may want computed, and which kinds of detail matter there."""

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
        ("negative", "allowance", "rate", "tier", "maximum", "rounding"),
    ),
    Domain(
        "taxi",
        ("the fare of a taxi ride", "what a passenger pays for a cab", "a taxi fare"),
        ("taxi_fare", "ride_price", "cab_fare"),
        ("kilometres", "distance"),
        ("rate", "tier", "base", "minimum", "split", "label"),
    ),
    Domain(
        "hotel",
        ("the price of a hotel stay", "what a guest pays for a room", "a hotel bill"),
        ("hotel_price", "stay_cost", "room_bill"),
        ("nights", "stay"),
        ("zero", "rate", "bulk", "tax", "credit", "label"),
    ),
    Domain(
        "rental",
        ("the price of a rental car", "what we charge for a rented van", "a car rental bill"),
        ("rental_price", "car_cost", "van_rental"),
        ("days", "rented"),
        ("rate", "insurance", "bulk", "tax", "credit", "maximum"),
    ),
    Domain(
        "parcel",
        ("the postage of a parcel", "what it costs to ship a box", "a shipping fee"),
        ("parcel_postage", "shipping_cost", "box_fee"),
        ("weight", "kilos"),
        ("negative", "rate", "tier", "insurance", "base", "minimum"),
    ),
    Domain(
        "power",
        ("an electricity bill", "what a household pays for power", "the cost of electric energy"),
        ("power_bill", "energy_cost", "electricity_price"),
        ("kwh", "energy"),
        ("allowance", "rate", "tier", "base", "tax", "rounding"),
    ),
    Domain(
        "water",
        ("a water bill", "what a farm pays for water", "the cost of tap water"),
        ("water_bill", "water_cost", "tap_price"),
        ("litres", "volume"),
        ("pack", "allowance", "rate", "base", "credit", "minimum"),
    ),
    Domain(
        "gym",
        ("the price of a gym membership", "what a member pays at our gym", "a fitness club fee"),
        ("gym_fee", "member_price", "club_cost"),
        ("months", "period"),
        ("zero", "every", "rate", "base", "discount", "maximum"),
    ),
    Domain(
        "dinner",
        ("a restaurant bill", "what a party pays for dinner", "the cost of a group meal"),
        ("dinner_bill", "meal_cost", "party_price"),
        ("guests", "people"),
        ("rate", "base", "bulk", "tax", "split", "label"),
    ),
    Domain(
        "loyalty",
        ("loyalty points of a customer", "the points on a bonus card", "a reward score for shoppers"),
        ("loyalty_points", "card_points", "reward_score"),
        ("purchases", "visits"),
        ("negative", "zero", "every", "rate", "base", "maximum"),
    ),
    Domain(
        "library",
        ("a library fine", "what a late book costs", "the fee for overdue books"),
        ("library_fine", "late_fee", "book_fine"),
        ("days_late", "delay"),
        ("negative", "allowance", "rate", "discount", "maximum", "rounding"),
    ),
    Domain(
        "phone",
        ("a phone bill", "what a caller pays each month", "the cost of phone calls"),
        ("phone_bill", "call_cost", "calls_price"),
        ("minutes", "talk"),
        ("pack", "allowance", "rate", "base", "tax", "credit"),
    ),
    Domain(
        "wage",
        ("the weekly pay of a worker", "what I pay a helper", "a wage"),
        ("weekly_pay", "wage", "helper_pay"),
        ("hours_worked", "work"),
        ("rate", "tier", "base", "credit", "minimum", "rounding"),
    ),
    Domain(
        "exam",
        ("the score of an exam", "the points of a quiz", "a test result"),
        ("exam_score", "quiz_points", "test_result"),
        ("answers", "correct"),
        ("negative", "zero", "rate", "bulk", "maximum", "rounding"),
    ),
    Domain(
        "tickets",
        ("the price of concert tickets", "what a group pays for a show", "the cost of festival tickets"),
        ("concert_price", "show_cost", "festival_price"),
        ("tickets", "seats"),
        ("every", "rate", "insurance", "discount", "tax", "split"),
    ),
    Domain(
        "cleaning",
        ("the price of a cleaning service", "what a client pays for clean rooms", "a cleaning bill"),
        ("cleaning_price", "cleaner_cost", "rooms_bill"),
        ("rooms", "offices"),
        ("pack", "rate", "insurance", "discount", "minimum", "label"),
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
CLOSERS = (
    "It should follow our rules.",
    "There are a few rules.",
    "Ask me if you need to know more.",
    "We have our own rules.",
)
