"""Teachers that choose what computes: real processes, and nothing is lost."""

import pytest
import torch
from safetensors.torch import load_file

import kdlab
from kdlab.errors import SpecError
from kdlab.events.log import select
from kdlab.events.teachers import TeacherJoined


@pytest.mark.slow("a whole served run whose teachers measure several engines")
def test_a_student_learns_from_teachers_that_chose_their_engine(kdlab_home, elsewhere):
    words = ("teacher_pool.engine=auto", "tracking.enabled=false")
    run = kdlab.load("smoke/served", *words).start(lambda line: None).wait(timeout_s=600)
    result = run.result
    assert result["samples_lost"] == result["samples_repeated"] == 0
    engines = result["teacher_engines"]
    assert engines
    assert all(name.rsplit(" ", 1)[1] in {"fp32", "bf16"} for name in engines)
    joined = list(select(run.folder.events, TeacherJoined))
    assert joined
    assert all("times eager" in str(event.more["engine"]) for event in joined)
    assert all("folded fp32" in str(event.more["engine"]) for event in joined)  # was tried


@pytest.mark.nightly
@pytest.mark.slow("two whole served runs")
def test_hidden_states_teach_what_logits_teach(kdlab_home, elsewhere):
    """Half the bytes or less where classes are many; here it is the same student."""
    words = ("soft_labels.order=strict", "tracking.enabled=false")

    def run(*more):
        experiment = kdlab.load("smoke/served", *words, *more)
        return experiment.start(lambda line: None).wait(timeout_s=600)

    logits, hidden = run(), run("soft_labels.sends=hidden")
    assert hidden.result["samples_lost"] == hidden.result["samples_repeated"] == 0
    ends = [
        load_file(r.path / "members" / "served" / "seed0" / "student.safetensors")
        for r in (logits, hidden)
    ]
    assert all(torch.allclose(ends[0][k], ends[1][k], atol=1e-4) for k in ends[0])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("smoke/served", "soft_labels.replies=top_k"), "a hidden state is full or half"),
        (("smoke/served", "soft_labels.cache_views=2"), "keeps logits"),
        (
            (
                "smoke/served",
                "teacher=[{use: teachers/digits_tiny}, {use: teachers/digits_resnet}]",
            ),
            "there are 2 teachers",
        ),
    ],
)
def test_who_cannot_have_hidden_states_hears_it_before_the_start(words, message):
    with pytest.raises(SpecError, match=message):
        kdlab.load(*words, "soft_labels.sends=hidden")
