"""All faults of a spec at once, each with key, line, value and what is allowed."""

import pytest

import kdlab
from kdlab.config.load import at
from kdlab.errors import SpecError


def faults(*overrides, config="quickstart"):
    with pytest.raises(SpecError) as caught:
        kdlab.load(config, *overrides)
    assert caught.value.exit_code == 2
    return {fault.key: fault for fault in caught.value.faults}


def test_reports_all_faults_at_once(elsewhere):
    by_key = faults(
        "train.epochz=3",
        "loss.temperature=-1",
        "train.batch=many",
        "student.depth=9",
        "soft_labels.policy=greedy",
        "seeds=7",
    )
    assert set(by_key) == {
        "train.epochz",
        "loss.temperature",
        "train.batch",
        "student.depth",
        "soft_labels.policy",
        "seeds",
    }
    assert "Nearest: epochs" in by_key["train.epochz"].message
    assert by_key["loss.temperature"].message == "is -1, must be > 0"
    assert by_key["train.batch"].message == "is 'many', must be a whole number"
    assert "6n + 2" in by_key["student.depth"].message
    assert "paper, guarded" in by_key["soft_labels.policy"].message


@pytest.mark.parametrize(
    ("override", "key", "words"),
    [
        ("loss.type=losses/hintn", "loss.type", "Nearest: losses/hinton"),
        ("loss.type=os.system", "loss.type", "never import paths"),
        ("loss.type=kdlab.losses.hinton", "loss.type", "never import paths"),
        (
            "loss.type=models/cifar_resnet",
            "loss.type",
            "is not a loss; choose one of losses/",
        ),
        ("student={use: students/digitz}", "student", "There is no card"),
        ("epochs=3", "epochs", "Did you mean train.epochs?"),
        ("temperature=3", "temperature", "Did you mean loss.temperature?"),
        ("student=students/digitz_small", "student", "Nearest: students/digits_small"),
        ("train.lr=true", "train.lr", "must be a number"),
        ("train.precision=fp16", "train.precision", "needs a GPU"),
        ("train.warmup_epochs=10", "train.warmup_epochs", "shorter than epochs"),
        ("soft_labels.lt=4096", "soft_labels.lt", "lt must be below ut"),
        (
            "soft_labels={type: cluster/served, lt: 1, ut: 32}",
            "soft_labels.ut",
            "more than one",
        ),
        ("teacher=null", "teacher", "is missing"),
        ("soft_labels={type: soft_labels/none}", "compare", "names served"),
        ("compare=[none, none]", "compare", "once"),
        ("compare=[nothing]", "compare.0", "must be one of"),
        ("student={type: 'timm/'}", "student.type", "no component named"),
        ("chaos=1", "chaos", "must be a mapping"),
        ("student=null", "student", "must be a mapping"),
    ],
)
def test_one_fault(elsewhere, override, key, words):
    if override == "train.precision=fp16":
        override = {"train.precision": "fp16", "train.device": "cpu"}
    by_key = faults(override)
    assert key in by_key, by_key
    assert words in by_key[key].message


def test_a_fault_names_file_and_line(elsewhere):
    (elsewhere / "mine.yaml").write_text(
        "data: {use: data/digits}\nstudent:\n  use: nope/x\n"
    )
    by_key = faults(config="mine.yaml")
    assert by_key["student"].origin == "mine.yaml:3"


def test_numbers_are_not_guessed(elsewhere):
    assert kdlab.load("quickstart", "train.lr=1").spec.train.lr == 1.0
    assert "train.epochs" in faults("train.epochs=2.5")
    assert "train.epochs" in faults({"train.epochs": "2"})


def test_the_resolved_spec_is_the_same_experiment(elsewhere):
    import yaml

    first = kdlab.load("quickstart", "train.epochs=3", "loss=losses/dkd")
    (elsewhere / "again.yaml").write_text(first.yaml())
    again = kdlab.load("again.yaml")
    assert again.hash == first.hash
    assert yaml.safe_load(again.yaml()) == yaml.safe_load(first.yaml())


@pytest.mark.parametrize("root", ["a", ["a", "b"], ("a", "b")])
def test_one_or_several(root):
    """A tuple is taken too: a list becomes one on Dask's wire."""
    from kdlab.config.check import construct
    from kdlab.config.load import from_dict
    from kdlab.data.images import DataSpec

    spec = construct(DataSpec, from_dict({"type": "data/image_folder", "root": root}, "x"))
    assert spec.root == (root if root == "a" else ("a", "b"))


def test_families_keep_their_variant(elsewhere):
    spec = kdlab.load("quickstart", "student=timm/resnet18").spec
    assert spec.student.variant == "resnet18"
    assert spec.student.to_dict()["type"] == "timm/resnet18"
    assert "variant" not in spec.student.to_dict()


LEGAL = {
    "methods/student": {"none", "all_reduce"},
    "methods/ensemble": {
        "none",
        "model_average",
        "ensemble",
        "diloco",
        "streaming_diloco",
        "papa",
        "easgd",
        "easgd_async",
        "bmuf",
        "dart",
        "soup",
        "muloco",
        "codistillation",
    },
}


@pytest.mark.parametrize("method", LEGAL)
@pytest.mark.long
def test_pairs_of_source_and_aggregation(elsewhere, method):
    """Each legal aggregation is built with each source; the others are refused."""
    from kdlab.config import source_index

    names = [e.name for e in source_index.index()]
    sources = [n for n in names if n.startswith("soft_labels/")] + ["cluster/served"]
    aggregations = [n for n in names if n.startswith("train/aggregation/")]
    assert {n.rsplit("/", 1)[1] for n in aggregations} == set().union(*LEGAL.values())

    def spec(source, aggregation):
        return kdlab.load(
            "quickstart",
            {"compare": [], "soft_labels": {"type": source}},
            {"aggregation": {"type": aggregation}, "method": {"type": method}},
        ).spec

    for source in sources:
        for aggregation in aggregations:
            if aggregation.rsplit("/", 1)[1] not in LEGAL[method]:
                with pytest.raises(SpecError, match="local models"):
                    spec(source, aggregation)
                continue
            built = spec(source, aggregation)
            assert built.soft_labels.component == source
            assert built.aggregation.component == aggregation


def test_a_file_names_a_part_as_an_override_does(tmp_path, elsewhere):
    path = tmp_path / "own.yaml"
    path.write_text(
        "data: {use: data/digits}\n"
        "student: {type: models/cifar_resnet, depth: 8}\n"
        "loss: losses/dist\n"
        "teacher: {type: train/teacher, model: timm/resnet18, recipe: {epochs: 1},\n"
        "  data: '${data}'}\n"
        "soft_labels: soft_labels/in_process\n"
    )
    spec = kdlab.load(path, "teacher.model.pretrained=true").spec
    assert spec.loss.component == "losses/dist"
    assert spec.soft_labels.component == "soft_labels/in_process"
    assert spec.teacher.model.variant == "resnet18"
    assert spec.teacher.model.pretrained
    path.write_text(
        "data: data/digits\nstudent: students/digits_small\nloss: losses/dits\n"
    )
    by_key = faults(config=path)
    assert list(by_key) == ["loss.type"]
    assert "Nearest: losses/dist" in by_key["loss.type"].message


def test_short_forms_say_what_they_stand_for(tmp_path, elsewhere):
    path, photos = tmp_path / "own.yaml", tmp_path / "photos"
    photos.mkdir()
    path.write_text(f"data: {photos}\nteacher: resnet18\nstudent: timm/resnet10t\n")
    spec = kdlab.load(path).spec
    assert spec.data.component == "data/image_folder"
    assert spec.data.root == str(photos)
    assert (spec.data.size, spec.data.augment.flip) == (96, True)
    assert spec.teacher.model.variant == "resnet18"
    assert spec.teacher.data == spec.data
    assert spec.teacher.recipe == spec.train
    assert spec.soft_labels.component == "soft_labels/in_process"
    assert spec.teacher_pool is None
    again = kdlab.load(path, {"data": kdlab.load(path).resolved["data"]})
    assert again.hash == kdlab.load(path).hash


@pytest.mark.parametrize(
    ("overrides", "facts"),
    [
        (
            ["soft_labels=served", "soft_labels.lt=300"],
            {"soft_labels.lt": 300, "teacher_pool.type": "cluster/local_pool"},
        ),
        (
            ["compare=[none, served]"],
            {"soft_labels.type": "cluster/served", "teacher_pool.teachers": 2},
        ),
        (["teacher.weights=w.safetensors"], {"teacher.model.weights": "w.safetensors"}),
        (["teacher.seed=3"], {"teacher.seed": 3, "teacher.recipe.epochs": 10}),
        (["teacher=models/resnet20"], {"teacher.model.depth": 20}),
        (["loss=dkd", "student=cifar_resnet"], {"loss.type": "losses/dkd"}),
        (["data=a.parquet"], {"data.type": "data/parquet", "data.size": 96}),
        (["data=s3://bucket/photos"], {"data.root": "s3://bucket/photos"}),
        (["data=t.csv", "data.size=32"], {"data.type": "data/image_list", "data.size": 32}),
        (["teacher=[timm/resnet18, timm/resnet34]"], {"teacher.1.weight": 1.0}),
    ],
)
def test_short_forms_of_overrides(tmp_path, elsewhere, overrides, facts):
    path = tmp_path / "own.yaml"
    path.write_text("data: data/digits\nteacher: resnet18\nstudent: timm/resnet10t\n")
    resolved = kdlab.load(path, *overrides).resolved
    assert {key: at(resolved, key) for key in facts} == facts


def test_a_pool_that_is_left_out_is_on_this_machine(elsewhere):
    pool = kdlab.load("quickstart", "teacher_pool=null").spec.teacher_pool
    assert pool.component == "cluster/local_pool"


@pytest.mark.parametrize(
    ("override", "key", "words"),
    [
        ("data=nowhere", "data.type", "Nor is there a file or folder"),
        ("student=wavenet", "student.type", "timm has no model"),
        ("teacher=timm/resnet199", "teacher.model.type", "Nearest: resnet18"),
        ("method={plan: ahd}", "method", "one of methods/blockwise, methods/ensemble,"),
        (
            "method={type: losses/hinton}",
            "method.type",
            "is not a method; choose one of meth",
        ),
        ("method={type: methods/blockwis}", "method.type", "Nearest: methods/blockwise"),
        ("soft_labels=servd", "soft_labels.type", "Nearest: cluster/served"),
    ],
)
def test_what_is_no_short_form_either(elsewhere, override, key, words):
    by_key = faults(override)
    assert words in by_key[key].message
