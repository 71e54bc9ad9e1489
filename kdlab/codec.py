"""Serialisation of dataclasses and frozen structs between processes: JSON, checked on arrival.

A configuration, an order, an answer or a result is a dataclass or struct on both sides. In between,
a pipe, Dask's RPC or a file holds its fields as JSON. Fields that the receiver does not know are
ignored; a missing or a wrong field raises an error that names it.
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
# Bounded numbers for fields of messages; NaN and infinity are refused.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
LARGEST = 8 * 2**20  # bytes of JSON; "[]," again and again takes 24 times that in memory
_DEEPEST = 100  # nested objects and lists


class MessageError(KdlabError):
    """A message of another process, or a file, does not have the expected form."""


def to_builtins(value: object) -> Any:
    """Convert a dataclass or struct, or a container of them, to JSON's types."""
    return msgspec.to_builtins(value, enc_hook=_encode)


def to_dict(value: object) -> dict[str, object]:
    """Convert a dataclass or struct to JSON's types, without fields that are None."""
    return {name: fact for name, fact in to_builtins(value).items() if fact is not None}


def from_builtins(kind: type[T], facts: object) -> T:
    """Build a `kind` from JSON's types: the inverse of `to_builtins`.

    Raises:
        MessageError: a field is missing or of another type; names it.
    """
    try:
        return msgspec.convert(facts, kind, dec_hook=_decode, str_keys=True)
    except (msgspec.ValidationError, ValueError) as error:  # ValueError: its own checks
        raise MessageError(f"This is no {kind.__name__}: {error}") from error


def from_json(kind: type[T], data: bytes) -> T:
    """Build a `kind` from untrusted JSON in UTF-8.

    Raises:
        MessageError: it is too long, nested too deeply or no JSON; or see `from_builtins`.
    """
    try:
        if len(data) > LARGEST:
            raise ValueError(f"it has more than {LARGEST:,} bytes")
        facts = json.loads(data.decode())
        if data.count(b"[") + data.count(b"{") > _DEEPEST < _depth(facts):
            raise RecursionError
    except RecursionError:
        raise MessageError("It is nested too deeply") from None
    except ValueError as error:
        raise MessageError(f"It is no JSON: {error}") from error
    return from_builtins(kind, facts)


def _depth(facts: Any) -> int:
    """Depth of nested objects and lists."""
    level, depth = [facts], 0
    while level:
        inner = (
            v for one in level for v in (one.values() if isinstance(one, dict) else one)
        )
        level, depth = [v for v in inner if isinstance(v, dict | list)], depth + 1
    return depth


def to_msgpack(value: object) -> bytes:
    """Encode what `to_builtins` takes as MessagePack: small, and exact for every float."""
    return msgspec.msgpack.encode(value, enc_hook=_encode)


def from_msgpack(kind: type[T], data: bytes) -> T:
    """Build a `kind` from MessagePack: the inverse of `to_msgpack`.

    Raises:
        MessageError: it is no MessagePack, a field is missing or of another type; names it.
    """
    try:
        return msgspec.msgpack.decode(data, type=kind, dec_hook=_decode)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MessageError(f"This is no {kind}: {error}") from error


def part_of(value: object, kind: type[T]) -> T:
    """Build a dataclass from an object that has all of its fields, and more."""
    return kind(**{f.name: getattr(value, f.name) for f in fields(kind)})  # type: ignore[arg-type]  # it is one


def snake(name: str) -> str:
    """Convert the name of a class to a kind in a file: GoOn is go_on."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class TaggedMeta(msgspec.StructMeta):
    """Metaclass of tagged classes: each class has its subclasses by tag in KINDS."""

    KINDS: dict[str, type[Any]]

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **config: Any
    ) -> Any:
        kind: Any = super().__new__(mcs, name, bases, namespace, **config)
        kind.KIND, kind.KINDS = kind.__struct_config__.tag or "", {}
        for base in kind.__mro__[1:]:
            if kind.KIND and isinstance(base, TaggedMeta):
                # Of two classes with one name the newer counts: a notebook cell may run twice.
                base.KINDS[kind.KIND] = kind
        return kind


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Tagged(msgspec.Struct, metaclass=TaggedMeta, frozen=True, tag_field="kind", tag=True):
    """Base of structs that are serialised with the name of their class beside their fields.

    The name tells the subclasses of one base apart.
    """

    KIND: ClassVar[str]  # tag of this class
    KINDS: ClassVar[dict[str, type[Any]]]  # subclasses by tag

    @classmethod
    def from_builtins(cls, facts: Mapping[str, object]) -> Self:
        """Build the subclass that the tag names: the inverse of `to_builtins`.

        Raises:
            MessageError: no subclass has this tag, or a field is missing.
        """
        name = str(facts.get(str(cls.__struct_config__.tag_field)))
        if name not in cls.KINDS:
            raise MessageError(
                f"{name!r} is none of {', '.join(cls.KINDS)}: the two processes "
                "are of different versions of kdlab."
            )
        value: Self = from_builtins(cls.KINDS[name], facts)
        return value


def _encode(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):  # os.environ
        return dict(value)
    raise TypeError(f"{type(value).__name__} does not cross processes")


def _decode(kind: type, value: object) -> object:
    if kind is object:  # whoever reads the field checks it
        return value
    if kind is Path:
        return Path(str(value))
    raise TypeError(f"{kind.__name__} does not cross processes")
