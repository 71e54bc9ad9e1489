"""A few test images are asked about after each epoch: real runs, real weights."""

import numpy as np
import pytest
from PIL import Image

from kdlab.data.watched import SIDE, watched_rows
from kdlab.experiment.spec import spec_of
from kdlab.models.exported import load_exported
from kdlab.train.evaluate import answers

pytestmark = pytest.mark.processes("whoever is first makes the runs that all read")


def test_each_epoch_and_the_teacher_answer_for_the_same_images(taught):
    run = taught
    events = list(run.events())
    (chosen,) = [e for e in events if e.KIND == "images_chosen"]
    data = spec_of(run.folder).data.load()
    rows = watched_rows(data)
    assert chosen.labels == [data.label_name(int(k)) for k in rows]
    assert len(set(chosen.labels)) == len(rows) == 8  # of as many classes as there can be
    with Image.open(chosen.path) as strip:
        assert strip.size == (8 * SIDE, SIDE)
    answered = {}
    for event in events:
        if event.KIND == "images_answered":
            answered.setdefault(event.member, []).append(event)
    assert set(answered) == {"teacher", "none/seed0", "in_process/seed0"}
    assert len(answered["teacher"]) == 1
    epochs = run.result["epochs"]
    for row in run.result["runs"]:
        member_events = answered[row["member"]]
        assert [event.epoch for event in member_events] == list(range(1, epochs + 1))
        last = answers(load_exported(row["student_path"]), data, rows)
        assert member_events[-1].said == last.said
        assert np.allclose(member_events[-1].shares, last.shares, atol=0.02)


def test_local_models_and_blocks_answer_too(of_local_models, of_blocks):
    for run in (of_local_models, of_blocks):
        answered = [e for e in run.events() if e.KIND == "images_answered"]
        members = {event.member for event in answered}
        assert {row["member"] for row in run.result["runs"]} <= members
        assert all(len(event.said) == 8 for event in answered)
