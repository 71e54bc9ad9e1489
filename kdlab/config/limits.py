"""Size limits of configs: larger ones are a mistake or an attack and are refused."""

from collections.abc import Mapping

from kdlab.errors import short

TEXT = 128 * 1024  # characters of one file or one override; kdlab's largest has 14,000
NODES = 20_000  # values of one spec, cards and references included
DEPTH = 40  # levels of nested lists and mappings
KEY_PARTS = 40  # of a dotted key
NAME = 200  # characters of a config, card, run or key
CARDS = 500  # uses of cards in one spec
_WHOLE = 2**63  # bound of 64 bit integers


def refusal(value: object) -> str | None:
    """Return why a leaf of a tree is refused, or None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int) and not -_WHOLE <= value < _WHOLE:
        return "is a whole number that 64 bits do not hold"
    if isinstance(value, str):
        if "\0" in value:
            return "has a NUL character"
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            return "has half of a surrogate pair: it is no Unicode text"
    return None


def tree_refusal(tree: object) -> str | None:
    """Return why a tree is refused (one built in Python, or grown by references), or None."""
    count = 0
    level = [tree]
    for _ in range(DEPTH + 1):
        count += len(level)
        if count > NODES:
            return f"has more than {NODES:,} values"
        deeper: list[object] = []
        for node in level:
            keys = node if isinstance(node, Mapping) else ()
            for why in (refusal(node), *(key_refusal(key) for key in keys)):
                if why is not None:
                    return why
            if isinstance(node, Mapping):
                deeper += node.values()
            elif isinstance(node, list | tuple):
                deeper += node
            if len(deeper) > NODES:
                return f"has more than {NODES:,} values"
        if not deeper:
            return None
        level = deeper
    return f"has lists or mappings more than {DEPTH} levels deep"


def key_refusal(key: object) -> str | None:
    """Return why a key, dotted or not, is refused, or None."""
    if not isinstance(key, str):
        return f"has the key {short(repr(key), 60)}, which is no text; put it in quotes"
    if len(key) > NAME:
        return f"is a key of {len(key):,} characters; at most {NAME} are allowed"
    if key.count(".") >= KEY_PARTS:
        return f"is a key of {key.count('.') + 1} parts; at most {KEY_PARTS} are allowed"
    return refusal(key)
