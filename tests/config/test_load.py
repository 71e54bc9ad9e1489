import pytest

from kdlab.config.load import compose, spec_hash
from kdlab.errors import BadInput, NotFoundError


@pytest.fixture
def project(elsewhere):
    """A project with its own cards and configs."""

    def write(name, text):
        path = elsewhere / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    write("registry/students/a", "about: A.\ntype: models/cifar_resnet\ndepth: 8\n")
    write("registry/students/b", "use: students/a\ndepth: 14\n")
    write("registry/loop/x", "use: loop/y\n")
    write("registry/loop/y", "use: loop/x\n")
    write(
        "configs/one",
        "student: {use: students/b, width: [1, 2, 3, 4]}\ntrain: {batch: 8}\n",
    )
    write("configs/ring", "student: {use: loop/x}\n")
    write("configs/refs", "train: {batch: 8}\ntwice: {n: '${train.batch}'}\n")
    write("configs/resolver", "train: {home: '${oc.env:HOME}'}\n")
    return write


def test_cards_are_laid_over_each_other(project):
    tree = compose("one")
    assert tree.data["student"] == {
        "type": "models/cifar_resnet",
        "depth": 14,
        "width": [1, 2, 3, 4],
    }
    assert not tree.faults


def test_every_value_knows_its_origin(project):
    tree = compose("one", ["train.batch=16"])
    assert tree.origin("student.depth") == "registry/students/b.yaml:2"
    assert tree.origin("student.type") == "registry/students/a.yaml:2"
    assert tree.origin("student.width") == "configs/one.yaml:1"
    assert tree.origin("train.batch") == "override"


def test_overrides(project):
    tree = compose(
        "one", ["train.batch=16", {"train.lr": 0.5}, "student.width.0=9", "new.a.b=1"]
    )
    assert tree.data["train"] == {"batch": 16, "lr": 0.5}
    assert tree.data["student"]["width"] == [9, 2, 3, 4]
    assert tree.data["new"] == {"a": {"b": 1}}


def test_an_override_may_name_a_card_or_a_component(project):
    assert compose("one", ["student=students/a"]).data["student"]["depth"] == 8
    replaced = compose("one", ["student=timm/resnet18"]).data["student"]
    assert replaced == {"type": "timm/resnet18"}


def test_cards_in_a_circle_are_named(project):
    (fault,) = compose("ring").faults
    assert "loop/x -> loop/y -> loop/x" in fault.message


def test_references_are_resolved_and_resolvers_refused(project):
    assert compose("refs").data["twice"]["n"] == 8
    (fault,) = compose("resolver").faults
    assert "could run code" in fault.message
    assert fault.origin == "configs/resolver.yaml:1"


@pytest.mark.parametrize(
    "text",
    ["${oc.env:HOME}", "${${y}:HOME}", "${oc.${y}:HOME}", "${ oc.env:HOME }", "${a", "${}"],
)
def test_no_way_around_the_resolver_rule(project, text):
    tree = compose("one", [{"y": "oc.env", "x": text}])
    assert "could run code" in tree.faults[0].message
    assert tree.data["x"] == text


def test_own_folders_come_before_kdlabs(project):
    project("configs/quickstart", "about: mine\n")
    assert compose("quickstart").data == {"about": "mine"}


def test_unknown_config_names_the_nearest(elsewhere):
    with pytest.raises(NotFoundError, match="quickstart"):
        compose("quikstart")


def test_an_override_needs_a_key_and_a_value(elsewhere):
    with pytest.raises(BadInput, match="key=value"):
        compose("quickstart", ["train.epochs"])


def test_the_hash_ignores_words_and_tracking():
    spec = {"a": 1, "about": "x", "tracking": {"experiment": "p"}}
    assert spec_hash(spec) == spec_hash({"a": 1, "about": "y"})
    assert spec_hash(spec) != spec_hash({"a": 2})
