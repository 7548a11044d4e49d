"""What a request of the synthetic suite hints at: looks, which settle many details of a page at once.

A request names a look in one of many wordings ("something like the sea"). Most looks settle more details than the user
can point out within the turns, a few settle hardly any. So an agent that begins with a plain page and corrects what the
user says arrives only where the look settles little; one that begins with the look has few corrections left to make.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sweetrl.frontend.suite.designs import BY_NAME, Design


@dataclass(frozen=True)
class Look:
    """A look: what it is called by, and the details that it settles (name to value), as far as a page has them."""

    name: str
    words: tuple[str, ...]
    values: dict[str, str] = field(hash=False)

    def on(self, design: Design) -> Design:
        """Return the design with all that the look settles on a page with its sections."""
        names = {detail.name for detail in design.open_details()}
        if "gallery" in design.sections:  # else nobody could say which picture is meant
            names.discard("about picture")
        return design.set({name: value for name, value in self.values.items() if name in names}).seen().grounded()


def _look(name: str, words: tuple[str, ...], bars: str, details: str) -> Look:
    """Write a look down: `bars` are page, header, alignment, navigation and footer, `details` pairs of name=value."""
    names = ("page color", "header color", "header align", "navigation color", "footer color")
    values = dict(zip(names, (word.strip() for word in bars.split(",")), strict=True))
    for pair in filter(None, details.split(", ")):
        detail, _, value = pair.partition("=")
        values[detail] = value
    if unknown := [detail for detail, value in values.items() if value not in BY_NAME[detail].values]:
        raise AssertionError(f"the look {name!r} has no value of the suite for {unknown[0]!r}")
    return Look(name, words, {n: v for n, v in values.items() if v != BY_NAME[n].plain})


LOOKS = (
    _look(
        "sea", ("the sea", "a day at the beach", "waves and wind", "a sailing boat"),
        "light blue, dark blue, center, blue, dark blue",
        "about align=center, offers columns=2, offers boxes=light yellow, contact button=dark blue, "
        "gallery picture=900 by 400, hours color=white, gallery pictures=1",
    ),
    _look(
        "forest", ("a forest", "a walk in the woods", "moss and ferns", "old trees"),
        "light green, dark green, left, green, dark green",
        "about picture=600 by 300, offers boxes=light yellow, contact button=green, gallery picture=600 by 300, "
        "gallery pictures=3, hours align=center, about color=white",
    ),
    _look(
        "sunset", ("a sunset", "the evening sky", "a late summer evening", "the last light of the day"),
        "light yellow, red, right, purple, pink",
        "about color=light pink, offers columns=4, contact button=red, gallery pictures=3, "
        "hours color=light pink, about align=center, offers boxes=light pink",
    ),
    _look(
        "lavender", ("a field of lavender", "the south of France", "violets in spring", "a bunch of lilac"),
        "light purple, purple, center, dark blue, purple",
        "about picture=300 by 200, offers columns=2, offers boxes=light pink, contact button=purple, "
        "gallery picture=600 by 300, contact color=white, hours align=center",
    ),
    _look(
        "newspaper", ("a newspaper", "the morning paper", "black ink on paper", "an old printing house"),
        "light gray, dark gray, center, dark gray, dark gray",
        "offers columns=4, offers boxes=light yellow, contact button=dark gray, about align=center, "
        "hours align=center, gallery pictures=3, gallery color=white",
    ),
    _look(
        "candy", ("a candy shop", "sweets and bubble gum", "a birthday party", "cotton candy"),
        "light pink, pink, right, blue, purple",
        "about color=light yellow, offers columns=4, contact button=pink, gallery pictures=1, "
        "hours color=light blue, offers boxes=light blue, gallery picture=600 by 300",
    ),
    _look(
        "night", ("the city at night", "a jazz club", "the hour after midnight", "neon signs in the rain"),
        "light gray, dark blue, right, purple, dark gray",
        "about picture=900 by 400, offers boxes=light blue, contact button=purple, gallery picture=900 by 400, "
        "gallery pictures=1, hours color=light purple, contact color=light blue",
    ),
    _look(
        "meadow", ("a meadow", "a picnic in May", "fresh grass", "daisies in the sun"),
        "light yellow, green, center, dark green, green",
        "about picture=600 by 300, offers columns=2, contact button=dark green, gallery pictures=3, "
        "hours color=light green, offers boxes=light green, about color=white",
    ),
    _look(
        "flag", ("a football club", "a match on Saturday", "the colours of our team", "a stadium"),
        "light blue, red, left, dark blue, red",
        "offers columns=4, offers boxes=white, contact button=red, about align=center, "
        "gallery picture=900 by 400, hours color=light gray, gallery color=white",
    ),
    _look(
        "roses", ("a rose garden", "a wedding in June", "a love song", "old roses on a wall"),
        "light pink, dark green, center, pink, red",
        "about picture=300 by 200, offers columns=2, contact button=pink, gallery picture=600 by 300, "
        "hours align=center, offers boxes=light green, gallery color=light yellow, contact color=white",
    ),
    _look(
        "harvest", ("harvest time", "an orchard in autumn", "a basket of apples", "a market on a square"),
        "light green, red, right, dark green, red",
        "about picture=900 by 400, offers columns=4, offers boxes=light yellow, contact button=red, "
        "gallery pictures=1, gallery picture=900 by 400, hours align=center, about color=light yellow",
    ),
    _look(
        "aurora", ("the northern lights", "a night in Norway", "stars over the mountains", "a camp under the stars"),
        "light purple, dark blue, left, green, dark blue",
        "about align=center, offers columns=2, offers boxes=light green, contact button=green, "
        "gallery pictures=3, hours color=light green, gallery picture=900 by 400",
    ),
    _look(
        "plain", ("something plain", "a page without frills", "as little as possible", "a clean desk"),
        "white, dark gray, left, none, none", "",
    ),
    _look(
        "letter", ("a letter", "a page from a diary", "good writing paper", "an envelope"),
        "white, blue, center, none, none", "about align=center, hours align=center",
    ),
    _look(
        "snow", ("fresh snow", "a winter morning", "ice and clear air", "the first frost"),
        "white, dark gray, left, none, blue", "contact button=dark blue, gallery pictures=1",
    ),
)  # fmt: skip
HINTS = (
    "It should remind people of {}.",
    "Think of {}.",
    "I want it to feel like {}.",
    "In my head it looks like {}.",
    "Make it look like {}.",
)


def hinted_look(request: str) -> Look | None:
    """Return the look that a request names; None where it names none."""
    return next((look for look in LOOKS if any(f" {words}." in request for words in look.words)), None)
