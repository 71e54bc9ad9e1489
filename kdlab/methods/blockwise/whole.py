"""Train the whole student after its blocks, in one process, with soft labels."""

from dataclasses import replace
from pathlib import Path

import torch
import yaml

from kdlab.codec import to_builtins
from kdlab.config.check import construct
from kdlab.config.load import from_dict
from kdlab.events.blockwise import WholeStudentStarted
from kdlab.experiment.method import MemberTraining
from kdlab.models.exported import load_exported, spec_of
from kdlab.models.model import ModelSpec
from kdlab.train.recipe import Recipe
from kdlab.train.result import MemberResult

# Fields that this training replaces; times and counts stay those of the distillation.
_ANEW = (
    *("last", "best", "validation_last", "validation_best", "best_epoch"),
    *("model_path", "best_path", "parameters"),
)


def train_whole(
    recipe: Recipe, training: MemberTraining, distilled: MemberResult, *, searched: bool
) -> MemberResult:
    """Train on from the distilled weights, or a searched network from fresh ones.

    Returns:
        Weights and accuracy of the end, times and counts of the distillation. `blocks_top1` is
        the accuracy of the blocks alone, in percent; a searched supernet has none, since its
        blocks are not in the student.
    """
    accuracy = to_builtins(distilled.last)
    training.emit(WholeStudentStarted(epochs=recipe.epochs, distilled=accuracy))
    setup, member, folder = training.setup, training.member, training.folder / "whole"
    data, path = setup.data, Path(distilled.model_path)
    if not searched:
        spec, model = spec_of(path), load_exported(path)
    else:
        card = yaml.safe_load(Path(str(distilled.architecture)).read_text())
        card.pop("about")
        spec = construct(ModelSpec, from_dict(card, "the network that was found"))
        torch.manual_seed(member.seed)
        model = spec.build(len(data.classes), data.shape[0])
    loop = setup.loop(
        member,
        folder,
        training.emit,
        model_spec=spec,
        model=model,
        recipe=recipe,
        samples=setup.samples(member, epochs=recipe.epochs, batch=recipe.batch),
        changes=training.changes,
    )
    result = training.train_here(loop, folder)
    return replace(
        distilled,
        distilled=distilled.last,
        whole_seconds=result.train_seconds,
        more=distilled.more | ({} if searched else {"blocks_top1": distilled.last.top1}),
        **{name: getattr(result, name) for name in _ANEW},
    )
