"""Requests for soft labels and their answers, as arrays on the wire.

Inputs travel by reference (ids, eight bytes each; the teacher makes the same view from
its own copy of the data), as uint8 pixels, or as float32 pixels from 0 to 1 as in the
paper. Answers are float32 or float16 logits, the k likeliest classes with the mass of the
rest, or k sampled classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from kdlab.cluster.transport.frames import Arrays
from kdlab.codec import MessageError, from_builtins
from kdlab.soft_labels.compressed import (
    MOST_DRAWS,
    SampledLabels,
    TopK,
    compress,
    draw,
    expand,
    expand_drawn,
)

Inputs = Literal["reference", "value_uint8", "value_float32", "auto"]
Replies = Literal["full", "half", "top_k", "sampled"]  # ENCODINGS below
Small = TypeVar("Small", TopK, SampledLabels)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRequest:
    """Header of a request for soft labels."""

    epoch: int  # of the views
    replies: Replies
    top_k: int = 0  # classes or draws of each label, for those replies
    fresh: bool = False  # computed for this request, not taken from a cache
    serves: str | None = None  # fingerprint of the teacher; None accepts any


def request(
    inputs: Inputs, ids: NDArray[np.int64], views: NDArray[np.uint8] | None
) -> Arrays:
    if views is None:
        return {"ids": ids}
    if inputs == "value_float32":
        return {"views": views.astype(np.float32) / np.float32(255)}
    return {"views": views}


def check(
    asked: Mapping[str, object],
    inputs: Arrays,
    shape: tuple[int, int, int],
    classes: int,
    most: int,
    images: int | None,
) -> LabelRequest:
    """Check a request and return its header.

    Args:
        asked: its header.
        inputs: its arrays.
        shape: (C, H, W) of the images.
        classes: numbers of an answer.
        most: samples of a request.
        images: number of images, which bounds ids; None where no data is loaded.

    Raises:
        ValueError: the request cannot be answered.
    """
    try:
        wanted = from_builtins(LabelRequest, asked)
    except MessageError as error:
        raise ValueError(f"a request asks for {dict(asked)!r}") from error
    if not 0 <= wanted.epoch < 2**31:
        raise ValueError(f"a request asks for {dict(asked)!r}")
    if why := ENCODINGS[wanted.replies].fault(wanted.top_k, classes):
        raise ValueError(f"top_k {why}")
    if set(inputs) == {"ids"}:
        fits = inputs["ids"].dtype == np.int64 and inputs["ids"].ndim == 1
    elif set(inputs) == {"views"}:
        views = inputs["views"]
        fits = views.dtype in (np.uint8, np.float32) and views.shape[1:] == shape
    else:
        fits = False
    if not fits or not samples_in(inputs):
        arrays = {name: (a.dtype.str, a.shape) for name, a in inputs.items()}
        raise ValueError(f"the inputs are {arrays}; images of this pool are {shape}")
    if samples_in(inputs) > most:
        raise ValueError(f"{samples_in(inputs)} samples in one request; the most is {most}")
    if "ids" in inputs:
        if images is None:
            raise ValueError("samples by reference; this teacher has no data, send views")
        lowest, highest = int(inputs["ids"].min()), int(inputs["ids"].max())
        if lowest < 0 or highest >= images:
            raise ValueError(
                f"sample ids from {lowest} to {highest}; the data set has {images} images"
            )
    return wanted


def samples_in(asked: Arrays) -> int:
    return len(next(iter(asked.values())))


class RequestTimes(NamedTuple):
    """Seconds that a request spent at its teacher, sent with the answer."""

    queued_s: float = 0.0
    views_s: float = 0.0  # waiting for its views
    computed_s: float = 0.0  # with the other requests of its batch

    def with_times(self, answer: Arrays, engine: str) -> Arrays:
        """Add these times, and the engine in ASCII, to an answer."""
        name = np.frombuffer(engine.encode("ascii", "replace"), np.uint8)
        return {**answer, "took": np.asarray(self, np.float32), "engine": name}

    @classmethod
    def from_answer(cls, answer: Arrays) -> "RequestTimes | None":
        """Times in an answer; None where they are absent or invalid."""
        took = answer.get("took")
        if took is None or took.shape != (3,) or not np.isfinite(took).all():
            return None
        return cls(*(max(0.0, float(seconds)) for seconds in took))


def engine_of(answer: Arrays) -> str:
    """Name of the engine in an answer; empty where it is absent or invalid."""
    array = answer.get("engine")
    text = b"" if array is None or array.dtype != np.uint8 else array.tobytes()[:24]
    name = text.decode("ascii") if text.isascii() else ""
    return name if name.isprintable() else ""


def encode(logits: NDArray[np.float32], replies: Replies, top_k: int) -> Arrays:
    with np.errstate(over="ignore"):  # beyond 65504 a half is infinite: refused by readers
        return ENCODINGS[replies].encode(logits, top_k)


def decode(answer: Arrays, classes: int) -> NDArray[np.float32]:
    """Decode an answer to (N, classes) float32 logits.

    Raises:
        ValueError: the answer has none of the encodings.
    """
    try:
        form = next(e for e in ENCODINGS.values() if answer.keys() >= set(e.arrays))
        return form.decode(answer, classes)
    except (StopIteration, IndexError, AttributeError) as error:
        raise ValueError(f"it answered with {sorted(answer)}") from error


class Encoding(NamedTuple):
    """An encoding of soft labels on the wire; a new one is a row of `ENCODINGS`.

    Attributes:
        arrays: names of an answer's arrays.
        encode: takes (N, classes) logits and the number of classes or draws of each.
        decode: takes the arrays and the number of classes; raises ValueError or IndexError.
        fault: why k of this many classes are not allowed; empty where they are.
        number: type of each class where all are sent; hidden states travel so, too.
        by_chance: answers are random, and right only on average.
    """

    arrays: tuple[str, ...]
    encode: Callable[[NDArray[np.float32], int], Arrays]
    decode: Callable[[Arrays, int], NDArray[np.float32]]
    fault: Callable[[int, float], str] = lambda k, classes: ""
    number: type[np.floating] | None = None
    by_chance: bool = False


def _all_classes(number: type[np.floating]) -> Encoding:
    return Encoding(
        ("logits",),
        lambda logits, k: {"logits": np.ascontiguousarray(logits, number)},
        lambda answer, classes: np.asarray(answer["logits"], dtype=np.float32),
        number=number,
    )


def _some_classes(
    form: type[Small],
    make: Callable[[NDArray[np.float32], int], Small],
    read: Callable[[Small, int], NDArray[np.float32]],
    fault: Callable[[int, float], str],
    *,
    by_chance: bool = False,
) -> Encoding:
    def decode(answer: Arrays, classes: int) -> NDArray[np.float32]:
        small = form(*(answer[name] for name in form._fields))
        if why := small.nonsense(classes):
            raise ValueError(why)
        return read(small, classes)

    return Encoding(
        form._fields, lambda x, k: make(x, k)._asdict(), decode, fault, by_chance=by_chance
    )


def _too_many(k: int, classes: float) -> str:
    return "" if 0 < k < classes else f"is {k} of {classes} classes; it must be smaller"


def _too_many_draws(k: int, classes: float) -> str:
    return "" if 0 < k <= MOST_DRAWS else f"is {k}; a label has 1 to {MOST_DRAWS} draws"


ENCODINGS: Mapping[Replies, Encoding] = MappingProxyType(
    {
        "full": _all_classes(np.float32),
        "half": _all_classes(np.float16),
        "top_k": _some_classes(TopK, compress, expand, _too_many),
        "sampled": _some_classes(
            SampledLabels, draw, expand_drawn, _too_many_draws, by_chance=True
        ),
    }
)
