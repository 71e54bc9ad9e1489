"""Pictures of kept results, for the docs."""

from benchmarks.reproduce.command import kept
from benchmarks.reproduce.freshness import changed_since
from kdlab.report.bars import whole


def picture(note: str, parts: str, tall: int, *results: str) -> str:
    """A whole SVG of this height, with a note below its parts.

    Parts that show kept `results` whose code has changed since are pale, and the note says so.
    """
    if any(changed_since(kept(name)) for name in results):
        note += " Measured before the code changed."
        parts = f'<g opacity="0.55">{parts}</g>'
    return whole(note, parts, tall)
