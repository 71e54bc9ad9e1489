"""A sealed folder: any damage of any file in it is noticed."""

import json
import os
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kdlab.config.seal import META, DamagedFolder, check, seal, sealed

FACTS = {"classes": ["a", "ü"], "digest": "0123", "views": 3, "none": None}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "inputs.npy").write_bytes(bytes(range(256)) * 20)
    (tmp_path / "labels.npy").write_bytes(b"labels" * 50)
    seal(tmp_path, ("inputs.npy", "labels.npy"), FACTS)
    return tmp_path


def test_what_was_sealed_is_read_back(folder):
    assert check(folder, hashes=True) == check(folder, hashes=False) == FACTS


def test_a_folder_without_a_seal_is_none(tmp_path):
    assert not sealed(tmp_path)
    with pytest.raises(DamagedFolder, match=r"meta\.json cannot be read"):
        check(tmp_path, hashes=False)


@settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=500,
)
@given(st.data())
@pytest.mark.long
def test_every_damage_is_noticed(folder, data):
    name = data.draw(st.sampled_from(["inputs.npy", "labels.npy", META]))
    path = folder / name
    intact = path.read_bytes()
    at = data.draw(st.integers(0, len(intact) - 1))
    how = data.draw(st.sampled_from(["flip", "cut", "zero", "grow", "swap"]))
    damaged = {
        "flip": intact[:at]
        + bytes([intact[at] ^ data.draw(st.integers(1, 255))])
        + intact[at + 1 :],
        "cut": intact[:at],
        "zero": intact[:at] + bytes(len(intact) - at),
        "grow": intact[:at] + b"\0" + intact[at:],
        "swap": intact[at:] + intact[:at],
    }[how]
    if damaged == intact:
        return
    (folder / "checked.json").unlink(missing_ok=True)
    try:
        path.write_bytes(damaged)
        # White space of the JSON is no part of what it says.
        if name == META and _says_the_same(intact, damaged):
            return
        with pytest.raises(DamagedFolder):
            check(folder, hashes=True)
    finally:
        path.write_bytes(intact)


def _says_the_same(original, damaged):
    try:
        return json.loads(original) == json.loads(damaged)
    except ValueError:
        return False


def test_a_check_counts_for_other_processes_until_a_file_changes(folder):
    check(folder, hashes=True)
    path = folder / "inputs.npy"
    stat = path.stat()
    raw = bytearray(path.read_bytes())
    raw[random.Random(3).randrange(len(raw))] ^= 1
    path.write_bytes(raw)
    os.utime(
        path, ns=(stat.st_atime_ns, stat.st_mtime_ns)
    )  # as if nothing had been written
    with pytest.raises(DamagedFolder, match="differs from its hash"):
        check(folder, hashes=True)


def test_of_an_earlier_version(folder):
    (folder / META).write_text('{"classes": [], "digest": "x"}')
    with pytest.raises(DamagedFolder, match="no seal"):
        check(folder, hashes=False)
