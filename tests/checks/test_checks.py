"""Each check fires on a made-up case and is silent on a good one; each has its page."""

from dataclasses import replace

import numpy as np
import pytest

from kdlab.checks import CodedCheck, check_of, checked
from kdlab.checks.data import DataFacts
from kdlab.checks.machine import EngineFacts, MachineFacts
from kdlab.checks.sweep import SweepFacts, TunedRange
from kdlab.checks.teacher import TeacherMeasure
from kdlab.checks.training import EndedTraining, ExaminedFacts, RunFacts
from kdlab.errors import NotFoundError
from kdlab.report.verdict import of_comparison, of_setting

PAIR = [("test/cat/1.png", "train/cat/1.png")]
PHOTOS = DataFacts(
    classes=("cat", "dog", "hat"),
    counts=np.array([[100, 110, 90], [20, 20, 20], [150, 170, 140]]),
    parts=(300, 60, 460),
    broken=(),
    looked_at=820,
    leaks=(),
    contradictions=(),
    alike=(),
    suspects=(),
    side=300.0,
    size=160,
)


def images(**parts):
    """PHOTOS with other counts of a part."""
    names = ("train", "validation", "test")
    rows = [parts.get(name, row) for name, row in zip(names, PHOTOS.counts, strict=True)]
    return PHOTOS.replace(counts=np.array(rows), parts=tuple(int(sum(row)) for row in rows))


TEACHER = TeacherMeasure(
    split="test", images=460, top1=80.0, top5=98.0, guessing=37.0, calibration_error=5.0,
    confidence=84.0, per_class={}, validation_top1=81.0, validation_f1={}, renamed={},
    taken_for=[], said=[], shares=[],
)  # fmt: skip
ALONE = EndedTraining(
    source="none", seed=0, top1=70.0, validation=[40, 60, 69, 70, 70, 70, 70, 70], epochs=24,
    best_epoch=20,
)  # fmt: skip
TAUGHT = replace(ALONE, source="served", top1=78.0, teacher_top1=85.0, starved=0.02)


def run(plain=ALONE, taught=TAUGHT, guessing=37.0):
    both, images = [plain, taught], 1000
    return RunFacts(
        trainings=both,
        verdict=of_comparison(both, "served", images, 500),
        images=images,
        validated=500,
        guessing=guessing,
    )


HELPED = of_setting("student_top1", {1: 70, 2: 71}, {1: 80, 2: 81.1}, 1, confirmed=True)
WORSE = of_setting("student_top1", {1: 80, 2: 81}, {1: 70, 2: 71.1}, 1, confirmed=True)
SWEEP = SweepFacts(
    ranges={"train.lr": TunedRange(low=1e-4, high=1.0, best=0.02, log=True)},
    ended=20,
    errors=["one"],
    verdict=HELPED,
    confirmed=True,
)
ENGINE = "openvino fp32, 2.10 times eager (samples/s: eager fp32 100, openvino fp32 210)"
REFUSED = (
    f"{ENGINE}; compiled bf16 refused: mean divergence 0.2; aot fp32 refused: not tried: 9"
)
RISING = {"validation": [10, 20, 30, 40, 50, 60, 70, 80]}
PAST = {"validation": [50, 90, 80, 80, 80, 80, 80, 80], "best_epoch": 6}

# Code: facts on which it fires, words of what it finds, and of what to do.
FIRES = {
    "KD-D01": (PHOTOS.replace(leaks=PAIR), "1 images of validation or test are in train", "Delete"),
    "KD-D02": (PHOTOS.replace(alike=PAIR), "1 images of validation or test look like", "together"),
    "KD-D03": (PHOTOS.replace(suspects=["1.png is cat"]), "1 labels look wrong:\n  1.png", "Look"),
    "KD-D04": (PHOTOS.replace(contradictions=PAIR), "1 images are in two classes", "wrong one"),
    "KD-D05": (PHOTOS.replace(broken=["1.png: cut"]), "1 of 820 images cannot be", "skip"),
    "KD-D06": (images(train=[9, 50, 50]), "fewer than 10 train images of 1 of 3", "pretrained"),
    "KD-D07": (images(validation=[7, 7, 6]), "20, each 5.0 points", "validation_share"),
    "KD-D08": (images(test=[30, 30, 40]), "80 % is known to ± 7.8 points", "seeds"),
    "KD-D09": (images(test=[0, 300, 300]), "no test images of 1 of 3 classes (cat)", "Move"),
    "KD-D10": (replace(PHOTOS, classes=("cat",)), "there is one class, cat", "told from"),
    "KD-D11": (images(validation=[0, 0, 0]), "there are no validation images", "share"),
    "KD-D12": (images(train=[20, 170, 110]), "dog has 8 times the training images", "balance"),
    "KD-D13": (PHOTOS.replace(side=100.0), "100 pixels or less, and are enlarged to 160", "size"),
    "KD-D14": (images(test=[400, 30, 30]), "cat is 33% of train and 87% of test", "class by"),
    "KD-T01": (replace(TEACHER, top1=38.0), "no more of this data", "order"),
    "KD-T02": (
        replace(TEACHER, renamed={"cat": "dog"}, taken_for=["your 'dog' for 'cat' in 9 of 9"]),
        "look exchanged", "teacher.classes={cat: dog}",
    ),
    "KD-T03": (replace(TEACHER, confidence=99.0), "likeliest class 99 %", "temperature"),
    "KD-R01": (run(taught=replace(TAUGHT, top1=60.0)), "-10.0 points with", "plain student"),
    "KD-R02": (run(taught=replace(TAUGHT, top1=71.0)), "cannot be told (+1.0", "seeds"),
    "KD-R03": (
        run(replace(ALONE, **RISING), replace(TAUGHT, **RISING)),
        "both still rise on validation (+20.0 and +20.0", "train.epochs=48",
    ),
    "KD-R04": (run(taught=replace(TAUGHT, teacher_top1=69.0)), "knows no more", "stronger"),
    "KD-R05": (run(replace(ALONE, **PAST)), "best in epoch 6 of 24 (90.0 %", "Fewer epochs"),
    "KD-R06": (run(replace(ALONE, top1=38.0)), "none, seed 0: 38.0 % top-1", "train.lr"),
    "KD-R07": (ExaminedFacts(vanished={"none/seed0": ["cat"]}), "never predicts cat", "balance"),
    "KD-R08": (run(taught=replace(TAUGHT, lost=3)), "3 samples lost, 0 repeated", "Report"),
    "KD-R09": (
        run(taught=replace(TAUGHT, starved=0.4, slow_side="one teacher more would help")),
        "waited 40% of its time", "One teacher more would help",
    ),
    "KD-M01": (MachineFacts(load=3.5, cores=2), "load 3.5 on 2 cores", "Wait"),
    "KD-M02": (EngineFacts.from_reports([ENGINE, REFUSED]), "compiled bf16 refused: mean", "set"),
    "KD-S01": (
        replace(SWEEP, ranges={"train.lr": TunedRange(low=0.01, high=1.0, best=0.99, log=True)}),
        "train.lr = 0.99 is at the high end of 0.01 to 1", "space.train.lr.high=10",
    ),
    "KD-S02": (replace(SWEEP, verdict=WORSE), "the setting made it worse", "seeds"),
    "KD-S03": (replace(SWEEP, errors=["no memory"] * 5), "5 of 20 trials failed", "Narrow"),
}  # fmt: skip
GOOD = [
    PHOTOS,
    TEACHER,
    run(),
    ExaminedFacts(vanished={"none/seed0": []}),
    MachineFacts(load=0.3, cores=2),
    EngineFacts.from_reports([ENGINE]),
    SWEEP,
]


@pytest.mark.parametrize("code", FIRES)
def test_it_fires_on_a_made_up_case(code):
    facts, words, advice = FIRES[code]
    (check,) = [check for check in checked(facts) if check.code == code]
    assert check.result == check_of(code).level
    assert words in check.found
    assert advice in check.advice
    assert check.text() == f"{check.result} {code}: {check.found}. {check.advice}"


def test_all_pass_on_a_good_one_and_none_is_forgotten():
    results = {check.code: check for check in checked(*GOOD)}
    assert {code: check.result for code, check in results.items()} == dict.fromkeys(
        CodedCheck.ALL, "passed"
    )
    assert {*results} == {*FIRES}
    assert len(results) >= 20
    assert not any(check.text() for check in results.values())


def test_what_nobody_looked_for_is_not_said_to_have_passed():
    unseen = PHOTOS.replace(
        broken=None, leaks=None, contradictions=None, alike=None, suspects=None, side=None
    )
    silent = {"KD-D01", "KD-D02", "KD-D03", "KD-D04", "KD-D05", "KD-D13"}
    assert {one.code for one in checked(unseen)} == {
        code for code in CodedCheck.ALL if code.startswith("KD-D")
    } - silent
    one_source = replace(run(), trainings=[ALONE], verdict=None)
    assert {one.code for one in checked(one_source)} == {
        "KD-R03",
        "KD-R05",
        "KD-R06",
        "KD-R08",
    }
    assert checked(EngineFacts.from_reports([])) == []


@pytest.mark.parametrize("seed", range(20))
def test_a_test_set_that_was_drawn_from_the_same_shares_is_like_train(seed):
    chance = np.random.default_rng(seed)
    shares = chance.dirichlet(np.ones(10))
    train, test = (chance.multinomial(n, shares) for n in (400, 60))
    facts = replace(
        PHOTOS,
        classes=tuple("abcdefghij"),
        counts=np.stack([train, np.full(10, 9), test]),
        parts=(400, 90, 60),
    )
    (check,) = [one for one in checked(facts) if one.code == "KD-D14"]
    assert check.result == "passed", check.found


@pytest.mark.parametrize("code", CodedCheck.ALL)
def test_each_has_its_page(code):
    page = check_of(code.lower()).page()
    head, level, text, do = page.split("\n\n", 3)
    assert head == f"# {code}: {check_of(code).title}"
    assert level.strip("*") in ("issue", "tip")
    assert len(text) > 40
    assert "Do: " in do


def test_a_code_that_is_none_names_the_nearest():
    with pytest.raises(NotFoundError, match="Nearest: KD-D1"):
        check_of("KD-D1I")


def test_the_edge_of_a_range_is_on_its_own_scale():
    assert TunedRange(low=0.001, high=1.0, best=0.002, log=True).edge == ""
    assert TunedRange(low=0.001, high=1.0, best=0.002).edge == "low"
    assert TunedRange(low=1.0, high=5.0, best=5.0).edge == "high"
