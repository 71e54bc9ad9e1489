"""Whatever a config, a card or an override says, the answer is a spec or a list of faults.

`make test` draws 2,000 cases; `make fuzz` 20,000, and measures the time and memory of each.
"""

import pytest
from hostile_configs import KEYS, OVERRIDES, VALUES, damaged
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests_support import examples

import kdlab
from kdlab.errors import BadInput, NotFoundError
from kdlab.run.catalogue import describe
from kdlab.tuning.checked import search

pytestmark = pytest.mark.usefixtures("elsewhere")
PATIENT = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
SHOWN = 250_000  # characters of an answer, at most: fifty faults of two thousand


def answered(load, *arguments):
    """Load; what cannot be loaded must be refused with faults that can be printed."""
    try:
        load(*arguments)
    except BadInput as error:
        text = str(error)
        assert text.encode("utf-8")
        assert len(text) < SHOWN
        assert "report this defect" not in text, text
        assert not text.startswith("0 faults"), text
    # Anything else is a traceback, and fails.


@settings(PATIENT, max_examples=examples(600))
@given(OVERRIDES)
def test_overrides(overrides):
    answered(kdlab.load, "quickstart", *overrides)


@settings(PATIENT, max_examples=examples(1000))
@given(damaged())
@pytest.mark.long
def test_damaged_configs(tmp_path, raw):
    path = tmp_path / "it.yaml"
    path.write_bytes(raw)
    answered(kdlab.load, str(path))


@settings(PATIENT, max_examples=examples(100))
@given(damaged())
def test_damaged_sweeps(tmp_path, raw):
    path = tmp_path / "it.yaml"
    path.write_bytes(raw)
    answered(search, str(path))


@settings(PATIENT, max_examples=examples(100))
@given(damaged(), st.sampled_from(["data", "loss", "teacher_pool"]))
def test_damaged_cards(elsewhere, raw, key):
    card = elsewhere / "registry" / "mine.yaml"
    card.parent.mkdir(exist_ok=True)
    card.write_bytes(raw)
    answered(kdlab.load, "quickstart", {key: {"use": "mine"}})


@settings(PATIENT, max_examples=examples(100))
@given(st.one_of(st.text(max_size=300), st.sampled_from([*KEYS, *VALUES])))
def test_names(name):
    answered(kdlab.load, name)


@pytest.mark.parametrize("name", ["a" * 5000, "a" * 300 + ".yaml", "\0.yaml", "a/" * 3000])
def test_names_that_no_file_can_have(name):
    for call in (kdlab.load, search, describe):
        with pytest.raises(NotFoundError):
            call(name)


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
@pytest.mark.long
def test_each_hostile_value(value):
    answered(kdlab.load, "quickstart", f"train.lr={value}")
    answered(kdlab.load, "quickstart", f"data={value}")


@pytest.mark.parametrize("key", KEYS, ids=range(len(KEYS)))
@pytest.mark.long
def test_each_hostile_key(key):
    answered(kdlab.load, "quickstart", f"{key}=1")


def test_references_that_multiply_are_refused_before_they_grow():
    rows = {f"x{i}": [f"${{about.x{i - 1}}}"] * 9 for i in range(1, 20)} | {"x0": "1"}
    with pytest.raises(BadInput, match="more than 20,000 values"):
        kdlab.load("quickstart", {"about": rows})


def test_cards_that_multiply_are_refused(elsewhere):
    folder = elsewhere / "registry" / "bomb"
    folder.mkdir(parents=True)
    for i in range(20):
        (folder / f"c{i}.yaml").write_text(
            f"a: {{use: bomb/c{i + 1}}}\nb: {{use: bomb/c{i + 1}}}\n"
        )
    (folder / "c20.yaml").write_text("a: 1\n")
    with pytest.raises(BadInput, match="500 cards"):
        kdlab.load("quickstart", "data=bomb/c0")
