"""Labels on disk are those that were written, or they are made again."""

import numpy as np
import pytest

from kdlab.soft_labels.label_file import (
    GrowingLabels,
    LabelMeta,
    made_by,
    usable,
)

META = LabelMeta(data="d", augment="a", ids="i", teacher="t", views=2, top_k=None)
IDS = np.arange(10, 30)
ENGINE = "eager fp32"
LABELS = np.random.default_rng(0).normal(size=(2, 20, 5)).astype(np.float16)


def grown(folder, views=(0, 1), rows=20):
    labels = GrowingLabels(folder, META, IDS, 5)
    for view in views:
        labels.put(IDS[:rows], view, LABELS[view, :rows].astype(np.float32), ENGINE)
    return labels


def test_filled_labels_are_a_complete_file(tmp_path):
    assert grown(tmp_path).finish()
    assert usable(tmp_path, META, pytest.fail)
    again = GrowingLabels(tmp_path, META, IDS, 5)
    assert again.knows(IDS, 3)
    assert np.array_equal(again.get(IDS, 3), LABELS[1])


@pytest.mark.parametrize("damage", ["zeroed", "cut", "meta", "missing"])
def test_a_damaged_file_is_named_once_and_made_again(tmp_path, damage, caplog):
    grown(tmp_path).finish()
    path = tmp_path / ("meta.json" if damage == "meta" else "logits.npy")
    raw = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "zeroed":
        path.write_bytes(raw[:128] + bytes(len(raw) - 128))
    else:
        path.write_bytes(raw[: len(raw) // 2])
    labels = GrowingLabels(tmp_path, META, IDS, 5)
    assert [r.message for r in caplog.records if "are damaged" in r.message]
    assert not labels.knows(IDS[:1], 0)
    grown(tmp_path).finish()
    lines = []
    assert usable(tmp_path, META, lines.append)
    assert lines == []


def test_a_label_that_was_damaged_while_others_are_filled_counts_as_not_there(tmp_path):
    labels = grown(tmp_path, views=(0,), rows=10)
    assert labels.knows(IDS[:10], 0)
    assert not labels.knows(IDS[:11], 0)
    raw = bytearray((tmp_path / "logits.npy").read_bytes())
    raw[128 + 3 * 5 * 2] ^= 1  # the fourth label of the first view
    (tmp_path / "logits.npy").write_bytes(raw)
    again = GrowingLabels(tmp_path, META, IDS, 5)
    assert again.knows(IDS[:3], 0)
    assert not again.knows(IDS[:4], 0)
    assert again.knows(IDS[4:10], 0)


def test_files_that_another_version_began_are_begun_anew(tmp_path):
    grown(tmp_path, views=(0,))
    np.save(tmp_path / "known.npy", np.ones((2, 20), np.uint8))
    assert not GrowingLabels(tmp_path, META, IDS, 5).knows(IDS[:1], 0)


def test_one_that_is_complete_is_not_written_to(tmp_path):
    late = grown(tmp_path, views=(0,))
    grown(tmp_path).finish()
    late.put(IDS, 1, np.zeros((20, 5), np.float32), ENGINE)
    assert usable(tmp_path, META, pytest.fail)


def test_a_damaged_label_is_never_sealed(tmp_path):
    labels = grown(tmp_path)
    raw = bytearray((tmp_path / "logits.npy").read_bytes())
    raw[-1] ^= 1  # the last label of the last view
    (tmp_path / "logits.npy").write_bytes(raw)
    again = GrowingLabels(tmp_path, META, IDS, 5)
    assert not again.finish()
    assert not again.knows(IDS[-1:], 1)
    again.put(IDS[-1:], 1, LABELS[1, -1:].astype(np.float32), ENGINE)
    assert again.finish()
    assert np.array_equal(GrowingLabels(tmp_path, META, IDS, 5).get(IDS, 1), LABELS[1])
    assert labels.finish()  # a reader that comes late finds it sealed


def test_a_label_that_is_there_is_not_written_again(tmp_path):
    """Another teacher's last bits, while its hash is made, would damage a sealed file."""
    labels = GrowingLabels(tmp_path, META, IDS, 5)
    first = np.arange(10, dtype=np.float32).reshape(2, 5)
    labels.put(IDS[:2], 0, first, ENGINE)
    both = np.stack([first[1] + 0.01, np.full(5, 7, np.float32)])
    labels.put(IDS[1:3], 0, both, ENGINE)  # one that is there, and a new one
    assert labels.get(IDS[:3], 0).tolist() == [*first.tolist(), [7.0] * 5]


def test_each_label_says_which_engine_made_it(tmp_path):
    labels = GrowingLabels(tmp_path, META, IDS, 5)
    full = LABELS.astype(np.float32)
    labels.put(IDS[:3], 0, full[0, :3], "compiled bf16")
    labels.put(IDS, 0, full[0], ENGINE)  # the first three are there
    GrowingLabels(tmp_path, META, IDS, 5).put(IDS, 1, full[1], "onnxruntime fp32")
    assert labels.finish()
    assert made_by(tmp_path) == {"onnxruntime fp32": 20, ENGINE: 17, "compiled bf16": 3}
    raw = (tmp_path / "made_by.npy").read_bytes()
    (tmp_path / "made_by.npy").write_bytes(raw.replace(b"bf16", b"fp32"))
    messages = []
    assert not usable(tmp_path, META, messages.append)
    assert "made_by.npy differs" in messages[0]


def test_a_file_of_before_does_not_say_it(tmp_path):
    assert made_by(tmp_path) == {}
