"""Which numbers of a member can be turned, and how far."""

import kdlab
from kdlab.config.spec import Range


def tunables(config, *overrides):
    spec = kdlab.load(config, *overrides).spec
    return {
        member.source_name: {
            tunable.name: tunable for tunable in spec.method.tunables(spec, member.source)
        }
        for member in spec.members()
    }


def test_the_learning_rate_can_always_be_turned():
    (settings,) = tunables("smoke/none").values()
    assert set(settings) == {"lr_factor"}  # no teacher: the loss has no weights that apply
    assert settings["lr_factor"].value == 1.0
    assert settings["lr_factor"].range == Range(gt=0, le=100)


def test_who_has_a_teacher_has_the_losss_own_numbers_with_their_ranges():
    (settings,) = tunables("smoke/in_process", "loss.temperature=3").values()
    assert {"lr_factor", "loss.temperature", "loss.hard_weight"} <= set(settings)
    assert settings["loss.temperature"].value == 3.0
    assert not settings["loss.temperature"].range.fault(5.0)
    assert settings["loss.temperature"].range.fault(0.0)
    assert not any(name.startswith("soft_labels.") for name in settings)


def test_thresholds_can_be_turned_where_one_student_is_served():
    words = ("smoke/served", "soft_labels.lt=64", "soft_labels.ut=256")
    (settings,) = tunables(*words).values()
    lt, ut = settings["soft_labels.lt"], settings["soft_labels.ut"]
    assert (lt.value, ut.value) == (64, 256)
    assert (lt.below, ut.below) == ("soft_labels.ut", None)
    ranks = tunables(
        "smoke/served", "aggregation={type: train/aggregation/all_reduce, ranks: 2}"
    )
    assert "loss.temperature" in ranks["served"]


def test_each_member_of_a_comparison_has_its_own():
    by_member = tunables("smoke/in_process", "compare=[none, in_process]")
    assert set(by_member["none"]) == {"lr_factor"}
    assert "loss.temperature" in by_member["in_process"]


def test_a_method_whose_loss_cannot_be_turned_has_the_rate_alone():
    for config in ("smoke/blockwise", "smoke/ensemble"):
        spec = kdlab.load(config).spec
        for settings in tunables(config).values():
            turns = any(name.startswith("loss.") for name in settings)
            assert turns <= spec.method.steers_loss, config
