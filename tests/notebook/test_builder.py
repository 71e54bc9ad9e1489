"""The spec builder: what is typed is checked in the command line's words, saved and started."""

import pytest
import yaml
from tests_support import until

import kdlab
from kdlab.cluster.served import Served
from kdlab.config import folders
from kdlab.errors import BadInput
from kdlab.experiment.spec import ExperimentSpec
from kdlab.models.model import ModelSpec
from kdlab.notebook import builder as module
from kdlab.notebook import form
from kdlab.notebook.builder import Builder, Draft
from kdlab.run.experiment import Experiment


def test_fields_come_with_ranges_choices_and_words():
    fields = {f.key: f for f in form.fields_of(Served, "soft_labels")}
    assert fields["soft_labels.lt"].kind == "number"
    assert fields["soft_labels.lt"].limit.ge == 0
    assert fields["soft_labels.policy"].choices == ("paper", "guarded")
    assert "Algorithm 1" in fields["soft_labels.policy"].about
    assert fields["soft_labels.cache_views"].optional
    assert fields["soft_labels.cache_views"].kind == "whole"
    assert fields["soft_labels.hedge"].kind == "yes_no"
    spec_fields = {f.key: f for f in form.fields_of(ExperimentSpec)}
    assert spec_fields["teacher"].optional
    assert spec_fields["teacher"].part is not None
    assert spec_fields["train"].default["epochs"] == 10


@pytest.mark.long
def test_cards_and_components_that_fit(elsewhere):
    shelf = form.CardChoices()
    models = [(c.how, c.name) for c in shelf.fitting(ModelSpec)]
    assert ("use", "models/vgg8") in models
    assert ("use", "students/digits_small") in models
    assert ("type", "timm/*") in models
    assert not [name for _, name in models if name.startswith(("data/", "losses/"))]
    teacher = next(f for f in form.fields_of(ExperimentSpec) if f.key == "teacher").part
    names = [c.name for c in shelf.fitting(teacher)]
    assert "teachers/digits_resnet" in names
    assert "students/digits_small" not in names


@pytest.mark.long
def test_a_card_that_cannot_be_read_hides_nothing_else(elsewhere):
    (elsewhere / "registry" / "models").mkdir(parents=True)
    (elsewhere / "registry" / "models" / "broken.yaml").write_text("type: [")
    names = [c.name for c in form.CardChoices().fitting(ModelSpec)]
    assert "models/vgg8" in names
    assert "models/broken" not in names


def test_faults_are_those_of_the_command_line(elsewhere):
    draft = Draft("quickstart")
    draft.set("soft_labels.lt", 5000)
    with pytest.raises(kdlab.SpecError) as refused:
        kdlab.load("quickstart", "soft_labels.lt=5000")
    assert draft.fault == str(refused.value)
    draft.set("soft_labels.lt", 128)
    assert draft.fault == ""


def test_what_is_saved_is_short_and_runs_the_same(elsewhere):
    draft = Draft("quickstart", {"train.epochs": 3})
    draft.set("student", {"use": "models/vgg8"})
    draft.set("student.widths", [8, 8, 8, 8])
    assert "nearest" in draft.fault.lower() or "no key" in draft.fault
    with pytest.raises(BadInput, match="it has faults"):
        draft.save("mine/small")
    draft.set("student", {"use": "students/digits_tiny"})  # forgets what was below
    path = draft.save("mine/small")
    written = yaml.safe_load(path.read_text())
    assert written["student"] == {"use": "students/digits_tiny"}
    assert written["train"]["epochs"] == 3
    again = kdlab.load("mine/small")
    assert again.hash == kdlab.load("quickstart", draft.changes).hash
    with pytest.raises(BadInput, match="exists already"):
        draft.save("mine/small")
    assert draft.save("configs/mine/other").name == "other.yaml"
    assert kdlab.load("mine/other").hash == again.hash
    for name in ("../outside", "", "/tmp/outside"):
        with pytest.raises(BadInput, match="no name of a config"):
            draft.save(name)


def press(builder, do, name="my/experiment", **more):
    """Send an order as the page does; return the answer."""
    page = builder.page
    page._receive(page, {"kind": "order", "do": do, "name": name} | more, [])
    return page.controls["reply"][2]


def enter(builder, key, text):
    return press(builder, "set", key, text=text)


@pytest.mark.long
def test_dropdowns_and_fields_change_the_draft(elsewhere):
    builder = kdlab.load("quickstart", "train.epochs=3").edit()
    assert isinstance(builder, Builder)
    assert builder.rows["student"]["text"] == "students/digits_small"
    assert builder.rows["train.epochs"]["text"] == "3"
    assert "epochs" in builder.page.again  # what was changed outlives the kernel
    enter(builder, "soft_labels.ut", "4096")
    enter(builder, "soft_labels.order", "strict")
    assert builder.experiment.spec.soft_labels.ut == 4096
    assert builder.experiment.spec.soft_labels.order == "strict"
    enter(builder, "train.lr", "-1")
    assert "train.lr: is -1, must be > 0" in builder.page.state["form"]["fault"]
    assert "must be > 0" in builder.rows["train.lr"]["fault"]
    assert builder.rows["train.epochs"]["fault"] == ""
    assert builder.page.controls["off"]
    enter(builder, "train.lr", "0.1")
    assert not builder.page.controls["off"]
    enter(builder, "student", "timm/resnet18")
    assert builder.experiment.resolved["student"]["type"] == "timm/resnet18"
    assert "student.pretrained" in builder.rows
    enter(builder, "teacher", "null")
    assert builder.rows["teacher"]["options"][0] == ("null", None)
    assert "soft_labels/in_process needs one" in builder.fault
    enter(builder, "teacher", "teachers/digits_resnet")
    enter(builder, "teacher_pool", "teacher_pools/emulated")
    assert "cluster/emulated_pool" in str(builder.experiment.resolved["teacher_pool"])


@pytest.mark.long
def test_what_cannot_be_read_is_kept_and_not_started(elsewhere):
    builder = kdlab.load("smoke/none").edit()
    enter(builder, "seeds", "[0, 1")
    assert builder.page.controls["off"]
    assert "seeds" in builder.page.state["form"]["fault"]
    assert builder.rows["seeds"]["text"] == "[0, 1"
    assert "cannot be read" in builder.rows["seeds"]["fault"]
    for do in ("save", "start"):
        assert "seeds" in press(builder, do)
    assert not (elsewhere / "configs").exists()
    assert builder.run is None
    enter(builder, "tracking.experiment", "a\0b")  # no config can have it
    enter(builder, "tracking.experiment", "ab")
    enter(builder, "seeds", "[0, 1]")
    assert not builder.page.controls["off"]
    assert builder.experiment.spec.seeds == (0, 1)


@pytest.mark.long
def test_what_no_field_would_say_is_refused(elsewhere):
    builder = kdlab.load("smoke/none").edit()
    before = builder.draft.yaml()
    for key, text in (
        ("", "1"), ("nothing", "1"), ("student", "losses/hinton"), ("student", "nothing/*"),
        ("train.lr.x", "1"), ("method.type", "methods/student"), ("x" * 300, "1"),
        ("train.lr", "1" * 200_000), ("train.lr", 1), ("soft_labels", {"use": "x"}),
    ):  # fmt: skip
        enter(builder, key, text)
        assert builder.page.controls["reply"][1] == "bad", key
    assert builder.draft.yaml() == before
    assert builder.fault == ""


@pytest.mark.long
def test_a_path_a_list_of_teachers_and_a_second_save(elsewhere):
    two = [{"use": "teachers/digits_tiny"}, {"use": "teachers/digits_tiny_mobile"}]
    source = yaml.safe_load(kdlab.load("smoke/in_process").yaml())
    path = elsewhere / "quickstart.yaml"  # named as one of kdlab's own
    path.write_text(yaml.safe_dump(source | {"teacher": two}))
    builder = kdlab.load(path).edit()
    assert len(builder.experiment.spec.teachers()) == 2
    assert "kdlab run mine" in press(builder, "save", "mine")
    enter(builder, "train.epochs", "7")
    press(builder, "save", "mine")  # its own file
    assert kdlab.load("mine").spec.train.epochs == 7
    second = kdlab.load("mine").edit()
    assert "exists already" in press(second, "save", "mine")


@pytest.mark.long
def test_overrides_are_not_written_into_and_keep_their_order(elsewhere):
    overrides = {"loss": {"type": "losses/hinton"}, "loss.temperature": 2.0}
    kdlab.load("smoke/in_process", overrides)
    assert overrides["loss"] == {"type": "losses/hinton"}
    asked = ("train.epochs=2", {"train": {"batch": 32}}, "train.epochs=3")
    experiment = kdlab.load("smoke/none", *asked)
    assert experiment.edit().experiment.hash == experiment.hash


class Started:
    """An experiment that was started."""

    id = "20261127-run"

    def live(self):
        return self


@pytest.mark.long
def test_it_starts_what_it_shows_and_shows_the_run(elsewhere, monkeypatch):
    started = []
    monkeypatch.setattr(
        Experiment, "start", lambda experiment: started.append(experiment) or Started()
    )
    builder = kdlab.load("smoke/none", "tracking.enabled=false").edit()
    enter(builder, "train.epochs", "1")
    assert press(builder, "start") == "started: 20261127-run"
    assert [e.resolved["train"]["epochs"] for e in started] == [1]
    monkeypatch.setattr(module, "in_marimo", lambda: True)
    assert builder._display_() is builder.page
    assert "kdlab.attach('20261127-run').live()" in press(builder, "start")


@pytest.mark.long
def test_what_cannot_be_started_is_said(elsewhere, monkeypatch):
    def refused(experiment):
        raise BadInput("no such data here")

    monkeypatch.setattr(Experiment, "start", refused)
    builder = kdlab.load("smoke/none").edit()
    assert press(builder, "start") == "no such data here"
    assert builder.run is None


@pytest.mark.nightly
def test_it_starts_what_it_shows(kdlab_home, elsewhere):
    builder = kdlab.load("smoke/none", "tracking.enabled=false").edit()
    enter(builder, "train.epochs", "1")
    answer = press(builder, "start")
    assert builder.run is not None, answer
    until(lambda: builder.run.state == "finished")
    assert builder.run.result["epochs"] == 1


def configs():
    return [n for n in folders.names("configs") if not n.startswith("sweeps/")]


def edited(name):
    builder = Builder(name)
    assert builder.draft.fault == "", name
    assert builder.experiment.hash == kdlab.load(name).hash


# One of each method; a form takes a third of a second to make.
@pytest.mark.parametrize("name", ["quickstart", "smoke/blockwise", "smoke/ensemble"])
@pytest.mark.long
def test_a_config_is_edited_as_it_is(elsewhere, name):
    edited(name)


@pytest.mark.long
def test_all_configs_are_drafts_without_a_fault(elsewhere):
    for name in configs():
        draft = Draft(name)
        assert draft.fault == "", name
        assert kdlab.load(name, draft.changes).hash == kdlab.load(name).hash


@pytest.mark.nightly
def test_all_configs_can_be_edited(elsewhere):
    for name in configs():
        edited(name)
