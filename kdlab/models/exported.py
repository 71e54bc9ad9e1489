"""A student that was exported, as a model again: from its file and the card beside it."""

from pathlib import Path

from kdlab.config.check import construct
from kdlab.config.load import from_dict
from kdlab.errors import WeightsError
from kdlab.models.model import ModelSpec, Normalised, load_weights, read_card


def load_exported(path: str | Path) -> Normalised:
    """The model with its weights and normalisation, in eval mode.

    From a .safetensors that `kdlab export` or a run wrote, its .json beside it.

    Raises:
        WeightsError: a file is missing, or they do not belong together.
    """
    path = Path(path)
    if not path.with_suffix(".json").is_file():
        raise WeightsError(
            f"There is no {path.with_suffix('.json').name} beside {path}; it says what the "
            "network is. kdlab export writes both."
        )
    card = read_card(path)
    model = spec_of(path).build(card["num_classes"], card["in_chans"])
    load_weights(model.net, path, card["sha256"])
    return model.eval()


def spec_of(path: Path) -> ModelSpec:
    """What the network of an exported student is."""
    return construct(ModelSpec, from_dict(read_card(path)["model"], path.name))
