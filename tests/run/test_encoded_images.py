"""Photos that are kept encoded: student, reader and teachers make the same views of them."""

import zipfile
from contextlib import closing

import numpy as np
import pytest
from http_site import Site
from PIL import Image

import kdlab
from kdlab.events.log import select

pytestmark = pytest.mark.slow("two runs or more each, and in a served one two teachers")


@pytest.fixture
def photos(tmp_path):
    """Eighty JPEGs of unlike sizes in two classes that can be told apart."""
    chance = np.random.default_rng(0)
    for i in range(80):
        height, width = chance.integers(40, 90, 2)
        coarse = chance.integers(0, 120, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
        coarse[..., i % 2] += 100
        pixels = np.kron(coarse, np.ones((8, 8, 1), np.uint8))[:height, :width]
        path = tmp_path / "photos" / ("red", "green")[i % 2] / f"{i:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return tmp_path / "photos"


def losses(photos, source, augment="", sampling="{}", teachers_photos=None):
    shape = "size: 24, kept: encoded, "
    data = f"{{type: data/image_folder, root: '{photos}', {shape}"
    augment = f"{{flip: true, resized_crop: 0.3, crop_padding: 2{augment}}}"
    run = kdlab.load(
        f"smoke/{source}",
        f"data={data}augment: {augment}, sampling: {sampling}}}",
        f"teacher.data={{type: data/image_folder, root: '{teachers_photos or photos}', {shape}}}",
        "train.batch=16",
        "train.log_every_steps=1",
        "tracking.enabled=false",
        *(["soft_labels.order=strict"] if source == "served" else []),
    ).start(lambda line: None)
    run.wait(timeout_s=600)
    assert run.state == "finished", run.status.error
    assert (run.result["samples_lost"], run.result["samples_repeated"]) == (0, 0)
    (row,) = run.result["runs"]
    if source == "served":  # a number, and two classes as float16
        assert list(row["bytes_per_sample"]) == ["reference"]
        assert 12 <= row["bytes_per_sample"]["reference"] < 100
    else:
        assert row["bytes_per_sample"] == {}
    steps = [e.loss for e in select(run.folder.events, "step_logged")]
    return steps[-2 * 4 :]  # two epochs of four batches; before them its teacher's


@pytest.mark.parametrize(
    ("augment", "sampling"),
    [
        pytest.param("", "{}", marks=pytest.mark.nightly),
        (", mixup_alpha: 0.8, cutmix_alpha: 1.0, policy: rand_augment", "{repeats: 4}"),
        pytest.param(", mixup_alpha: 0.2", "{balance: 1.0}", marks=pytest.mark.nightly),
    ],
)
def test_served_and_in_process_see_the_same_views(
    photos, kdlab_home, elsewhere, augment, sampling
):
    """The teacher makes each view from a reference: epoch and number of the sample."""
    served = losses(photos, "served", augment, sampling)
    beside = losses(photos, "in_process", augment, sampling)
    assert len(served) == len(beside) == 8
    assert served == pytest.approx(beside, rel=2e-2)  # soft labels travel as float16


def test_photos_at_a_url_are_read_by_student_reader_and_teachers(
    photos, kdlab_home, elsewhere, monkeypatch, tmp_path
):
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for path in sorted(photos.rglob("*.jpg")):
            archive.write(path, path.relative_to(photos))
    monkeypatch.setenv("KDLAB_HOME", str(tmp_path / "home"))
    with closing(Site()) as site:
        site.files["/photos.zip"] = (tmp_path / "photos.zip").read_bytes()
        far = losses(site.url("/photos.zip"), "served", teachers_photos=photos)
        assert site.asked
    near = losses(tmp_path / "photos.zip", "in_process", teachers_photos=photos)
    assert far == pytest.approx(near, rel=2e-2)


def test_a_photo_that_was_damaged_ends_the_run_with_its_name(photos, kdlab_home, elsewhere):
    assert len(losses(photos, "in_process")) == 8
    (photos / "red" / "34.jpg").write_bytes(b"no image any more")
    run = kdlab.load(
        "smoke/none",
        f"data={{type: data/image_folder, root: '{photos}', size: 24, kept: encoded}}",
        "tracking.enabled=false",
    ).start(lambda line: None)
    run.wait(timeout_s=600)
    assert run.state == "failed"
    assert "red/34.jpg has 17 bytes, it had" in run.status.error
    (photos / "red" / "34.jpg").unlink()
    assert len(losses(photos, "in_process")) == 8  # one image less, indexed anew


def test_photos_without_labels_are_taught_by_the_teacher_alone(
    photos, kdlab_home, elsewhere
):
    rows = [
        (f"{name}/{path.name}", "" if i % 3 else name, "train" if i % 5 else "test")
        for name in ("red", "green")
        for i, path in enumerate(sorted((photos / name).iterdir()))
    ]
    rows = [(path, label or "red" * (part == "test"), part) for path, label, part in rows]
    table = photos / "list.csv"
    table.write_text("path,label,split\n" + "".join(",".join(row) + "\n" for row in rows))
    data = f"{{type: data/image_list, root: '{table}', size: 24, kept: encoded}}"
    teacher = f"teacher.data={{type: data/image_folder, root: '{photos}', size: 24}}"

    def experiment(*more):
        settings = ("train.batch=16", "tracking.enabled=false", *more)
        return kdlab.load("smoke/in_process", f"data={data}", teacher, *settings)

    run = experiment().start(lambda line: None)
    run.wait(timeout_s=600)
    assert run.state == "finished", run.status.error
    assert run.result["samples_lost"] == 0
    with pytest.raises(kdlab.KdlabError, match="treats the true class apart"):
        experiment("loss.type=losses/dkd").start(lambda line: None)
    untaught = experiment("compare=[none]").start(lambda line: None)  # of labelled ones
    untaught.wait(timeout_s=600)
    assert untaught.state == "finished", untaught.status.error
