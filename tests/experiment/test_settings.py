"""Settings of an experiment beside its parts, and the values that are refused."""

from pathlib import Path

import pytest

from kdlab.errors import SpecError
from kdlab.experiment.settings import TeacherCombination, Tracking, Workers


def test_a_store_is_beside_the_runs_unless_it_is_named_or_off():
    runs = Path("runs")
    assert Tracking().store(runs) == "sqlite:///runs/mlflow.db"
    assert Tracking(uri="http://store").store(runs) == "http://store"
    assert Tracking(enabled=False).store(runs) is None


def test_the_best_is_weighed_class_by_class():
    assert TeacherCombination(by="best", weigh="validation").by == "best"
    with pytest.raises(SpecError, match="the teacher of the largest weight would answer"):
        TeacherCombination(by="best")


def test_workers_without_certificates_are_asked_for_insecure():
    with pytest.raises(SpecError, match="address"):
        Workers(address="tls://10.0.0.1:8786")
    plain = Workers(address="tcp://10.0.0.1:8786", insecure=True)
    assert plain.certificates() is None
