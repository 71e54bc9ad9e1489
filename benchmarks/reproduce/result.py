"""A kept result of a reproduction, as a card of benchmarks/results."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kdlab.config import register
from kdlab.config.spec import Spec


@register("reproduce/result")
@dataclass(frozen=True, kw_only=True)
class KeptResult(Spec):
    """What a reproduction came to, once: `kdlab reproduce NAME --keep` writes it.

    name, source, command: what it is, of which paper, and how it was made.
    seconds: it took.
    machine, versions: where.
    commit, code: of kdlab; hashes of the parts that the measured numbers speak of.
    published_of: models and data that the published numbers are of.
    measurement: seeds and hash of the spec, where an experiment was run.
    scaled, notes: as the reproduction says.
    rows: published, simulated, what that is, and measured.
    """

    name: str
    source: str
    command: str
    seconds: float
    machine: Mapping[str, Any]
    versions: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]
    commit: str = ""
    code: Mapping[str, str] = field(default_factory=dict)
    published_of: str = ""
    measurement: Mapping[str, Any] = field(default_factory=dict)
    scaled: str = ""
    notes: tuple[str, ...] = ()
