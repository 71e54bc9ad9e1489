"""`docs/architecture.md` says of the code what the code says of itself."""

from rules import budgets, house, printed
from rules.budgets import FILE


def test_the_page_is_as_it_is_printed():
    text = printed.PAGE.read_text()
    assert text == printed.page(text, budgets.read(FILE.read_text())), "make house"
    assert [block[2] for block in printed.BLOCK.finditer(text)] == ["rooms", "long"]


def test_each_room_has_its_line_in_the_layers():
    named = [name for layer in house.layers() for name in layer]
    assert len(named) == len(set(named))
    assert {name.removesuffix(".py") for name in house.rooms()} == set(named)


def test_each_folder_says_what_it_is():
    folders = {path.parent for path in house.FILES}
    assert all((folder / "__init__.py").exists() for folder in folders)
    for folder in folders:
        assert house.about(folder.relative_to(house.KDLAB)).strip()
