"""Which curves may share an axis."""

import pytest

from kdlab.report.curve_axis import curve_axis

HINTON = {
    "type": "losses/hinton",
    "temperature": 4.0,
    "soft_weight": 0.5,
    "warm_up_epochs": 0,
}


@pytest.mark.parametrize(
    ("asked", "axis"),
    [
        (("speed", "student", "served", HINTON), ("speed", "samples/s")),
        (("top-1 on validation", "student", "none", None), ("top-1 on validation", "%")),
        (("loss", "loss", "none", HINTON), ("loss on labels", "")),
        (
            ("loss", "loss", "served", HINTON),
            ("loss, hinton", "temperature 4, soft_weight 0.5"),
        ),
        (("loss", "loss", "served", None), ("loss", "")),
        (("loss", "loss of the blocks", "tr", HINTON), ("loss of the blocks", "")),
        (("loss", "worker 3", "ec_dnn", HINTON), ("loss", "")),
    ],
)
def test_losses_of_one_kind_share_an_axis(asked, axis):
    assert curve_axis(*asked) == axis


def test_settings_are_told_apart_however_deep_they_lie():
    both = [
        curve_axis(
            "loss", "loss", "served", {"type": "losses/sum", "terms": [HINTON | more]}
        )
        for more in ({}, {"temperature": 1.0})
    ]
    assert both[0] != both[1]
