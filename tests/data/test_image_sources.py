"""Lists, WebDataset shards, Parquet and Arrow files: the images and labels that were put in."""

import io
import json
import os
import tarfile
import zipfile
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from kdlab.data.encoded.formats import kind_of
from kdlab.data.image_folder import ImageFolder
from kdlab.data.image_list import ImageList
from kdlab.data.parquet import ParquetImages
from kdlab.data.sampling import Sampler, Sampling
from kdlab.data.webdataset import WebDataset
from kdlab.errors import DataError

SHADES = range(0, 240, 10)  # one an image
NAMES = ("cat", "dog")


def jpeg(shade):
    raw = io.BytesIO()
    Image.new("RGB", (20, 16), (shade, shade, shade)).save(raw, "JPEG")
    return raw.getvalue()


def label_of(k):
    return NAMES[k % 2]


def shown(data, ids):
    """{(grey value, class)} of these images, each grey value to the next ten."""
    grey = data.inputs[ids].mean((1, 2, 3))
    return {
        (round(float(g) / 10) * 10, data.classes[data.labels[k]])
        for g, k in zip(grey, ids, strict=True)
    }


def everything(data):
    return shown(data, np.sort(np.concatenate([data.train, data.validation, data.test])))


EXPECTED = {(shade, label_of(k)) for k, shade in enumerate(SHADES)}


@pytest.fixture
def photos(tmp_path):
    for k, shade in enumerate(SHADES):
        path = tmp_path / "photos" / f"{k % 3}" / f"{k:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(shade))
    return tmp_path / "photos"


def table(where, columns, rows, separator=","):
    lines = [separator.join(columns)] + [separator.join(map(str, row)) for row in rows]
    where.write_text("\ufeff" + "\n".join(lines) + "\n", encoding="utf-8")  # as Excel does
    return where


def rows(split=lambda k: "train"):
    return [(f"{k % 3}/{k:03}.jpg", label_of(k), split(k)) for k in range(len(SHADES))]


def test_a_csv_says_paths_labels_and_splits(photos):
    def split(k):
        return "test" if k < 4 else "val" if k < 8 else "train"

    path = table(photos / "all.csv", ("filename", "label", "split"), rows(split))
    data = ImageList(root=str(path), size=8).load()
    assert everything(data) == EXPECTED
    assert (len(data.train), len(data.validation), len(data.test)) == (16, 4, 4)
    assert shown(data, data.test) == {(0, "cat"), (10, "dog"), (20, "cat"), (30, "dog")}


@pytest.mark.parametrize("packed", ["folder", "zip"])
def test_a_table_of_another_kind_and_images_elsewhere(photos, tmp_path, packed):
    images = photos
    if packed == "zip":
        images = tmp_path / "photos.zip"
        with zipfile.ZipFile(images, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(photos.rglob("*.jpg")):
                archive.write(path, path.relative_to(photos))
    where = tmp_path / "tables"
    where.mkdir()
    names, labels, _ = zip(*rows(), strict=True)
    pq.write_table(pa.table({"where": names, "species": labels}), where / "t.parquet")
    asked = {"path_column": "where", "label_column": "species", "images": str(images)}
    assert (
        everything(ImageList(root=str(where / "t.parquet"), size=8, **asked).load())
        == EXPECTED
    )
    tsv = table(where / "t.tsv", ("path", "label", "set"), rows(), "\t")
    relative = ImageList(root=str(tsv), size=8, images=f"../{images.name}").load()
    assert everything(relative) == EXPECTED


def test_a_list_of_paths_has_the_folders_as_classes(photos):
    (photos / "all.txt").write_text("\n".join(name for name, _, _ in rows()))
    data = ImageList(root=str(photos / "all.txt"), size=8).load()
    assert data.classes == ("0", "1", "2")
    assert len(data.labels) == len(SHADES)


@pytest.mark.parametrize(
    ("columns", "more", "words"),
    [
        (("where", "label", "split"), {}, "which of them has the paths"),
        (("path", "label", "split"), {"label_column": "kind"}, "has no column kind"),
        (
            ("path", "label", "label2"),
            {"split_column": "label2"},
            "split 'train2' is none of",
        ),
    ],
)
def test_what_a_table_lacks_is_named(photos, columns, more, words):
    path = table(photos / "all.csv", columns, rows(lambda k: "train2"))
    with pytest.raises(DataError, match=words):
        ImageList(root=str(path), size=8, **more).load()


def test_images_that_are_listed_and_missing_are_named(photos):
    path = table(
        photos / "all.csv", ("path", "label"), [("0/000.jpg", "cat"), ("x.jpg", "dog")]
    )
    with pytest.raises(DataError, match=r"1 of 2 images .* are not in .*photos: x\.jpg"):
        ImageList(root=str(path), size=8).load()


def shard(where, numbers, files):
    with tarfile.open(where, "w") as archive:
        for k in numbers:
            for suffix, raw in files(k).items():
                member = tarfile.TarInfo(f"part/{k:04}.{suffix}")
                member.size = len(raw)
                archive.addfile(member, io.BytesIO(raw))
    return where


def test_webdataset_shards_with_numbers_and_names(tmp_path):
    for n in range(3):
        shard(
            tmp_path / f"train-{n:03}.tar",
            range(8 * n, 8 * n + 8),
            lambda k: {"cls": str(k % 2).encode(), "jpg": jpeg(SHADES[k])},
        )
    root = str(tmp_path / "train-{000..002}.tar")
    named = WebDataset(root=root, size=8, classes=NAMES).load()
    assert everything(named) == EXPECTED
    assert WebDataset(root=root, size=8).load().classes == ("0", "1")
    starred = WebDataset(root=str(tmp_path / "train-*.tar"), size=8, classes=NAMES).load()
    assert everything(starred) == EXPECTED
    only = WebDataset(root=root, size=8, test_root=str(tmp_path / "train-000.tar"))
    assert len(only.load().test) == 8


def test_webdataset_labels_in_json_and_splits_by_name(tmp_path):
    def files(k):
        facts = {"species": label_of(k), "other": [1]}
        return {
            "json": json.dumps(facts).encode(),
            "seg.png": b"no photo",
            "jpg": jpeg(SHADES[k]),
        }

    first = shard(tmp_path / "birds-train-0.tar", range(16), files)
    last = shard(tmp_path / "birds-val-0.tar", range(16, 24), files)
    roots = (str(first), str(last))
    with pytest.raises(DataError, match=r"has no \.cls beside its image, but \.json"):
        WebDataset(root=roots, size=8).load()
    with pytest.raises(DataError, match=r"has no entry kind"):
        WebDataset(root=roots, size=8, label="json.kind").load()


def test_webdataset_splits_by_name(tmp_path):
    def files(k):
        return {
            "json": json.dumps({"species": label_of(k)}).encode(),
            "jpg": jpeg(SHADES[k]),
        }

    first = shard(tmp_path / "birds-train-0.tar", range(16), files)
    last = shard(tmp_path / "birds-val-0.tar", range(16, 24), files)
    data = WebDataset(root=(str(first), str(last)), size=8, label="json.species").load()
    assert everything(data) == EXPECTED
    assert len(data.validation) == 8


FEATURES = {
    "image": {"_type": "Image"},
    "label": {"names": list(NAMES), "_type": "ClassLabel"},
}


def columns(numbers):
    images = [{"bytes": jpeg(SHADES[k]), "path": None} for k in numbers]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    content = pa.table({"image": pa.array(images, kind), "label": [k % 2 for k in numbers]})
    return content.replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": FEATURES}})}
    )


def test_parquet_files_of_a_hub(tmp_path):
    (tmp_path / "data").mkdir()
    pq.write_table(columns(range(20)), tmp_path / "data" / "train-00000-of-00001.parquet")
    pq.write_table(
        columns(range(20, 24)),
        tmp_path / "data" / "test-00000-of-00001.parquet",
        row_group_size=2,
    )
    data = ParquetImages(root=str(tmp_path), size=8).load()
    assert everything(data) == EXPECTED
    assert len(data.test) == 4
    plain = pa.table(
        {"png": [jpeg(s) for s in SHADES], "kind": [label_of(k) for k in range(24)]}
    )
    pq.write_table(plain, tmp_path / "plain.parquet")
    spec = ParquetImages(root=str(tmp_path / "plain.parquet"), size=8, label_column="kind")
    assert everything(spec.load()) == EXPECTED


def saved(where, numbers):
    """Write a folder as `Dataset.save_to_disk` of `datasets` 5.2 does."""
    where.mkdir(parents=True)
    content = columns(numbers)
    path = str(where / "data-00000-of-00001.arrow")
    with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, content.schema) as writer:
        writer.write_table(content, max_chunksize=5)
    files = [{"filename": "data-00000-of-00001.arrow"}]
    (where / "state.json").write_text(json.dumps({"_data_files": files}))
    return where


def test_a_folder_that_hugging_face_saved_is_read_in_place(tmp_path, kdlab_home):
    saved(tmp_path / "set" / "train", range(20))
    saved(tmp_path / "set" / "validation", range(20, 24))
    data = ParquetImages(root=str(tmp_path / "set"), size=8, kept="encoded").load()
    assert everything(data) == EXPECTED
    assert len(data.validation) == 4
    holders = data.inputs.store.index.facts.holders
    assert all(place.startswith(str(tmp_path)) for place in holders)  # nothing was copied


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pa.table({"x": [1]}), "which of them has images"),
        (lambda: pa.table({"image": [1]}), "not encoded images"),
        (
            lambda: pa.table({"image": [b"", None]}),
            "1 images of column image are missing",
        ),
    ],
)
def test_what_is_no_table_of_images_is_refused(tmp_path, make, words):
    pq.write_table(make(), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=words):
        ParquetImages(root=str(tmp_path / "t.parquet"), size=8).load()


def test_a_pattern_that_finds_nothing_is_named(tmp_path):
    with pytest.raises(DataError, match=r"train-\*\.tar matches nothing"):
        WebDataset(root=str(tmp_path / "train-*.tar")).load()
    with pytest.raises(DataError, match="does not exist"):
        ImageFolder(root=str(tmp_path / "absent")).load()


def test_roots_of_a_test_are_another_set_than_roots_of_all(photos):
    """Once, the decoded set of all roots was used for it, and test images were trained on."""
    for name in ("one", "two"):
        for k in range(8):
            path = photos / name / "ab"[k % 2] / f"{k}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg(SHADES[k] + 5 * (name == "two")))
    both = str(photos / "one"), str(photos / "two")
    assert len(ImageFolder(root=both, size=8).load().labels) == 16
    apart = ImageFolder(root=both[0], test_root=both[1], size=8).load()
    assert len(apart.test) == 8
    assert not set(apart.test) & set(apart.train)


def test_an_image_of_a_list_that_was_changed_is_decoded_again(photos):
    path = table(photos / "all.csv", ("path", "label", "split"), rows())
    spec = ImageList(root=str(path), size=8)
    before = spec.load().digest
    image = photos / "0" / "000.jpg"
    image.write_bytes(jpeg(250))
    os.utime(image, ns=(1, 1))
    assert spec.load().digest != before


def test_classes_of_a_hub_have_its_numbers(tmp_path):
    features = {"label": {"names": ["dog", "cat"], "_type": "ClassLabel"}}
    content = pa.table(
        {"image": [jpeg(s) for s in SHADES], "label": [k % 2 for k in range(24)]}
    )
    facts = {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(content.replace_schema_metadata(facts), tmp_path / "t.parquet")
    data = ParquetImages(root=str(tmp_path / "t.parquet"), size=8).load()
    assert data.classes == ("dog", "cat")
    assert sorted(set(data.labels)) == [0, 1]
    floats = content.set_column(1, "label", pa.array([float(k % 12) for k in range(24)]))
    pq.write_table(floats, tmp_path / "f.parquet")
    numbers = ParquetImages(root=str(tmp_path / "f.parquet"), size=8).load()
    assert numbers.classes == tuple(map(str, range(12)))


@pytest.mark.parametrize("form", ["decoded", "encoded"])
def test_images_without_a_label_are_for_training_alone(photos, form):
    def split(k):
        return "test" if k < 8 else "train"

    listed = [(name, "" if k % 4 == 0 else label, part)
            for k, (name, label, part) in enumerate(rows(split))]  # fmt: skip
    path = table(photos / "all.csv", ("path", "label", "split"), listed)
    lines = []
    data = ImageList(root=str(path), size=8, kept=form).load(lines.append)
    assert "2 images of validation and test have no label: left out." in lines
    assert len(data.test) == 6
    assert data.unlabelled == 4
    assert (data.labels[data.validation] >= 0).all()
    drawn = replace(data, sampling=Sampling(balance=1.0))
    ids = Sampler(drawn.sampling, data.labels).epoch(0, 0, data.train)
    shown = np.bincount(data.labels[drawn.rows(ids)] + 1, minlength=3)
    assert shown.min() > 0


def test_what_turns_out_to_be_broken_while_it_is_decoded_is_left_out(photos):
    (photos / "0" / "000.jpg").unlink()
    raw = io.BytesIO()
    Image.new("RGB", (64, 64), (200, 0, 0)).save(raw, "PNG")
    (photos / "0" / "broken.png").write_bytes(raw.getvalue()[:120])
    lines = []
    data = ImageFolder(root=str(photos), size=8, broken="skip").load(lines.append)
    assert "1 of 24 images cannot be decoded and are skipped." in lines
    used = np.concatenate([data.train, data.validation, data.test])
    assert len(used) == 23


def test_what_follows_a_photo_does_not_make_it_a_broken_one(photos):
    """Phones append a film."""
    path = photos / "0" / "000.jpg"
    path.write_bytes(path.read_bytes() + b"film" * 5000)
    assert len(ImageFolder(root=str(photos), size=8).load().labels) == 24
    path.write_bytes(path.read_bytes()[:400] + b"film" * 5000)
    os.utime(path.parent, ns=(1, 1))
    with pytest.raises(DataError, match="is cut off"):
        ImageFolder(root=str(photos), size=8).load()


def test_a_table_that_is_none_is_named(photos):
    for name, text in (
        ("a.csv", 'path,label\n"' + "x" * 200_000 + '",cat\n'),
        ("b.csv", ""),
    ):
        (photos / name).write_text(text)
        with pytest.raises(DataError, match=name):
            ImageList(root=str(photos / name), size=8).load()
    (photos / "c.csv").write_text("path,label\nx\x00.jpg,cat,more,cells\n")
    with pytest.raises(DataError, match=r"1 of 1 images"):
        ImageList(root=str(photos / "c.csv"), size=8).load()


def test_a_csv_is_read_as_tables_are_written(photos):
    """Blanks, line ends inside of cells, an Excel that was set to semicolons."""
    paths = [name for name, *_ in rows()]
    (photos / "a\u2028b.jpg").write_bytes((photos / paths[0]).read_bytes())
    lines = [" path ; label ; split"] + [
        f"{p}; {label_of(k)};Train " for k, p in enumerate(paths)
    ]
    lines[1] = "a\u2028b.jpg;cat;test"
    lines.insert(5, "")
    (photos / "all.csv").write_text("\r\n".join(lines), encoding="utf-8", newline="")
    spec = ImageList(root=str(photos / "all.csv"), size=8)
    data = spec.load()
    assert everything(data) == EXPECTED
    assert data.classes == NAMES
    assert (len(data.test), len(data.labels)) == (1, 24)
    assert (
        "split taken from your data: Train, test; drawn with seed 0: 2 of train for validation"
        in (spec.notes(data))
    )


@pytest.mark.parametrize(
    ("again", "words"),
    [
        (
            ("0/000.jpg", "dog", "train"),
            r"lists 0/000\.jpg twice, as cat, train and dog, train",
        ),
        (("0/../0/000.jpg", "cat", "test"), "twice, as cat, train and cat, test"),
        (("0/000.jpg", "", "train"), "twice, as cat, train and no label, train"),
    ],
)
def test_an_image_of_two_classes_or_splits_is_refused(photos, again, words):
    path = table(photos / "all.csv", ("path", "label", "split"), [*rows(), again])
    with pytest.raises(DataError, match=words):
        ImageList(root=str(path), size=8).load()


def test_a_row_that_says_the_same_again_is_counted_once(photos):
    path = table(photos / "all.csv", ("path", "label", "split"), [*rows(), rows()[3]])
    spec = ImageList(root=str(path), size=8)
    data = spec.load()
    assert len(data.labels) == 24
    assert "left out, a row that lists an image again: 1 (0/003.jpg)" in spec.notes(data)


def test_a_folder_that_a_table_lists_is_no_image(photos):
    path = table(
        photos / "all.csv",
        ("path", "label"),
        [(p, c) for p, c, _ in rows()] + [("", "cat")],
    )
    with pytest.raises(DataError, match="1 of 25 images"):
        ImageList(root=str(path), size=8).load()


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (
            {"label": [[k % 2] for k in range(24)]},
            r"has \[0\] as a label, but an image has one",
        ),
        ({"label": [{"id": k % 2} for k in range(24)]}, r"has \{'id': 0\} as a label"),
        (
            {"image": [{"data": {"raw": jpeg(s)}} for s in SHADES]},
            "column image has struct<data: struct<raw: binary>>, not encoded images",
        ),
    ],
)
def test_a_column_of_parquet_of_another_shape_is_named(tmp_path, column, words):
    plain = {"image": [jpeg(s) for s in SHADES], "label": [k % 2 for k in range(24)]}
    pq.write_table(pa.table(plain | column), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=words):
        ParquetImages(root=str(tmp_path / "t.parquet"), size=8).load()


def test_a_sample_without_its_label_is_left_out_and_named(tmp_path):
    def files(k):
        if k == 5:
            return {"JPG": jpeg(SHADES[k]), "txt": b"a caption"}
        return {"JPG": jpeg(SHADES[k]), "CLS": str(k % 2).encode()}

    path = shard(tmp_path / "all.tar", range(24), files)
    spec = WebDataset(root=str(path), size=8, classes=NAMES)
    data = spec.load()
    assert everything(data) == EXPECTED - {(50, "dog")}
    assert (
        "left out, a sample without its label (cls): 1 (all.tar: part/0005)"
        in spec.notes(data)
    )


def test_json_beside_an_image_that_is_nested_without_end_is_no_label(tmp_path):
    deep = b"[" * 100_000
    path = shard(tmp_path / "all.tar", range(4), lambda k: {"jpg": jpeg(0), "json": deep})
    with pytest.raises(DataError, match="has no entry kind"):
        WebDataset(root=str(path), size=8, label="json.kind").load()
    where = saved(tmp_path / "set" / "train", range(20))
    for text in (deep.decode(), "[]", '{"_data_files": 3}', "{}"):
        (where / "state.json").write_text(text)
        with pytest.raises(DataError, match=r"state\.json|cannot be read"):
            ParquetImages(root=str(tmp_path / "set"), size=8).load()


def test_a_parquet_file_is_read_by_what_it_holds(photos, tmp_path):
    names, labels, _ = zip(*rows(), strict=True)
    pq.write_table(pa.table({"image": names, "label": labels}), photos / "paths.parquet")
    pq.write_table(columns(range(24)), tmp_path / "bytes.parquet")
    assert kind_of(str(photos / "paths.parquet")) == "data/image_list"
    assert kind_of(str(tmp_path / "bytes.parquet")) == "data/parquet"
    spec = ImageList(root=str(photos / "paths.parquet"), size=8)
    assert everything(spec.load()) == EXPECTED


def test_a_folder_without_files_of_the_kind_says_which_are_read(tmp_path):
    (tmp_path / "notes.md").write_text("none here")
    words = r"holds no images in \.parquet or \.arrow files: .*\.md"
    with pytest.raises(DataError, match=words):
        ParquetImages(root=str(tmp_path), size=8).load()
