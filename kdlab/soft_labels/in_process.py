"""Online, as the papers call it: the teacher runs in the student's process, in turn."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from kdlab.config import register
from kdlab.soft_labels.source import LocalSource, SourceContext, SourceSpec


@register("soft_labels/in_process")
@dataclass(frozen=True, kw_only=True)
class InProcess(SourceSpec):
    """Online: the teacher computes labels in the student's process before each step."""

    needs_teacher: ClassVar[Literal["none", "in_process", "served"]] = "in_process"

    def build(self, context: SourceContext) -> LocalSource:
        assert context.load_teacher is not None
        infer = context.load_teacher().infer
        return LocalSource(context.samples, lambda batch, view: infer(batch.views))
