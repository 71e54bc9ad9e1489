"""Online, as the papers call it: the teacher runs in the student's process, in turn."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from kdlab.config import register
from kdlab.soft_labels.none import NoTeacherSource
from kdlab.soft_labels.source import (
    Batch,
    LoadedTeacher,
    LocalSource,
    SourceContext,
    SourceSpec,
)


@register("soft_labels/in_process")
@dataclass(frozen=True, kw_only=True)
class InProcess(SourceSpec):
    """Online: the teacher answers in the student's own process before each step."""

    needs_teacher: ClassVar[Literal["none", "in_process", "served"]] = "in_process"

    def build(self, context: SourceContext) -> "InProcessSource":
        assert context.load_teacher is not None
        return InProcessSource(NoTeacherSource(context.samples), context.load_teacher())


class InProcessSource(LocalSource):
    def __init__(self, plain: NoTeacherSource, teacher: LoadedTeacher) -> None:
        self.plain, self.teacher = plain, teacher

    def epoch(self, epoch: int, done: Collection[int]) -> Iterator[Batch]:
        for batch in self.plain.epoch(epoch, done):
            yield replace(batch, soft=self.teacher.infer(batch.views))
