"""Predictions of a student on images outside any data set."""

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
from kdlab.config.folders import user_path
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
_BATCH, _SAY_S = 128, 5.0  # images in memory; seconds between lines of progress


@dataclass(frozen=True, slots=True)
class Prediction:
    """The most probable classes of an image, most probable first."""

    image: str  # its path, or "image 3"
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]

    @property
    def top(self) -> str:
        return self.classes[0]

    def percentages(self, digits: int = 0) -> list[str]:
        """Return each class with its probability in percent."""
        pairs = zip(self.classes, self.probabilities, strict=True)
        return [f"{name} {share:.{digits}%}" for name, share in pairs]

    def __str__(self) -> str:
        return f"{self.image}: {', '.join(self.percentages())}"


class Predictions(Sequence[Prediction]):
    """Predictions as a table in a terminal, with pictures in a notebook."""

    taken = ""  # which of several trainings predicts, and why

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
        body = [[row.image, *row.percentages(1)] for row in self.rows]
        table = text_table_left(["image", "is", *["or"] * (count - 1)], body)
        return f"{table}\n{self.taken}".rstrip()

    def _repr_html_(self) -> str:
        lines = [[Path(row.image).name, *row.percentages()] for row in self.rows]
        notes = [("plain", self.taken)] if self.taken else []
        return page.shown(
            Card("Predictions", Pictures(self.pixels, lines).html()), alerts=notes
        )


class StudentAtWork:
    """An exported student that classifies images.

    Args:
        path: its .onnx, or its .safetensors with the .json beside it, or their folder.

    Raises:
        WeightsError: a file is missing or damaged, or weights and card do not match.
        BadInput: an earlier kdlab exported it without the input spec of images.
    """

    def __init__(self, path: Path) -> None:
        self.model: nn.Module
        if path.suffix == ".onnx":
            self.model = OnnxStudent(path)
            card = self.model.card
        else:
            path = next((file for file in _inside(path) if file.is_file()), path)
            self.model = load_exported(path)
            card = read_card(path)
        if "input" not in card:
            raise BadInput(
                f"{path.with_suffix('.json')} does not say how an image becomes the student's "
                "input: an earlier version of kdlab wrote it. Train it again, or prepare pixels "
                "yourself for the model of kdlab.models.exported.load_exported."
            )
        self.input = construct(
            InputSpec, from_dict(_without_resize(card["input"]), path.name)
        )
        self.classes: tuple[str, ...] = tuple(card["classes"])

    def __call__(self, images: object, top: int = 3) -> Predictions:
        """Classify images.

        Args:
            images: a path of an image or of a folder of them, an image in memory (Pillow's, the
                bytes of a file, or an array: (H, W), (H, W, C) or (C, H, W) of uint8, of uint16, or
                of floating-point numbers from 0 to 1), or several of these.
            top: most probable classes to return for each image.

        Raises:
            BadInput: there is no image, or `top` is no whole number from 1.
            DataError: an image cannot be decoded; it is named.
        """
        require_count(top, "classes")
        # One file after another: only the resized pixels of each stay in memory.
        shown = [(name, self._pixels(name, image)) for name, image in _images(images)]
        if not shown:
            raise BadInput(f"There is no image in {images}.")
        pixels = np.stack([view for _, view in shown])
        rows = []
        shares = probabilities(self.model, in_batches(pixels))
        for (image, _), row in zip(shown, shares, strict=True):
            best = np.argsort(-row, kind="stable")[:top]
            names = tuple(self.classes[k] for k in best)
            rows.append(
                Prediction(image, names, tuple(round(float(row[k]), 6) for k in best))
            )
        return Predictions(rows, pixels)

    def _pixels(self, name: str, image: object) -> NDArray[np.uint8]:
        try:
            return self.input.pixels(image)
        except (DataError, OSError) as error:
            raise DataError(f"{name} {error}") from error


def _inside(folder: Path) -> tuple[Path, ...]:
    """Paths of the weights in an exported folder: kdlab's, then timm's."""
    return folder / "student.safetensors", folder / "model.safetensors"


def answers(
    run: str, images: object, top: int = 3, member: str | None = None, *, best: bool = False
) -> Predictions:
    """Classify images with the student of a run; see `Run.predict`.

    Args:
        run: as `kdlab attach` takes it, or the path of an exported student (`StudentAtWork`).
        images: see `StudentAtWork`.
        top: most probable classes to return for each image.
        member: name of a training; None takes the best on validation.
        best: take the weights of the best epoch on validation instead of the last.

    Raises:
        BadInput, DataError: there is no image, or one is damaged.
        NotFoundError: no such run, or it has no student yet.
    """
    require_count(top, "classes")
    student, taken = student_of(run, member, best=best)
    predictions = student(images, top)
    predictions.taken = taken
    return predictions


def student_of(run: str, member: str | None, *, best: bool) -> tuple[StudentAtWork, str]:
    """Return the student of a run or export, and why it is taken of several."""
    exported, taken = user_path(run), ""
    folder = any(path.is_file() for path in _inside(exported))
    if exported.suffix not in (".safetensors", ".onnx") and not folder:
        exported, taken = student_file(folders.find(run), member, best=best)
    elif member is not None or best:
        raise BadInput(f"{run} is the export of one student: omit member and best.")
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
    path = None if out is None else user_path(out)
    if path is not None and path.exists() and (path.is_dir() or not force):
        raise BadInput(f"{path} exists already; --force (force=True) overwrites it.")
    student, taken = student_of(run, member, best=best)
    if taken:
        say(taken)

    def write(at: Path | None) -> None:
        # Opened first, so that an unwritable path fails before the work.
        file = at.open("w", encoding="utf-8", newline="") if at else sys.stdout
        with closing(file) if at else nullcontext():
            rows = _labels(student, os.path.expanduser(place), say)
            ordered = rows if by_name else iter(sorted(rows, key=itemgetter(5)))
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
    """Yield a row of LABELS for each image, by name; an unreadable one has its reason there."""
    every, bad, shape = Inventory(), 0, (student.input.channels, *[student.input.size] * 2)
    walk(place, every, bare=True)
    images = sorted(every.images, key=lambda image: image.name)
    begin = reported = time.monotonic()

    def make(numbers: range) -> None:
        for k in numbers:
            try:
                pixels[k] = student.input.pixels(read_image(holder, some[k]))
            except (DataError, OSError, zlib.error, ContentChanged) as error:
                why[k] = str(error)

    with closing(open_holder(place, every.stamps.get(place))) as holder:
        for first in range(0, len(images), _BATCH):
            some = images[first : first + _BATCH]
            pixels, why = np.zeros((len(some), *shape), np.uint8), [""] * len(some)
            run_in_threads(make, len(some))
            answers = probabilities(student.model, [pixels])
            for image, row, no in zip(some, answers, why, strict=True):
                a, b = np.resize(np.argsort(-row, kind="stable"), 2)
                shares = [f"{p:.4f}" for p in (row[a], row[b], row[a] - row[b])]
                cells = student.classes[a], shares[0], student.classes[b], *shares[1:]
                yield [*map(_harmless, [image.name, *([""] * 5 if no else cells), no])]
                bad += bool(no)
            if (now := time.monotonic()) - reported >= _SAY_S:
                reported, done = now, first + len(some)
                say(f"{done:,} of {len(images):,} images after {now - begin:,.0f} s")
    say(f"{len(images):,} images labelled; {bad:,} cannot be read")


def _harmless(cell: str) -> str:
    """Make a cell safe for spreadsheets: names of files and classes may begin like a formula."""
    text = visible(cell).encode("utf-8", "backslashreplace").decode()
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) else text


def test_images(run: RunFolder, count: int) -> list[NDArray[np.uint8]]:
    """Return test images (H, W, C) at the student's input size, from the classes in turn.

    Raises:
        BadInput: `count` is no whole number from 1.
    """
    require_count(count, "images")
    data = spec_of(run).data.load()
    rows, _ = by_class(data.test, data.labels, min(count, len(data.test)), 0)
    return [np.moveaxis(image, 0, -1) for image in data.inputs[rows]]


def require_count(count: object, what: str) -> None:
    """Raise BadInput unless `count` is a whole number from 1."""
    if not isinstance(count, int | np.integer) or count < 1:
        raise BadInput(f"{count!r} {what} were asked for; ask for a whole number from 1.")


def _images(asked: object) -> Iterator[tuple[str, object]]:
    """Yield the name of each image, and a form of it that `InputSpec.pixels` takes."""
    if isinstance(asked, str | Path):
        yield from _files(user_path(asked))
    elif isinstance(asked, bytes | bytearray):
        yield "image", bytes(asked)
    elif (
        hasattr(asked, "getexif") or 0 < getattr(asked, "ndim", 0) < 4
    ):  # of Pillow; an array
        yield "image", asked
    elif isinstance(asked, Iterable):
        for number, item in enumerate(asked):
            for name, image in _images(item):
                yield (f"image {number}" if name == "image" else name), image
    else:
        raise BadInput(f"{type(asked).__name__} is no image: give a path, or an image.")


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    if path.is_dir():
        files = sorted(
            p for p in path.rglob("*") if is_image(p.relative_to(path).as_posix())
        )
        if not files:
            raise BadInput(f"There is no image in the folder {path}.")
    else:
        files = [path]
    for file in files:
        try:
            yield str(file), read_file(file, LARGEST)
        except OSError as error:
            raise BadInput(f"{file} cannot be read: {error.strerror or error}.") from error


def _without_resize(shown: dict[str, Any]) -> dict[str, Any]:
    """Drop the resize key of cards of version 0.2; there is only one way now."""
    return {name: value for name, value in shown.items() if name != "resize"}
