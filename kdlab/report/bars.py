"""Bars with labels and numbers as SVG."""

import html

OURS, THEIRS, INK = "#2f6fb3", "#9aa6b5", "#5f6b7a"
WIDE = 860  # width of a picture in pixels


def svg_document(note: str, parts: str, tall: int) -> str:
    """Return an SVG of height `tall` in pixels, with a note below its parts."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {tall}" width="{WIDE}" '
        f'height="{tall}" font-family="system-ui, sans-serif" font-size="13" role="img">'
        f"<title>{html.escape(note)}</title>{parts}"
        f'<text x="0" y="{tall - 8}" font-size="12" fill="{INK}">{html.escape(note)}</text>'
        "</svg>\n"
    )


def title(words: str, x: int, y: int) -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="15" font-weight="600" fill="{INK}">'
        f"{html.escape(words)}</text>"
    )


def bar(
    words: str,
    number: str,
    x: int,
    y: int,
    wide: float,
    *,
    tall: int = 15,
    ours: bool = True,
) -> str:
    """Return a bar from x, its label on the left and its number on the right; width 0 is no bar."""
    middle = y + tall / 2 + 4
    drawn = (
        f'<rect x="{x}" y="{y}" width="{wide:.1f}" height="{tall}" rx="3" '
        f'fill="{OURS if ours else THEIRS}"/>'
        if wide
        else ""
    )
    return (
        f'<text x="{x - 8}" y="{middle}" text-anchor="end" fill="{INK}">'
        f"{html.escape(words)}</text>{drawn}"
        f'<text x="{x + (wide + 6 if wide else 0):.1f}" y="{middle}" fill="{INK}">'
        f"{html.escape(number)}</text>"
    )
