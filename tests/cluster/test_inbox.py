"""Requests wait for the model they were asked of."""

from types import SimpleNamespace

import numpy as np

from kdlab.cluster.inference import Inbox, Request


def request(model, size):
    return Request(0, np.arange(size), None, lambda answer: None, model)


def test_requests_are_taken_together_up_to_the_models_best_batch():
    model, inbox = SimpleNamespace(best_batch=8), Inbox()
    asked = [request(model, size) for size in (3, 4, 5, 8)]
    for one in asked:
        inbox.put(one)
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
