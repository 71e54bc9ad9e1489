"""Watched images with their predictions, as one picture for MLflow's image grid."""

from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from kdlab.events.images import ImagesAnswered, ImagesChosen

_CELL, _GAP, _LINE = 132, 10, 15  # pixels
_PAPER, _INK, _RIGHT, _WRONG = "#ffffff", "#444444", "#1f7a45", "#b3261e"
_ACROSS = 4  # images of a row


def sheet(
    chosen: ImagesChosen, student: ImagesAnswered, teacher: ImagesAnswered | None
) -> Image.Image:
    """Draw each image with its class and the predictions of student and teacher.

    Raises:
        OSError: the file with the images is missing.
    """
    with Image.open(Path(chosen.path)) as strip:
        strip.load()
    count, side = len(chosen.labels), chosen.side
    across = min(_ACROSS, count)
    tall = side + 3 * _LINE + _GAP
    size = (across * _CELL + _GAP, -(-count // across) * tall + _GAP)
    drawn = Image.new("RGB", size, _PAPER)
    pen, font = ImageDraw.Draw(drawn), ImageFont.load_default(11)
    for place, label in enumerate(chosen.labels):
        x, y = _GAP + place % across * _CELL, _GAP + place // across * tall
        drawn.paste(strip.crop((place * side, 0, (place + 1) * side, side)), (x, y))
        captions: list[tuple[str, str, float | None]] = [("", label, None)]
        for who, answer in (("student", student), ("teacher", teacher)):
            if answer is not None:
                captions.append((f"{who} ", answer.said[place], answer.shares[place]))
        for line, (who, name, share) in enumerate(captions):
            colour = _INK if share is None else _RIGHT if name == label else _WRONG
            words = f"{who}{name}" if share is None else f"{who}{name} {share:.0f} %"
            pen.text((x, y + side + line * _LINE), _fitting(words, font), colour, font)
    return drawn


def _fitting(words: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """Cut a line to the width of a cell."""
    while font.getlength(words) > _CELL - 4 and len(words) > 2:
        words = f"{words[:-2]}…"
    return words
