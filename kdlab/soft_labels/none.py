"""N-training: the student learns from the true labels alone."""

from dataclasses import dataclass

from kdlab.config import register
from kdlab.soft_labels.source import LocalSource, SourceContext, SourceSpec


@register("soft_labels/none")
@dataclass(frozen=True, kw_only=True)
class NoTeacher(SourceSpec):
    """N-training: no teacher, true labels only. The loss weights do not apply."""

    def build(self, context: SourceContext) -> "NoTeacherSource":
        return NoTeacherSource(context.samples)


class NoTeacherSource(LocalSource):
    """True labels alone."""
