"""Loads exported students from their file and card."""

from pathlib import Path

from kdlab.config.check import construct
from kdlab.config.load import from_dict
from kdlab.errors import WeightsError
from kdlab.models.model import ModelSpec, Normalised, load_weights, read_card


def load_exported(path: str | Path) -> Normalised:
    """Load an exported student with its weights and normalisation, in eval mode.

    Args:
        path: a .safetensors that `kdlab export` or a run wrote, its .json beside it.

    Raises:
        WeightsError: a file is missing, or the two do not belong together.
    """
    path = Path(path)
    if not path.with_suffix(".json").is_file():
        raise WeightsError(
            f"{path.with_suffix('.json').name}, which describes the network, is missing beside "
            f"{path}. kdlab export writes both."
        )
    card = read_card(path)
    model = spec_of(path).build(card["num_classes"], card["in_chans"])
    load_weights(model.net, path, card["sha256"])
    return model.eval()


def spec_of(path: Path) -> ModelSpec:
    """Read the spec of an exported student's network from its card."""
    return construct(ModelSpec, from_dict(read_card(path)["model"], path.name))
