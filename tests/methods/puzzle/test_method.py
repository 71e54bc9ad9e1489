"""Settings that a choice among stand-ins refuses before a start, and how its library is cut."""

import pytest

import kdlab
from kdlab.errors import BadInput, SpecError
from kdlab.experiment.setup import TrainingSetup
from kdlab.methods.blockwise.cutting import Cuts
from kdlab.methods.puzzle.method import Puzzle

LIBRARY = (
    "student={type: models/block_library, cuts: [blocks.0, blocks.1],"
    " of: {type: models/cifar_resnet, depth: 8, width: [8, 8, 16, 16]}}"
)
CUTS = "method.teacher_cuts=[blocks.0, blocks.1]"


def experiment(*words):
    return kdlab.load("smoke/blockwise", "method.type=methods/puzzle", *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "teacher_cuts: is empty; a library has stand-ins"),
        (["method.faster=null"], "no budget"),
        ([CUTS, 'method.student_cuts=["0", "1"]'], "a library is cut as its"),
        ([CUTS, "method.search={}"], "a student is searched or chosen"),
        ([CUTS, "method.block_inputs=student"], "learn behind the teacher's"),
        ([CUTS, "method.inherit=false"], "is False with methods/puzzle; stand-ins inherit"),
        ([CUTS, "method.retrain={epochs: 1}"], "is set without search"),
        ([CUTS, LIBRARY, "train.clip_grad_norm=1.0"], "would be clipped together"),
        ([CUTS, LIBRARY, "teacher=null"], "is missing; methods/puzzle needs one"),
        ([CUTS, LIBRARY, "train.ema=0.9"], "not with methods/puzzle; method.fine_tune"),
        ([CUTS], "no library of blocks; methods/puzzle chooses from"),
        (
            ["method.teacher_cuts=[blocks.0]", LIBRARY],
            "student.cuts: differ from method.teacher_cuts",
        ),
    ],
    ids=lambda w: (w or ["none"])[-1] if isinstance(w, list) else None,
)
def test_a_spec_that_cannot_be_is_refused(elsewhere, words, message):
    with pytest.raises(SpecError) as refused:
        _ = experiment(*words).spec
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            [LIBRARY.replace("[8, 8", "[4, 8")],
            "student.of is another network than the teacher (width differ)",
        ),
        (
            [LIBRARY, "method.faster=null", "method.smaller=100000"],
            "with the smallest stand-ins the student has",
        ),
        ([LIBRARY, "method.devices=5"], "plan: tr gives every device a block"),
    ],
    ids=lambda w: w[-1] if isinstance(w, list) else None,
)
@pytest.mark.long
def test_what_data_and_models_do_not_allow_is_found_before_a_start(
    elsewhere, words, message
):
    spec = experiment(CUTS, *words).spec
    with pytest.raises(BadInput) as refused:
        spec.method.check(TrainingSetup(spec))
    assert message in str(refused.value)


def test_blocks_of_a_library_are_cut_by_their_numbers():
    method = experiment(CUTS, LIBRARY).spec.method
    assert isinstance(method, Puzzle)
    assert method.cuts == Cuts(
        ("blocks.0", "blocks.1"), ("0", "1"), 3, "soft_cross_entropy"
    )
    assert (method.recalibrate, method.shown_whole) == (1024, 0)
