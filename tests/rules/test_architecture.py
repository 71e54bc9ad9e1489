"""`docs/architecture.md` agrees with the code."""

from dataclasses import replace

import pytest
from rules import budgets, house, printed
from rules.budgets import FILE


def test_the_page_is_as_it_is_printed():
    text = printed.PAGE.read_text()
    assert text == printed.page(text, budgets.read(FILE.read_text())), "make house"
    assert [block[2] for block in printed.BLOCK.finditer(text)] == ["rooms", "long"]


def test_each_room_has_its_line_in_the_layers():
    named = [name for layer in house.layers() for name in layer]
    assert len(named) == len(set(named))
    rooms = {name.removesuffix(".py") for name in house.rooms()}
    assert rooms == {*named, house.BESIDE.name}


def test_each_folder_says_what_it_is():
    folders = {path.parent for path in house.FILES}
    assert all((folder / "__init__.py").exists() for folder in folders)
    for folder in folders:
        root = house.ROOT if folder.is_relative_to(house.BESIDE) else house.KDLAB
        assert house.about(folder.relative_to(root)).strip()


@pytest.fixture
def elsewhere_in_a_copy(tmp_path, monkeypatch):
    """Copies of the table and the page, which the command may overwrite."""
    for module, name in ((budgets, "FILE"), (printed, "PAGE")):
        copy = tmp_path / getattr(module, name).name
        copy.write_text(getattr(module, name).read_text())
        monkeypatch.setattr(module, name, copy)
    return budgets.read(budgets.FILE.read_text())


def test_make_house_lowers_and_prints(elsewhere_in_a_copy, monkeypatch):
    table = elsewhere_in_a_copy
    less = table.rooms | {"events": table.rooms["events"].lowered(900)}
    now = replace(table, rooms=less, long_files={}, untested=[])
    monkeypatch.setattr(budgets, "counted", lambda: now)
    with pytest.raises(SystemExit) as ended:
        printed.main()
    assert ended.value.code is None
    assert budgets.read(budgets.FILE.read_text()) == now
    assert " events/                    900  Events of" in printed.PAGE.read_text()
    assert "distil_reader.py` |" not in printed.PAGE.read_text()


def test_make_house_says_what_is_over(elsewhere_in_a_copy, monkeypatch):
    table = elsewhere_in_a_copy
    more = table.rooms | {"events": budgets.Row(table.rooms["events"].most + 7)}
    now = replace(table, rooms=more, named_twice=[*table.named_twice, "Part"])
    monkeypatch.setattr(budgets, "counted", lambda: now)
    with pytest.raises(SystemExit) as ended:
        printed.main()
    assert "events: " in ended.value.code
    assert "7 more than its budget\nPart: new in named_twice" in ended.value.code
    assert budgets.read(budgets.FILE.read_text()) == table
