"""kdlab's distillation loss is that of other libraries, on the same logits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.peer_loops import HARD, PEERS, SOFT, TEMPERATURE
from kdlab.losses.hinton import Hinton
from kdlab.models.patch_net import PatchNet
from kdlab.train.teacher import frozen


@pytest.mark.parametrize("name", PEERS)
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(2, 9),
    classes=st.integers(2, 12),
    scale=st.sampled_from([0.1, 1.0, 30.0]),
)
@pytest.mark.long
def test_the_loss_is_theirs(name, seed, rows, classes, scale):
    pytest.importorskip("torchdistill")
    torch.manual_seed(seed)
    spec = PatchNet(patch=4, depth=1, width=8)
    student, teacher = (spec.build(classes, 3) for _ in range(2))
    with torch.no_grad():  # so that logits are far apart, too
        for model in (student, teacher):
            list(model.parameters())[-1].normal_(0, scale)
    frozen(teacher)
    views = torch.randint(0, 256, (rows, 3, 8, 8)).float()
    labels = torch.randint(0, classes, (rows,))
    student.train()
    scores = student(views).detach()
    soft = Hinton(temperature=TEMPERATURE).soft(scores, teacher(views), labels)
    ours = HARD * torch.nn.functional.cross_entropy(scores, labels) + SOFT * soft
    theirs = PEERS[name](teacher, student)(views, labels)
    torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-5)
