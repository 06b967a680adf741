"""Body of the clients' POST: a part of a store's catalogue, of the article's size (2.2 KB with its head)."""

from __future__ import annotations

import json
from pathlib import Path

ITEMS = (
    ("Linen shirt, long sleeves", "Washed linen with a narrow collar and mother-of-pearl buttons; cut straight."),
    ("Trail running shoes", "Grip of five millimetres, a plate against stones, laces for one hand."),
    ("Cast-iron pan, 28 cm", "Seasoned with linseed oil; for gas, induction and embers, and whatever comes."),
    ("Rye bread with caraway", "Sourdough of three stages, baked for two hours; keeps for a week in its paper."),
    ("Desk lamp with two joints", "Warm or cold light in nine steps, a foot of slate, a cable of two metres."),
    (
        "Rain jacket for children",
        "Taped seams, a hood that turns with the head, reflecting strips on back and sleeves.",
    ),
    ("Olive oil, 500 ml", "First pressing of three groves on one slope; picked in October, unfiltered, dark glass."),
    ("Notebook with dots, A5", "A hundred and sixty pages that lie flat, numbered, with an index and two ribbons."),
)
SIZES = ("S", "M", "L", "XL")


def write(path: Path) -> Path:
    items = [
        {"id": number, "title": title, "description": description, "sizes": SIZES, "price": {"EUR": 19 + 7 * number}}
        for number, (title, description) in enumerate(ITEMS, start=1)
    ]
    path.write_text(json.dumps({"store": "sheave-lab", "language": "en", "items": items}, indent=1))
    return path
