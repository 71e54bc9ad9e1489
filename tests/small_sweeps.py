"""Sweeps small enough for tests."""

from kdlab.config.load import from_dict
from kdlab.tuning.checked import CheckedSweep

TRAINED = {
    "experiment": "smoke/none",
    "space": {
        "train.lr": {"low": 0.001, "high": 0.5, "log": True},
        "train.momentum": {"low": 0.0, "high": 0.95},
    },
    "objectives": [{"metric": "validation_top1"}],
    "trials": 4,
    "confirm": None,
    "tracking": {"enabled": False},
}
SIMULATED = {
    "simulation": "edl_dist/laptop",
    "overrides": {"steps": 20},
    "space": {
        "cases.0.teachers": {"low": 1, "high": 8},
        "lt": {"low": 2, "high": 8},
        "ut": {"low": 1.5, "high": 8, "times": "lt"},
    },
    "objectives": [{"metric": "teachers"}, {"metric": "volume_max"}],
    "constraints": [{"metric": "of_n_training", "at_least": 0.9}],
    "sampler": {"name": "random", "seed": 1},
    "trials": 12,
    "tracking": {"enabled": False},
}


def searched(tree, **changes):
    """Check a sweep, as from a file."""
    return CheckedSweep(from_dict(tree | changes, "small"))
