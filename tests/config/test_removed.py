"""A removed key is refused with what to use instead, in the words of the changelog."""

from pathlib import Path

import pytest
import yaml
from small_sweeps import SIMULATED

from kdlab.config.check import construct
from kdlab.config.load import from_dict
from kdlab.config.removed import REMOVED
from kdlab.tuning.checked import search
from kdlab.tuning.spec import SweepSpec

ROOT = Path(__file__).parents[2]
EC_DNN = "method.compare.ec_dnn.aggregation"


@pytest.mark.parametrize(
    ("key", "command"),
    [
        ("real", ["sweep", "own.yaml", "real={experiment: smoke/served}"]),
        ("method.prefix", ["run", "smoke/blockwise", "method.prefix={blocks: 2}"]),
        ("aggregation.relabel", ["run", "smoke/ensemble", f"{EC_DNN}.relabel={{lt: 2}}"]),
        ("method.looks_between", ["run", "smoke/ensemble", "method.looks_between=true"]),
        ("method.choose", ["run", "smoke/blockwise", "method.choose={faster: 2.0}"]),
        ("method.mix", ["run", "smoke/blockwise", "method.mix={most: 0.5}"]),
    ],
)
def test_a_config_that_names_it_ends_with_2(kdlab_cli, elsewhere, key, command):
    (elsewhere / "own.yaml").write_text(yaml.safe_dump(SIMULATED))
    code, _, err = kdlab_cli(*command)
    assert code == 2
    assert REMOVED[key] in " ".join(err.split())


def test_a_spec_of_an_earlier_version_that_leaves_it_unset_is_read():
    construct(SweepSpec, from_dict(SIMULATED | {"real": None}, "earlier"))
    search(SIMULATED | {"real": None})


@pytest.mark.parametrize("words", REMOVED.values())
def test_the_changelog_has_the_same_words(words):
    assert words in " ".join((ROOT / "CHANGELOG.md").read_text().split())
