"""What a request for soft labels and its answer look like on the wire.

Inputs travel by reference (ids, eight bytes each; the teacher makes the same view from
its own copy of the data), as uint8 pixels, or as float32 pixels on the 0..1 scale as the
paper has it. Answers are float32 or float16 logits, or the k likeliest classes with the
mass of the rest.
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kdlab.cluster.label_wire import Arrays
from kdlab.soft_labels.compressed import TopK, compress, expand

Inputs = Literal["reference", "value_uint8", "value_float32"]
Replies = Literal["full", "half", "top_k"]


def request(
    inputs: Inputs, ids: NDArray[np.int64], views: NDArray[np.uint8] | None
) -> Arrays:
    if views is None:
        return {"ids": ids}
    if inputs == "value_float32":
        return {"views": views.astype(np.float32) / np.float32(255)}
    return {"views": views}


def samples_in(asked: Mapping[str, NDArray[Any]]) -> int:
    return len(next(iter(asked.values())))


def encode(logits: NDArray[np.float32], replies: Replies, top_k: int) -> Arrays:
    if replies == "top_k":
        return compress(logits, top_k)._asdict()
    dtype = np.float16 if replies == "half" else np.float32
    with np.errstate(over="ignore"):  # beyond 65504 it is infinite, and refused there
        return {"logits": np.ascontiguousarray(logits, dtype)}


def decode(answer: Mapping[str, NDArray[Any]], classes: int) -> NDArray[np.float32]:
    """(N, classes) float32.

    Raises:
        ValueError: it is none of the forms above.
    """
    if "logits" in answer:
        return np.asarray(answer["logits"], dtype=np.float32)
    try:
        small = TopK(answer["values"], answer["classes"], answer["tail"])
        return expand(small, classes)
    except (KeyError, IndexError, AttributeError) as error:
        raise ValueError(f"it answered with {sorted(answer)}") from error
