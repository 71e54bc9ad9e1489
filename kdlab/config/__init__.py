"""YAML to specs: components by name, cards, overrides, every fault at once."""

from kdlab.config.registry import register
from kdlab.config.spec import Range, Spec
from kdlab.errors import Fault, SpecError

__all__ = ["Fault", "Range", "Spec", "SpecError", "register"]
