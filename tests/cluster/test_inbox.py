"""Requests wait for the model they were asked of."""

from types import SimpleNamespace

import numpy as np
import pytest

from kdlab.cluster.teachers.inference import Inbox, Inference, Request
from kdlab.cluster.teachers.teacher_server import TeacherServer


def request(model, size):
    return Request(0, np.arange(size), None, lambda answer: None, model)


def same(request):
    return request


def test_requests_are_taken_together_up_to_the_models_best_batch():
    model, inbox = SimpleNamespace(best_batch=8), Inbox()
    asked = [request(model, size) for size in (3, 4, 5, 8)]
    for queued in asked:
        inbox.put(queued)
    assert inbox.take(1.0) == asked[:2]
    assert inbox.take(1.0) == [asked[2]]
    assert inbox.take(1.0) == [asked[3]]
    assert inbox.take(0.0) == []


def test_what_was_asked_of_one_model_is_not_answered_by_the_next():
    """Labels of the wrong model: a thread that waited with the old one took the new's."""
    old, new = SimpleNamespace(best_batch=8), SimpleNamespace(best_batch=8)
    inbox, asked = Inbox(), []
    for model in (old, new, old):
        asked.append(request(model, 2))
        inbox.put(asked[-1])
    assert [inbox.take(1.0) for _ in asked] == [[one] for one in asked]


def test_the_end_comes_after_what_was_asked_before():
    model, inbox = SimpleNamespace(best_batch=8), Inbox()
    inbox.put(request(model, 2))
    inbox.put(None)
    assert len(inbox.take(1.0)) == 1
    assert inbox.take(1.0) is None


def test_a_part_that_was_cut_for_another_teacher_is_taken_too():
    """A hedge or a check of 64 samples, at a teacher that is quickest with 32."""
    deployment = SimpleNamespace(teacher="t", shape=(1, 8, 8), num_classes=10, batch=64)
    model = SimpleNamespace(deployment=deployment, data=None, best_batch=32, expect=same)
    server = SimpleNamespace(inference=model, open_requests=0, requests=Inbox())
    asked, refused = {"serves": "t", "epoch": 0, "replies": "full"}, []
    views = np.zeros((65, 1, 8, 8), np.uint8)
    TeacherServer.infer(server, asked, {"views": views[:64]}, refused.append)
    assert [one.size for one in server.requests.take(1.0)] == [64]
    assert refused == []
    TeacherServer.infer(server, asked, {"views": views}, refused.append)
    assert "65 samples in one request; the most is 64" in str(refused)


@pytest.mark.parametrize(
    ("rate", "batch", "best"),
    [(4.46, 64, 4), (38.0, 1024, 32), (20.0, 4096, 16), (2.0, 16, 2), (2000.0, 256, 256)],
)
def test_a_slow_teacher_is_measured_within_seconds(monkeypatch, rate, batch, best):
    """Whole batches of the student took 54 s, 107 and 818; no smallest one was below 8."""
    monkeypatch.setattr("kdlab.cluster.teachers.loaded_model._MEASURE_S", 0.0)
    calls = []

    def seconds(size):
        calls.append(size / rate)
        return size / rate

    model = SimpleNamespace(deployment=SimpleNamespace(batch=batch), _seconds=seconds)
    model._measure_gathered = list
    Inference.measure(model)
    assert (model.best_batch, model.t_t) == (best, pytest.approx(rate))
    assert model.min_batch / rate <= 0.5
    assert sum(calls) < 5.0
    assert 4 * model.best_batch / rate <= 6.0  # its lease is no longer than that of others


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        (lambda size: 1e-3 * size, 64),  # twice the work takes twice as long
        (lambda size: 0.02 + 1e-5 * size, 1024),  # a device that is far from busy
        (lambda size: 0.02 + 2e-4 * size, 256),  # beyond, others would wait for too long
    ],
)
def test_students_are_gathered_as_far_as_it_pays_and_nobody_waits_long(seconds, best):
    rate = 64 / seconds(64)
    model = SimpleNamespace(best_batch=64, t_t=rate, _seconds=seconds)
    Inference._measure_gathered(model)
    assert model.best_batch == best
    assert model.t_t == pytest.approx(best / seconds(best))
    assert best == 64 or seconds(best) <= 0.1
