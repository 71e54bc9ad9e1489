"""Settings that a blockwise distillation refuses before a start, and what its spec decides."""

from pathlib import Path

import pytest
import yaml
from small_pipelines import CPU, STUDENT, cutting

import kdlab
from kdlab.errors import BadInput, SpecError
from kdlab.experiment.setup import TrainingSetup
from kdlab.methods.blockwise.method import Blockwise, _check_whole_fits, check
from kdlab.methods.blockwise.setup import (
    identity_of,
    memory_of,
    smallest_batch,
    write_architecture,
)
from kdlab.papers.pipe_bd.block_cost import Block, Profile, StageCosts
from kdlab.papers.pipe_bd.execution_plan import ExecutionPlan
from kdlab.papers.pipe_bd.stages import pipeline
from kdlab.train.recipe import Recipe

FOLLOWS = "method.block_inputs=student"
LIBRARY = (
    "student={type: models/block_library, cuts: [blocks.0, blocks.1],"
    " of: {type: models/cifar_resnet, depth: 8, width: [8, 8, 16, 16]}}"
)
CUTS = "method.teacher_cuts=[blocks.0, blocks.1]"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["method.teacher_cuts=[stem]"], "student_cuts: is empty; cut both networks"),
        (["method.student_cuts=[stem]"], "teacher_cuts: is empty; cut both networks"),
        ([CUTS, "method.student_cuts=[stem]"], "has 1 modules and teacher_cuts 2"),
        (["method.retrain={epochs: 1}"], "is set without search"),
        (
            ["method.search={}", "method.fine_tune={epochs: 1}"],
            "after a search; use retrain",
        ),
        (["method.compare=[tr, tr]"], "name each plan once"),
        (["teacher=null"], "is missing; methods/blockwise needs one, block by block"),
        (["aggregation.type=train/aggregation/all_reduce"], "shares gradients itself"),
        (
            [CUTS, 'method.student_cuts=["0", "1"]', LIBRARY],
            "is models/block_library, which only methods/puzzle can train",
        ),
        (["compare=[none]"], "it compares method.compare"),
        (["soft_labels.type=soft_labels/in_process"], "only method.fine_tune or"),
        (["train.label_smoothing=0.1"], "blocks learn without labels"),
        (
            ["train.layer_decay=0.5", "train.optimizer=timm/sgd"],
            "layers of a whole network",
        ),
        (["train.ema=0.9"], "the mean of a block is nobody's input"),
        ([FOLLOWS, "method.plan=ls"], "plan ls trains blocks apart, with no relay"),
        ([FOLLOWS, "method.decoupled=false"], "devices would wait for each other in a row"),
        ([FOLLOWS, "method.search={}"], "a search draws another path"),
    ],
    ids=lambda w: w[-1] if isinstance(w, list) else None,
)
def test_a_spec_that_cannot_be_is_refused(elsewhere, words, message):
    with pytest.raises(SpecError) as refused:
        _ = kdlab.load("smoke/blockwise", *words).spec
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["method.devices=5"], "plan: tr gives every device a block of its own, and there"),
        (["method.plan=ir", "method.devices=40"], "32 rows are fewer than 40 devices"),
        (["method.plan=dp", "method.devices=20"], "each needs at least two rows: 40"),
        (["method.compare=[tr, ls]", "method.devices=4"], "plan: tr gives every device"),
        (["method.memory_gb=0.00001"], "needs"),
        (["method.memory_gb=0.00001", "method.plan=ahd"], "No plan of 3 blocks"),
        (["method.search={every: 2}"], "has nothing to choose from"),
        (["method.profile=/nowhere/profile.json"], "There is no profile at /nowhere"),
    ],
    ids=lambda w: w[-1] if isinstance(w, list) else None,
)
@pytest.mark.long
def test_what_data_and_models_do_not_allow_is_found_before_a_start(
    elsewhere, words, message
):
    spec = kdlab.load("smoke/blockwise", *words).spec
    with pytest.raises(BadInput) as refused:
        check(spec.method, TrainingSetup(spec))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (["method.devices=1"], "on one device needs 0.821 GB"),
        ([], ""),
        (["method.devices=4", "method.memory_gb=0.35"], ""),
        (["method.fine_tune={epochs: 1, batch: 64}"], "the whole student on one device"),
        (["method.fine_tune={epochs: 1, batch: 32}"], ""),
    ],
    ids=[
        "one device",
        "two",
        "four of half the size",
        "the whole",
        "fewer rows of the whole",
    ],
)
@pytest.mark.long
def test_a_student_that_does_not_fit_one_device_is_trained_by_blocks_on_several(
    words, refused
):
    spec = kdlab.load("pipe_bd/beyond_one_device", *words).spec
    setup = TrainingSetup(spec)
    if not refused:
        check(spec.method, setup)
        return
    with pytest.raises(BadInput, match=refused):
        check(spec.method, setup)


def test_fine_tuning_needs_the_memory_of_its_own_optimizer():
    block = Block(
        teacher_s={8: 1.0},
        student_s={8: 1.0},
        gradient_bytes=100e6,
        fixed_bytes=300e6,  # three copies, as with momentum
    )
    costs = StageCosts(Profile(types={"any": [block]}, devices=("any",)), 8)
    sgd, adamw = (Recipe(device="cpu", optimizer=name) for name in ("sgd", "adamw"))
    _check_whole_fits(Blockwise(fine_tune=sgd, memory_gb=0.35), sgd, costs)
    _check_whole_fits(Blockwise(fine_tune=adamw, memory_gb=0.41), sgd, costs)
    with pytest.raises(BadInput, match=r"needs 0\.4 GB, and method.memory_gb is 0\.35"):
        _check_whole_fits(Blockwise(fine_tune=adamw, memory_gb=0.35), sgd, costs)


def test_the_smoke_experiment_is_fine(elsewhere):
    spec = kdlab.load("smoke/blockwise").spec
    check(spec.method, TrainingSetup(spec))


def test_what_is_compared_are_plans():
    method = Blockwise(compare=("tr", "dp"), plan="dp")
    spec = kdlab.load("smoke/blockwise", "method.compare=[tr, dp]").spec
    assert list(method.compared(spec)) == ["tr", "dp"]
    assert method.described(["tr", "dp"]) == "dp"
    assert method.described(["tr", "ir"]) == "ir"  # the last one else
    assert method.has_ranks(spec)
    assert method.labelled(spec) is spec.train
    later = kdlab.load("smoke/blockwise", "method.fine_tune={epochs: 7}").spec
    assert later.method.labelled(later).epochs == 7


def test_memory_is_what_is_allowed_or_a_share_of_what_is_free():
    assert memory_of(0.5, CPU, 4) == 5e8
    assert memory_of(None, CPU, 1) > memory_of(None, CPU, 1000) > 0


def test_each_device_of_a_shared_stage_has_two_rows():
    separate = ExecutionPlan("tr", (pipeline(8, [1, 2], [1, 1]),), 1.0, "")
    shared = ExecutionPlan("ir", (pipeline(8, [2], [3]),), 1.0, "")
    assert (smallest_batch(separate), smallest_batch(shared)) == (2, 6)


def test_a_profile_is_of_all_that_its_costs_depend_on(digits):
    data, _ = digits
    cut = cutting()

    def identity(*words):
        return identity_of(kdlab.load("smoke/blockwise", *words).spec, cut, data)

    usual = identity()
    assert identity("train.epochs=9", "train.lr=0.2") == usual
    assert identity("train.batch=16").batch == 16
    assert identity("train.threads=2").machine != usual.machine
    for word in ("student.width=[8, 8, 8, 8]", "train.optimizer=adamw", "method.bn=local"):
        changed = identity(word)
        assert changed.model != usual.model, word
        assert changed.machine == usual.machine


def test_what_was_found_is_a_card(tmp_path):
    path = write_architecture(STUDENT, tmp_path)
    card = yaml.safe_load(Path(path).read_text())
    assert card.pop("about").startswith("Found by a search or a choice of kdlab")
    assert card["type"] == "models/cifar_resnet"
    assert card["width"] == list(STUDENT.width)
    assert "weights" not in card
