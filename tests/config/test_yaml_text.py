import pytest

from kdlab.config.yaml_text import parse_value, read
from kdlab.errors import BadInput


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("2", 2),
        ("-.5", -0.5),
        ("no", "no"),
        ("true", True),
        ("null", None),
        ("[1, a]", [1, "a"]),
        ("2026-01-01", "2026-01-01"),
        ("1_000", 1000),
        (".inf", float("inf")),
    ],
)
def test_values(text, value):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


def written(tmp_path, text):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    return read(path, "x.yaml")


@pytest.mark.parametrize(
    "text", ["[1", "!!python/name:os.system", "!!int abc", "a: &x [*x]", "\x01"]
)
def test_a_value_that_is_no_plain_yaml_is_bad_input(text):
    with pytest.raises(BadInput, match="cannot be read"):
        parse_value(text)


@pytest.mark.parametrize(
    "raw",
    [b"a: \xff\xfe", b"a: \x01", b"a: &x [1]\nb: *x\n", b"a: &x [*x]", b"a: !!int abc"],
)
def test_a_file_that_is_no_plain_yaml_is_one_fault(tmp_path, raw):
    path = tmp_path / "x.yaml"
    path.write_bytes(raw)
    assert len(read(path, "x.yaml").faults) == 1


@pytest.mark.parametrize("text", ["5", "[1]", "null", "word"])
def test_a_file_that_is_no_mapping_is_one_fault(tmp_path, text):
    document = written(tmp_path, text)
    assert document.data == {}
    assert ["must be a mapping" in fault.message for fault in document.faults] == [True]


def test_as_many_digits_as_a_text_may_have_are_read_at_once():
    # Where two parts of the pattern may match the same digits, this takes minutes.
    text = "9" * 100_000 + "x"
    assert parse_value(text) == text


def test_remembers_lines(tmp_path):
    document = written(tmp_path, "a: 1\nb:\n  c: 2\n  d: [3]\n")
    assert document.origins["a"] == "x.yaml:1"
    assert document.origins["b.c"] == "x.yaml:3"


def test_a_key_written_twice_is_a_fault(tmp_path):
    (fault,) = written(tmp_path, "a: 1\nb: 2\na: 3\n").faults
    assert (fault.key, fault.origin) == ("a", "x.yaml:3")


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system [ls]", "!!python/name:os.system"]
)
def test_a_python_tag_is_refused(tmp_path, tag):
    (fault,) = written(tmp_path, f"a: {tag}\n").faults
    assert "tag could run code" in fault.message


def test_broken_yaml_names_its_line(tmp_path):
    (fault,) = written(tmp_path, "a: 1\nb: [1\n").faults
    assert fault.origin.startswith("x.yaml:")
    assert "not valid YAML" in fault.message
