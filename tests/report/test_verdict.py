"""Verdicts on the teacher's help: intervals against scipy, and each sentence once."""

import math
from statistics import fmean

import pytest
from scipy import stats

from kdlab.codec import from_builtins, to_builtins
from kdlab.report.verdict import (
    _T,
    ComparedTraining,
    Verdict,
    _gain,
    of_comparison,
    of_setting,
)


def plain(top1, seed=0, **more):
    return ComparedTraining(
        **{"source": "none", "seed": seed, "top1": top1, "epochs": 20} | more
    )


def taught(top1, seed=0, source="in_process", teacher=90.0, **more):
    return plain(top1, seed, source=source, teacher_top1=teacher, **more)


def verdict(*members, described="in_process", images=641, validated=500):
    return of_comparison(members, described, images, validated)


# Intervals


def test_quantiles_are_those_of_student():
    assert pytest.approx([stats.t.ppf(0.975, k) for k in range(1, 31)], abs=6e-4) == _T


@pytest.mark.parametrize("seeds", [2, 3, 10, 31, 40])
def test_over_seeds_it_is_the_paired_t_interval(seeds):
    before = {k: 70 + math.sin(k) for k in range(seeds)}
    after = {k: 71 + math.cos(3 * k) for k in range(seeds)}
    gain = _gain(before, after, 500)
    each = [after[k] - before[k] for k in range(seeds)]
    low, high = stats.t.interval(0.95, seeds - 1, fmean(each), stats.sem(each))
    assert gain.gained - gain.half == pytest.approx(low, abs=2e-3)
    assert gain.gained + gain.half == pytest.approx(high, abs=2e-3)


def test_of_one_seed_it_is_the_chance_of_the_test_images():
    judged = verdict(plain(45.6), taught(63.7))
    error = stats.norm.ppf(0.975) * math.hypot(
        *(stats.binom.std(641, p) / 6.41 for p in (0.456, 0.637))
    )
    assert (judged.by, judged.gained) == ("test_images", pytest.approx(18.1))
    assert judged.high - judged.low == pytest.approx(2 * error, rel=1e-4)


def test_seeds_that_one_side_lacks_do_not_count():
    judged = verdict(
        plain(70, 0), plain(71, 1), plain(10, 7), taught(75, 0), taught(76.5, 1)
    )
    assert (judged.before, judged.after, judged.by) == (70.5, 75.75, "seeds")


def test_differences_that_are_all_one_are_no_certainty():
    assert (
        verdict(plain(70, 0), plain(71, 1), taught(71, 0), taught(72, 1)).kind
        == "cannot_be_told"
    )


# Sentences


def test_it_helped():
    judged = verdict(plain(45.6), taught(63.7))
    assert (judged.kind, judged.why, judged.next) == ("helped", (), "")
    assert judged.sentence == (
        "With its teacher 63.7 %, alone 45.6 %: the teacher helped by 18.1 points "
        "(12.7 to 23.5 with 95 % confidence: 641 test images)."
    )


def test_it_did_not_help_and_the_teacher_knows_no_more():
    judged = verdict(plain(70.5), taught(68.8, teacher=69.8), images=526)
    assert judged.kind == "did_not_help"
    assert judged.sentence == (
        "With its teacher 68.8 %, alone 70.5 %: the teacher did not help (-1.7 points, -7.3 to "
        "3.9 with 95 % confidence: 526 test images). Why: the teacher knows no more than the "
        "student does alone: 69.8 % against 70.5 %. Next: a stronger teacher (pretrained: true "
        "in its model, or more teacher epochs)."
    )


def test_it_cannot_be_told_over_seeds():
    members = [plain(70.0, k) for k in range(3)]
    members += [taught(70 + by, k) for k, by in enumerate((0.3, 1.2, 2.1))]
    judged = verdict(*members, images=5000)
    assert (judged.kind, judged.by) == ("cannot_be_told", "seeds")
    assert judged.sentence == (
        "With its teacher 71.2 %, alone 70.0 %: whether the teacher helped cannot be told "
        "(+1.2 points, -1.0 to 3.4 with 95 % confidence: 3 seeds). Next: more "
        "seeds (seeds: [0, 1, 2, 3, 4, 5])."
    )


def test_it_made_the_student_worse():
    judged = verdict(plain(80), taught(60))
    assert "alone 80.0 %: the teacher made it worse (-20.0 points" in judged.sentence
    assert "Next: more seeds" in judged.sentence


def test_curves_that_still_rise_want_more_epochs():
    rising, flat = [10.0 + 3 * k for k in range(16)], [50.0] * 16
    both = {"epochs": 16, "validation": rising}
    judged = verdict(plain(60, **both), taught(58, **both))
    (why,) = judged.why
    assert (
        why
        == "too few epochs: both still rise on validation (+12.0 and +12.0 points at the end)"
    )
    assert judged.next == "more epochs (train.epochs=32)"
    one_rises = verdict(plain(60, **both), taught(58, epochs=16, validation=flat))
    assert one_rises.why == ()
    few = {"epochs": 3, "validation": [60.0, 60.1, 60.0]}
    assert verdict(plain(60, **few), taught(58, **few)).why == ("few epochs (3)",)
    # A rise within the chance of so few images says nothing.
    assert verdict(plain(60, **both), taught(58, **both), validated=8).why == ()


def test_where_little_is_left_it_wants_a_harder_question():
    judged = verdict(plain(99.0), taught(98.7, teacher=99.3), images=300)
    assert judged.why == ("little is left to gain (alone 99.0 %)",)
    assert "fewer labelled images" in judged.next


def test_of_several_sources_the_described_one_is_named():
    members = (plain(50), taught(70, source="cached"), taught(80, source="served"))
    assert (
        "With its teacher (served) 80.0 %" in verdict(*members, described="served").sentence
    )
    assert "(served)" in verdict(*members, described="none").sentence


@pytest.mark.parametrize(
    "members", [(plain(50),), (taught(50),), (plain(math.nan), taught(50))]
)
def test_without_both_there_is_none(members):
    assert verdict(*members) is None


def test_it_comes_back_from_json():
    judged = verdict(plain(70.5), taught(68.8, teacher=69.8))
    assert from_builtins(Verdict, to_builtins(judged)) == judged


# Of a sweep


def test_a_setting_that_fresh_seeds_confirm():
    before, after = {1: 3.0, 2: 2.9, 3: 3.1}, {1: 2.0, 2: 2.1, 3: 2.2}
    judged = of_setting("wall_seconds", before, after, -1, confirmed=True)
    assert judged.kind == "helped"
    assert judged.sentence == (
        "wall_seconds is 2.1, with the unchanged setting 3: the setting helped by 0.9 "
        "(0.652 to 1.15 with 95 % confidence: 3 fresh seeds)."
    )
    worse = of_setting("top1", before, after, 1, confirmed=True)
    assert "the setting made it worse (-0.9, -1.15 to -0.652 with" in worse.sentence
    after = {1: 3.2, 2: 3.4, 3: 2.9}
    unsure = of_setting("top1", before, after, 1, confirmed=True)
    assert "whether the setting helped cannot be told (+0.167" in unsure.sentence
    assert unsure.next == "more fresh seeds (confirm.seeds)"


def test_a_setting_that_one_seed_found():
    judged = of_setting("top1", {0: 96.0}, {0: 97.0}, 1, confirmed=False)
    assert (judged.kind, judged.by, judged.low) == ("cannot_be_told", "one_seed", None)
    assert judged.sentence == (
        "top1 is 97, with the unchanged setting 96: whether the setting helped cannot be told "
        "(+1, one seed, not confirmed). Next: fresh seeds (confirm.seeds)."
    )
    assert of_setting("top1", {}, {0: 97.0}, 1, confirmed=False) is None
