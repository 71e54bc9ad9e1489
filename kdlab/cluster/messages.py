"""What a request for soft labels and its answer look like on the wire.

Inputs travel by reference (ids, eight bytes each; the teacher makes the same view from
its own copy of the data), as uint8 pixels, or as float32 pixels on the 0..1 scale as the
paper has it. Answers are float32 or float16 logits, or the k likeliest classes with the
mass of the rest. Arrays only: plain contiguous NumPy crosses Dask without a copy, torch
tensors do not (bf16 and CUDA fail there).
"""

from typing import Any, Literal

import numpy as np
from distributed.protocol import to_serialize
from numpy.typing import NDArray

from kdlab.soft_labels.compressed import TopK, compress, expand

Inputs = Literal["reference", "value_uint8", "value_float32"]
Replies = Literal["full", "half", "top_k"]


def request(
    inputs: Inputs, ids: NDArray[np.int64], views: NDArray[np.uint8] | None
) -> dict[str, Any]:
    """The arguments of `kdlab_infer` that carry the samples."""
    if views is None:
        return {"ids": np.ascontiguousarray(ids).tobytes()}
    if inputs == "value_float32":
        return {"views": to_serialize(views.astype(np.float32) / np.float32(255))}
    return {"views": to_serialize(views)}


def samples_in(ids: bytes | None, views: NDArray[Any] | None) -> int:
    if ids is not None:
        return len(ids) // 8
    return 0 if views is None else len(views)


def encode(logits: NDArray[np.float32], replies: Replies, top_k: int) -> dict[str, Any]:
    if replies == "top_k":
        small = compress(logits, top_k)
        return {name: to_serialize(a) for name, a in small._asdict().items()}
    dtype = np.float16 if replies == "half" else np.float32
    with np.errstate(over="ignore"):  # beyond 65504 it is infinite, and refused there
        return {"logits": to_serialize(np.ascontiguousarray(logits, dtype))}


def decode(answer: dict[str, Any], classes: int) -> NDArray[np.float32]:
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


def answer_bytes(replies: Replies, classes: int, top_k: int) -> int:
    """Per sample, without the envelope."""
    return {"full": 4 * classes, "half": 2 * classes, "top_k": 6 * top_k + 2}[replies]
