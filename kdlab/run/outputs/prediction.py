"""What a student says of images that are no part of any data set."""

import csv
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from kdlab.config.check import construct
from kdlab.config.home import write_whole
from kdlab.config.load import from_dict
from kdlab.data.encoded.holders import LARGEST, open_holder, read_file
from kdlab.data.encoded.inventory import Inventory
from kdlab.data.encoded.store import ContentChanged, read_image
from kdlab.data.encoded.view_threads import run_in_threads
from kdlab.data.encoded.walk import is_image, walk
from kdlab.data.shown import InputSpec
from kdlab.data.splits import by_class
from kdlab.errors import BadInput, DataError
from kdlab.experiment import folder as folders
from kdlab.experiment.folder import RunFolder
from kdlab.experiment.spec import spec_of
from kdlab.models.exported import load_exported
from kdlab.models.model import read_card
from kdlab.report import page
from kdlab.report.page import Card
from kdlab.report.pictures import Pictures
from kdlab.report.table import text_table_left, visible
from kdlab.run.outputs.onnx_file import OnnxStudent
from kdlab.run.outputs.student_files import student_file
from kdlab.train.evaluate import in_batches, probabilities

LABELS = ("file", "class", "confidence", "second", "second_share", "margin", "unreadable")
_BATCH, _SAY_S = 128, 5.0  # images whose pixels are in memory; from line to line


@dataclass(frozen=True, slots=True)
class Prediction:
    """One image: the likeliest classes, likeliest first."""

    image: str  # its path, or "image 3"
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]

    @property
    def top(self) -> str:
        return self.classes[0]

    def said(self, digits: int = 0) -> list[str]:
        """Each class with its probability in percent."""
        pairs = zip(self.classes, self.probabilities, strict=True)
        return [f"{name} {share:.{digits}%}" for name, share in pairs]

    def __str__(self) -> str:
        return f"{self.image}: {', '.join(self.said())}"


class Predictions(Sequence[Prediction]):
    """A table in a terminal, the pictures with their answers in a notebook."""

    taken = ""  # which of several trainings says it, and why

    def __init__(self, rows: Sequence[Prediction], pixels: NDArray[np.uint8]) -> None:
        self.rows, self.pixels = list(rows), pixels

    def __getitem__(self, place: Any) -> Any:
        return self.rows[place]

    def __len__(self) -> int:
        return len(self.rows)

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(row) for row in self.rows]

    def __repr__(self) -> str:
        count = max((len(row.classes) for row in self.rows), default=0)
        body = [[row.image, *row.said(1)] for row in self.rows]
        table = text_table_left(["image", "is", *["or"] * (count - 1)], body)
        return f"{table}\n{self.taken}".rstrip()

    def _repr_html_(self) -> str:
        lines = [[Path(row.image).name, *row.said()] for row in self.rows]
        said = [("plain", self.taken)] if self.taken else []
        return page.shown(
            Card("Predictions", Pictures(self.pixels, lines).html()), said=said
        )


class StudentAtWork:
    """An exported student that is asked about images.

    Args:
        path: of its .onnx, or of its .safetensors with the .json beside it, or of their folder.

    Raises:
        WeightsError: a file is missing or damaged, or they do not belong together.
        BadInput: it was exported before its file said how an image becomes its input.
    """

    def __init__(self, path: Path) -> None:
        self.model: nn.Module
        if path.suffix == ".onnx":
            self.model = OnnxStudent(path)
            card = self.model.card
        else:
            path = next((own for own in _inside(path) if own.is_file()), path)
            self.model = load_exported(path)
            card = read_card(path)
        if "input" not in card:
            raise BadInput(
                f"{path.with_suffix('.json')} does not say how an image becomes the student's "
                "input: an earlier version of kdlab wrote it. Train it again, or call the model "
                "with pixels of your own: kdlab.models.exported.load_exported."
            )
        self.input = construct(
            InputSpec, from_dict(_without_resize(card["input"]), path.name)
        )
        self.classes: tuple[str, ...] = tuple(card["classes"])

    def __call__(self, asked: object, top: int = 3) -> Predictions:
        """What it says.

        Args:
            asked: a path of an image or of a folder of them, an image in memory (Pillow's, the
                bytes of a file, or an array: (H, W), (H, W, C) or (C, H, W) of uint8, of uint16, or
                of floating-point numbers from 0 to 1), or several of these.
            top: classes for each.

        Raises:
            BadInput: there is no image.
            DataError: one cannot be decoded; it is named.
        """
        # One file after another: of all of them only the pixels that the student is shown stay.
        shown = [(name, self._pixels(name, image)) for name, image in _images(asked)]
        if not shown:
            raise BadInput(f"There is no image in {asked}.")
        pixels = np.stack([own for _, own in shown])
        rows = []
        shares = probabilities(self.model, in_batches(pixels))
        for (image, _), own in zip(shown, shares, strict=True):
            best = np.argsort(-own, kind="stable")[:top]
            names = tuple(self.classes[k] for k in best)
            rows.append(
                Prediction(image, names, tuple(round(float(own[k]), 6) for k in best))
            )
        return Predictions(rows, pixels)

    def _pixels(self, name: str, image: object) -> NDArray[np.uint8]:
        try:
            return self.input.pixels(image)
        except (DataError, OSError) as error:
            raise DataError(f"{name} {error}") from error


def _inside(folder: Path) -> tuple[Path, ...]:
    """Where the weights of an exported folder are: kdlab's own, and that for timm."""
    return folder / "student.safetensors", folder / "model.safetensors"


def answers(
    run: str, images: object, top: int = 3, member: str | None = None, *, best: bool = False
) -> Predictions:
    """What the student of a run says of images; see `Run.predict`.

    Args:
        run: as `kdlab attach` takes it, or the path of an exported student (`StudentAtWork`).
        images: see `StudentAtWork`.
        top: classes for each.
        member: a training by name; None is the best on validation.
        best: the weights of the best epoch on validation instead of the last.

    Raises:
        BadInput, DataError: there is no image, or one is damaged.
        NotFoundError: no such run, or it has no student yet.
    """
    if top < 1:
        raise BadInput(f"{top} classes are none; ask for one at least.")
    student, taken = student_of(run, member, best=best)
    found = student(images, top)
    found.taken = taken
    return found


def student_of(run: str, member: str | None, *, best: bool) -> tuple[StudentAtWork, str]:
    """The student that `answers` asks, and why it is taken of several."""
    exported, taken = Path(run).expanduser(), ""
    folder = any(path.is_file() for path in _inside(exported))
    if exported.suffix not in (".safetensors", ".onnx") and not folder:
        exported, taken = student_file(folders.find(run), member, best=best)
    return StudentAtWork(exported), taken


def label(
    run: str,
    place: str | Path,
    out: str | Path | None,
    *,
    member: str | None = None,
    best: bool = False,
    by_name: bool = False,
    force: bool = False,
    say: Callable[[str], None] = print,
) -> None:
    """See `Run.label`. `run` is as `answers` takes it; None as `out` is standard output."""
    path = None if out is None else Path(out).expanduser()
    if path is not None and path.exists() and (path.is_dir() or not force):
        raise BadInput(f"{path} is there already; --force (force=True) overwrites it.")
    student, taken = student_of(run, member, best=best)
    if taken:
        say(taken)

    def write(at: Path | None) -> None:
        # Opened first, so that what cannot be written there is said before the work.
        file = at.open("w", encoding="utf-8", newline="") if at else sys.stdout
        with closing(file) if at else nullcontext():
            found = _labels(student, os.path.expanduser(place), say)
            ordered = found if by_name else iter(sorted(found, key=itemgetter(5)))
            csv.writer(file, lineterminator="\n").writerows(chain([LABELS], ordered))

    try:
        write_whole(path, write) if path else write(None)
    except BrokenPipeError:  # `kdlab label RUN FOLDER | head`
        raise
    except OSError as error:
        raise BadInput(f"The table cannot be written to {path}: {error}.") from error


def _labels(
    student: StudentAtWork, place: str, say: Callable[[str], None]
) -> Iterator[list[str]]:
    """A row of LABELS for each image, by name; of one that cannot be read the last says why."""
    found, bad, shape = Inventory(), 0, (student.input.channels, *[student.input.size] * 2)
    walk(place, found, bare=True)
    images = sorted(found.images, key=lambda image: image.name)
    begin = told = time.monotonic()

    def make(numbers: range) -> None:
        for k in numbers:
            try:
                pixels[k] = student.input.pixels(read_image(holder, some[k]))
            except (DataError, OSError, zlib.error, ContentChanged) as error:
                why[k] = str(error)

    with closing(open_holder(place, found.stamps.get(place))) as holder:
        for first in range(0, len(images), _BATCH):
            some = images[first : first + _BATCH]
            pixels, why = np.zeros((len(some), *shape), np.uint8), [""] * len(some)
            run_in_threads(make, len(some))
            said = probabilities(student.model, [pixels])
            for image, own, no in zip(some, said, why, strict=True):
                a, b = np.resize(np.argsort(-own, kind="stable"), 2)
                shares = [f"{one:.4f}" for one in (own[a], own[b], own[a] - own[b])]
                cells = student.classes[a], shares[0], student.classes[b], *shares[1:]
                yield [*map(_harmless, [image.name, *([""] * 5 if no else cells), no])]
                bad += bool(no)
            if (now := time.monotonic()) - told >= _SAY_S:
                told, done = now, first + len(some)
                say(f"{done:,} of {len(images):,} images after {now - begin:,.0f} s")
    say(f"{len(images):,} images labelled; {bad:,} cannot be read")


def _harmless(cell: str) -> str:
    """As text: names of files and classes are anybody's, and may begin as a formula does."""
    text = visible(cell).encode("utf-8", "backslashreplace").decode()
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) else text


def test_images(run: RunFolder, count: int) -> list[NDArray[np.uint8]]:
    """The first test images of each class in turn, (H, W, C), as the student is shown them.

    Raises:
        BadInput: fewer than one.
    """
    if count < 1:
        raise BadInput(f"{count} images are none; ask for one at least.")
    data = spec_of(run).data.load()
    rows, _ = by_class(data.test, data.labels, min(count, len(data.test)), 0)
    return [np.moveaxis(image, 0, -1) for image in data.inputs[rows]]


def _images(asked: object) -> Iterator[tuple[str, object]]:
    """Name of each, and what `InputSpec.pixels` takes."""
    if isinstance(asked, str | Path):
        yield from _files(Path(asked).expanduser())
    elif isinstance(asked, bytes | bytearray):
        yield "image", bytes(asked)
    elif (
        hasattr(asked, "getexif") or 0 < getattr(asked, "ndim", 0) < 4
    ):  # of Pillow; an array
        yield "image", asked
    elif isinstance(asked, Iterable):
        for number, one in enumerate(asked):
            for name, image in _images(one):
                yield (f"image {number}" if name == "image" else name), image
    else:
        raise BadInput(f"{type(asked).__name__} is no image: give a path, or an image.")


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    if path.is_dir():
        found = sorted(
            p for p in path.rglob("*") if is_image(p.relative_to(path).as_posix())
        )
        if not found:
            raise BadInput(f"There is no image in the folder {path}.")
    else:
        found = [path]
    for one in found:
        try:
            yield str(one), read_file(one, LARGEST)
        except OSError as error:
            raise BadInput(f"{one} cannot be read: {error.strerror or error}.") from error


def _without_resize(shown: dict[str, Any]) -> dict[str, Any]:
    """Cards of version 0.2 say how images were resized; there is one way now."""
    return {name: value for name, value in shown.items() if name != "resize"}
