"""Times of students for one image, side by side in the engine that would serve them."""

from collections.abc import Mapping

import torch

from kdlab.data.encoded.decode import Pixels
from kdlab.methods.puzzle.measured import engine_of, latencies_ms, prepared
from kdlab.models.exported import load_exported


def student_latencies(students: Mapping[str, str], pair: Pixels) -> dict[str, list[float]]:
    """Return `engine_ms/NAME` of each: milliseconds on one core for one image, in turns.

    Args:
        students: path of each student's .safetensors, by name.
        pair: two images, (2, C, H, W), so that engines take any number.
    """
    engine, views = engine_of("auto"), torch.from_numpy(pair).float()
    networks = [load_exported(path).net for path in students.values()]
    asks = [prepared(engine, network, views, "a student") for network in networks]
    took = latencies_ms(asks, [views[:1]] * len(asks))
    return {f"engine_ms/{name}": [ms] for name, ms in zip(students, took, strict=True)}
