"""Dataclasses and frozen structs where they cross a process border: JSON, checked on arrival.

A configuration, an order, an answer or a result is one on both sides. What lies between,
a pipe, Dask's RPC or a file, holds its fields as JSON does; fields that the reader does not know
are left out, and a missing or a wrong one is an error that names it.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar, dataclass_transform

import msgspec

from kdlab.errors import KdlabError

T = TypeVar("T")
# Numbers as they may be where they are read, in a field; NaN and infinity are none.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
LARGEST = 8 * 2**20  # bytes of JSON; "[]," again and again takes 24 times that in memory
_DEEPEST = 100  # objects and lists in each other


class MessageError(KdlabError):
    """What another process, or a file, says cannot be read as what it should be."""


def to_builtins(value: object) -> Any:
    """A dataclass or struct (or what holds some) as JSON has it."""
    return msgspec.to_builtins(value, enc_hook=_written)


def to_dict(value: object) -> dict[str, object]:
    """A dataclass or struct as JSON, without what is not known."""
    return {name: fact for name, fact in to_builtins(value).items() if fact is not None}


def from_builtins(kind: type[T], facts: object) -> T:
    """The inverse of `to_builtins`.

    Raises:
        MessageError: a field is missing or of another type; names it.
    """
    try:
        return msgspec.convert(facts, kind, dec_hook=_read, str_keys=True)
    except (msgspec.ValidationError, ValueError) as error:  # ValueError: its own checks
        raise MessageError(f"This is no {kind.__name__}: {error}") from error


def from_json(kind: type[T], said: bytes) -> T:
    """The inverse of `to_builtins`, from JSON in UTF-8 of whoever wrote it.

    Raises:
        MessageError: it is too long, nested too deeply or no JSON; or as of `from_builtins`.
    """
    try:
        if len(said) > LARGEST:
            raise ValueError(f"it has more than {LARGEST:,} bytes")
        facts = json.loads(said.decode())
        if said.count(b"[") + said.count(b"{") > _DEEPEST < _depth(facts):
            raise RecursionError
    except RecursionError:
        raise MessageError("It is nested too deeply") from None
    except ValueError as error:
        raise MessageError(f"It is no JSON: {error}") from error
    return from_builtins(kind, facts)


def _depth(facts: Any) -> int:
    """Objects and lists in each other, of what is one."""
    level, depth = [facts], 0
    while level:
        inner = (
            v for one in level for v in (one.values() if isinstance(one, dict) else one)
        )
        level, depth = [v for v in inner if isinstance(v, dict | list)], depth + 1
    return depth


def to_msgpack(value: object) -> bytes:
    """What `to_builtins` takes, as MessagePack: small, and exact for every float."""
    return msgspec.msgpack.encode(value, enc_hook=_written)


def from_msgpack(kind: type[T], said: bytes) -> T:
    """The inverse of `to_msgpack`.

    Raises:
        MessageError: it is no MessagePack, a field is missing or of another type; names it.
    """
    try:
        return msgspec.msgpack.decode(said, type=kind, dec_hook=_read)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MessageError(f"This is no {kind}: {error}") from error


def part_of(whole: object, kind: type[T]) -> T:
    """A dataclass out of what has all of its fields, and others."""
    return kind(**{f.name: getattr(whole, f.name) for f in fields(kind)})  # type: ignore[arg-type]  # it is one


def snake(name: str) -> str:
    """The name of a class as a kind in a file: GoOn is go_on."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class TaggedMeta(msgspec.StructMeta):
    """Makes classes that know those below them by their tags."""

    KINDS: dict[str, type[Any]]

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **config: Any
    ) -> Any:
        made: Any = super().__new__(mcs, name, bases, namespace, **config)
        made.KIND, made.KINDS = made.__struct_config__.tag or "", {}
        for base in made.__mro__[1:]:
            if made.KIND and isinstance(base, TaggedMeta):
                # Of two classes of one name the newer counts: a notebook cell may run twice.
                base.KINDS[made.KIND] = made
        return made


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Tagged(msgspec.Struct, metaclass=TaggedMeta, frozen=True, tag_field="kind", tag=True):
    """What travels under the name of its class beside its fields, as `to_builtins` has it.

    Classes below one of these are told apart by it.
    """

    KIND: ClassVar[str]  # its own tag
    KINDS: ClassVar[dict[str, type[Any]]]  # below it, by their tags

    @classmethod
    def from_builtins(cls, facts: Mapping[str, object]) -> Self:
        """The inverse of `to_builtins`, of whichever class below this one it was.

        Raises:
            MessageError: it is none of these, or lacks a field.
        """
        name = str(facts.get(str(cls.__struct_config__.tag_field)))
        if name not in cls.KINDS:
            raise MessageError(
                f"{name!r} is none of {', '.join(cls.KINDS)}: the two processes "
                "are of different versions of kdlab."
            )
        found: Self = from_builtins(cls.KINDS[name], facts)
        return found


def _written(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):  # os.environ
        return dict(value)
    raise TypeError(f"{type(value).__name__} does not cross processes")


def _read(kind: type, value: object) -> object:
    if kind is object:  # whoever reads the field checks it
        return value
    if kind is Path:
        return Path(str(value))
    raise TypeError(f"{kind.__name__} does not cross processes")
