"""What a request for soft labels and its answer look like on the wire.

Inputs travel by reference (ids, eight bytes each; the teacher makes the same view from
its own copy of the data), as uint8 pixels, or as float32 pixels on the 0..1 scale as the
paper has it. Answers are float32 or float16 logits, the k likeliest classes with the
mass of the rest, or k classes that were drawn.
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
    """What is asked for, besides the inputs."""

    epoch: int  # of the views
    replies: Replies
    top_k: int = 0  # classes of each label, or draws, where that is the form
    fresh: bool = False  # computed for this request, and not kept from another
    serves: str | None = None  # fingerprint of the teacher that is meant; None is any


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
    """A request that can be answered; whoever sends another one gets it back.

    Args:
        asked: its header.
        inputs: its arrays.
        shape: (C, H, W) of the images.
        classes: numbers of an answer.
        most: samples of a request.
        images: of the data set, which ids count; None where no data was loaded.

    Raises:
        ValueError: what is wrong with it.
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
        found = {name: (a.dtype.str, a.shape) for name, a in inputs.items()}
        raise ValueError(f"the inputs are {found}; images of this pool are {shape}")
    if samples_in(inputs) > most:
        raise ValueError(f"{samples_in(inputs)} samples at once; at most {most} are taken")
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
    """Seconds of a request at its teacher, which go with the answer."""

    queued_s: float = 0.0
    views_s: float = 0.0  # that it waited for them
    computed_s: float = 0.0  # with those that were computed beside it

    def beside(self, answer: Arrays, engine: str) -> Arrays:
        """With the engine that computed it, in ASCII."""
        named = np.frombuffer(engine.encode("ascii", "replace"), np.uint8)
        return {**answer, "took": np.asarray(self, np.float32), "engine": named}

    @classmethod
    def of(cls, answer: Arrays) -> "RequestTimes | None":
        """What an answer says of it; None where it says nothing, or nonsense."""
        said = answer.get("took")
        if said is None or said.shape != (3,) or not np.isfinite(said).all():
            return None
        return cls(*(max(0.0, float(seconds)) for seconds in said))


def engine_of(answer: Arrays) -> str:
    """That computed it, as the teacher says; empty where it says nothing, or nonsense."""
    said = answer.get("engine")
    text = b"" if said is None or said.dtype != np.uint8 else said.tobytes()[:24]
    named = text.decode("ascii") if text.isascii() else ""
    return named if named.isprintable() else ""


def encode(logits: NDArray[np.float32], replies: Replies, top_k: int) -> Arrays:
    with np.errstate(over="ignore"):  # beyond 65504 a half is infinite, and refused there
        return ENCODINGS[replies].encode(logits, top_k)


def decode(answer: Arrays, classes: int) -> NDArray[np.float32]:
    """(N, classes) float32.

    Raises:
        ValueError: it is none of these forms.
    """
    try:
        form = next(e for e in ENCODINGS.values() if answer.keys() >= set(e.arrays))
        return form.decode(answer, classes)
    except (StopIteration, IndexError, AttributeError) as error:
        raise ValueError(f"it answered with {sorted(answer)}") from error


class Encoding(NamedTuple):
    """A way of soft labels through the wire; another one is a row of `ENCODINGS`.

    Attributes:
        arrays: names of those that an answer has.
        encode: (N, classes) logits, and how many classes or draws of each.
        decode: the arrays, and how many classes there are; ValueError or IndexError: nonsense.
        fault: why so many of so many classes cannot be had; empty where they can.
        number: type of each class where they are all there: hidden states travel so, too.
        by_chance: no two answers are alike, and they are right on average alone.
    """

    arrays: tuple[str, ...]
    encode: Callable[[NDArray[np.float32], int], Arrays]
    decode: Callable[[Arrays, int], NDArray[np.float32]]
    fault: Callable[[int, float], str] = lambda k, classes: ""
    number: type[np.floating] | None = None
    by_chance: bool = False


def _whole(number: type[np.floating]) -> Encoding:
    return Encoding(
        ("logits",),
        lambda logits, k: {"logits": np.ascontiguousarray(logits, number)},
        lambda answer, classes: np.asarray(answer["logits"], dtype=np.float32),
        number=number,
    )


def _small(
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
        "full": _whole(np.float32),
        "half": _whole(np.float16),
        "top_k": _small(TopK, compress, expand, _too_many),
        "sampled": _small(
            SampledLabels, draw, expand_drawn, _too_many_draws, by_chance=True
        ),
    }
)
