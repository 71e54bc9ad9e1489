"""The reader of kept files: bounds of size and depth, types, ranges; its three ways to be asked."""

import json
import os

import pytest

from kdlab.config.home import find_as, read_as, read_object, recall_as
from kdlab.messages import LARGEST, Amount, Count, MessageError, parsed


def test_what_is_sound_comes_back(tmp_path):
    path = tmp_path / "a.json"
    assert find_as(dict[str, int], path) is None
    path.write_text('{"\u00e9": 1}')
    assert find_as(dict[str, int], path) == read_as(dict[str, int], path) == {"\u00e9": 1}
    path.write_text(json.dumps({"a": [[]] * 1_000}))  # wide, not deep
    assert len(read_as(dict[str, list[object]], path)["a"]) == 1_000
    with pytest.raises(MessageError, match=r"b\.json is missing\. Make it\."):
        read_as(dict[str, int], tmp_path / "b.json", "Make it.")


@pytest.mark.parametrize(("depth", "holds"), [(100, True), (101, False), (900, False)])
def test_a_hundred_in_each_other_are_read(depth, holds):
    said = b"[" * depth + b"]" * depth
    if holds:
        assert parsed(list[object], said)
    else:
        with pytest.raises(MessageError, match="nested too deeply"):
            parsed(list[object], said)


@pytest.mark.parametrize("more", [0, 1])
def test_so_many_bytes_are_read_and_no_more(tmp_path, more):
    path = tmp_path / "a.json"
    path.write_bytes(b"{}" + b" " * (LARGEST - 2 + more))
    if more:
        with pytest.raises(ValueError, match=f"more than {LARGEST:,} bytes"):
            read_object(path)
        with pytest.raises(MessageError, match=f"more than {LARGEST:,} bytes"):
            parsed(dict[str, object], path.read_bytes())
    else:
        assert read_object(path) == {}


@pytest.mark.parametrize(
    ("kind", "said"),
    [(Count, b"-1"), (Count, b"1.5"), (Count, b"true"), (Count, b"1e400"), (Count, b"1" * 30),
     (Amount, b"-0.1"), (Amount, b"NaN"), (Amount, b"Infinity"), (Amount, b"1e300"),
     (Amount, b"null")],
)  # fmt: skip
def test_a_number_out_of_its_range_is_none(kind, said):
    with pytest.raises(MessageError):
        parsed(dict[str, kind], b'{"a": ' + said + b"}")


def test_what_can_be_made_anew_is_with_a_line(tmp_path, caplog):
    path = tmp_path / "a.json"
    assert recall_as(dict[str, int], path, "Again.") is None
    assert caplog.text == ""  # there was none
    os.mkfifo(path)
    assert recall_as(dict[str, int], path, "Again.") is None
    assert f"{path} cannot be read: it is no plain file. Again." in caplog.text
