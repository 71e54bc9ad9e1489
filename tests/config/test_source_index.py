"""Keys read from source text are those of the classes; faults have the same words."""

import pytest

from kdlab.config import folders, registry, source_index
from kdlab.config.check import construct, unknown_keys
from kdlab.config.load import compose
from kdlab.config.spec import hints_of
from kdlab.errors import SpecError
from kdlab.experiment.spec import ExperimentSpec

WHOLE = ("kdlab.experiment.spec", "ExperimentSpec")


@pytest.mark.long
def test_all_components_have_the_fields_of_their_classes():
    for entry in source_index.index():
        name = entry.name.replace("/*", "/resnet18")
        shape = source_index.component_shape(name)
        assert shape is not None, name
        assert set(shape.keys) == set(hints_of(registry.find(name)[0])), name
    assert set(source_index.shape(*WHOLE).keys) == set(hints_of(ExperimentSpec))


def test_no_key_of_a_config_is_unknown():
    for name in folders.names("configs"):
        if not name.startswith("sweeps/"):
            assert unknown_keys(compose(name), *WHOLE) == []


@pytest.mark.parametrize(
    "override",
    [
        "train.lrr=1", "epochs=3", "loss.temperatures=2", "teacher.recipe.epoch=3", "studnt=x",
        "tracking.enable=false", "soft_labels.latency=3",
    ],
)  # fmt: skip
def test_a_typo_is_said_in_the_words_of_the_full_check(override):
    tree = compose("quickstart", [override])
    early = unknown_keys(tree, *WHOLE)
    with pytest.raises(SpecError) as error:
        construct(ExperimentSpec, tree)
    assert early
    assert {(f.key, f.message, f.origin) for f in early} <= {
        (f.key, f.message, f.origin) for f in error.value.faults
    }


def test_what_is_not_known_here_is_left_to_the_full_check():
    assert source_index.component_shape("theirs/component") is None
    assert source_index.shape("torch.nn", "Module") is None
    tree = compose("quickstart", ["data={type: theirs/set, rot: 3}"])
    assert [f for f in unknown_keys(tree, *WHOLE) if "rot" in f.key] == []


def test_a_key_below_a_part_that_nobody_named_asks_for_its_type():
    """Which keys `teacher_pool` has depends on the pool; its kind alone knows few of them."""
    tree = compose("clothes/quickstart", ["teacher_pool.engine=eager"])
    assert unknown_keys(tree, *WHOLE) == []
    with pytest.raises(SpecError, match=r"teacher_pool: needs type:, one of .*local_pool"):
        construct(ExperimentSpec, tree)


def test_only_parts_of_the_kind_are_listed():
    with pytest.raises(SpecError, match=r"teacher: needs type:, one of train/teacher\n?$"):
        construct(ExperimentSpec, compose("smoke/served", ["teacher={foo: 3}"]))
