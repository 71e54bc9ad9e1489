"""Parts of an experiment need others: a missing one is a fault of the part that needs it."""

from dataclasses import dataclass, replace

import pytest

import kdlab
from kdlab.errors import SpecError
from kdlab.experiment.method import MethodSpec

RANKS = "aggregation.type=train/aggregation/all_reduce"
WORKERS = "workers={address: 'tcp://127.0.0.1:9', insecure: true}"
HINT = "features=[{type: features/hint, teacher: penultimate, student: penultimate}]"
HIDDEN = "soft_labels.sends=hidden"


@pytest.mark.parametrize(
    ("name", "words", "key", "message"),
    [
        ("none", [HINT], "features", "is set, and no training has a teacher"),
        (
            "in_process",
            [HINT, "train.compile=true"],
            "features",
            "compile hides inner outputs",
        ),
        ("in_process", [HINT, RANKS, WORKERS], "features", "do not have the teacher"),
        (
            "ensemble",
            ["compare=[none]"],
            "compare",
            "it compares method.compare",
        ),
        ("ensemble", [HINT], "features", "methods/ensemble uses logits only"),
        ("served", [HINT, HIDDEN], "features", "soft_labels.sends is hidden"),
        (
            "served",
            [HIDDEN, RANKS, WORKERS],
            "soft_labels.sends",
            "is hidden, and ranks on",
        ),
        ("cached", ["data.sampling={repeats: 2}"], "data.sampling", "one view an epoch"),
        (
            "none",
            [RANKS, "train.schedule=plateau"],
            "train.schedule",
            "needs validation after each",
        ),
        (
            "none",
            [RANKS, "aggregation.batch_norm=local", "train.ema=0.9"],
            "train.ema",
            "statistics of one rank",
        ),
        ("none", [WORKERS], "workers", "is set, and one student in one process has no"),
        (
            "none",
            ["chaos={kill_rank: 1}"],
            "chaos",
            "one student in one process has no ranks",
        ),
        (
            "none",
            ["teacher_pool=null", "chaos={kill_teacher: 1}"],
            "chaos",
            "only teachers on",
        ),
        (
            "none",
            [RANKS, WORKERS, "chaos={kill_rank: 1}"],
            "chaos",
            "cannot hit ranks on Dask workers",
        ),
    ],
)
def test_what_is_missing_is_said_where_it_is_needed(elsewhere, name, words, key, message):
    with pytest.raises(SpecError) as refused:
        _ = kdlab.load(f"smoke/{name}", *words).spec
    assert any(f.key == key and message in f.message for f in refused.value.faults)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("in_process", [HINT]),
        ("none", ["train.schedule=plateau"]),
        ("none", [RANKS, "train.ema=0.9"]),
        ("none", [RANKS, "chaos={kill_rank: 1}"]),
        ("served", ["chaos={kill_teacher: 1}"]),
    ],
)
def test_what_is_there_is_no_fault(elsewhere, name, words):
    assert kdlab.load(f"smoke/{name}", *words).spec


@dataclass(frozen=True, kw_only=True)
class Silent(MethodSpec):
    """A method that does not declare what it compares, and might ignore `compare`."""

    component = "mine/silent"
    one_student = True

    def train(self, training):
        raise NotImplementedError


def test_a_method_that_does_not_say_what_it_compares_is_not_told(elsewhere):
    spec = kdlab.load("smoke/in_process").spec
    with pytest.raises(
        SpecError, match=r"compare: .*mine/silent.*it compares method.compare"
    ):
        replace(spec, method=Silent(), compare=("none", "in_process"))
