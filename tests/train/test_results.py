"""The best weights are tested in place, and the last ones come back."""

from types import SimpleNamespace

import torch

from kdlab.models.patch_net import PatchNet
from kdlab.train.kept import RevertPoint
from kdlab.train.lineage import Lineage
from kdlab.train.position import Position
from kdlab.train.results import Results


class NeverCopied(torch.nn.Sequential):
    """A network that cannot be copied, like one that holds a process group."""

    def __deepcopy__(self, memo):
        raise TypeError("cannot be copied")


def test_best_and_last_are_told_apart_without_a_copy(digits, tmp_path):
    data, _ = digits
    torch.manual_seed(0)
    spec = PatchNet(patch=2)
    model = spec.build(10, data.shape[0])
    model.net = NeverCopied(model.net)
    results = Results(model, spec, data, tmp_path, 64)
    position = Position()
    results.validate(position, is_last=False)
    assert position.best_epoch == 1
    position.epoch, position.best_top1 = 2, 200.0  # nothing can be better than that
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    last = {k: v.clone() for k, v in model.state_dict().items()}
    lineage = Lineage.start(len(data.labels), data.train)
    outcome = results.finish(position, lineage, {})
    assert outcome.last.top1 != outcome.best.top1  # zeros guess one class
    assert all(torch.equal(v, last[k]) for k, v in model.state_dict().items())


def test_the_best_of_the_way_back_is_kept_and_those_of_undone_epochs_are_not(
    digits, tmp_path, monkeypatch
):
    data, _ = digits
    spec = PatchNet(patch=2)
    results = Results(spec.build(10, data.shape[0]), spec, data, tmp_path, 64)
    seen = iter(range(100))
    accuracy = "kdlab.train.results.evaluate"
    monkeypatch.setattr(
        accuracy, lambda *_: SimpleNamespace(top1=float(next(seen)), samples=9)
    )
    position = Position()

    def epochs(count):
        for _ in range(count):
            results.validate(position, is_last=False)
            position.epoch += 1
        return [int(path.stem[5:]) for path in sorted(tmp_path.glob("best_*.json"))]

    assert epochs(2) == [1, 2]
    RevertPoint(good=7, best=2).write(tmp_path / "checkpoints")
    assert epochs(6) == [2, 5, 6, 7, 8]
    position.epoch = position.best_epoch = 2  # as a checkpoint of epoch 2 has it
    assert epochs(1) == [2, 3]
