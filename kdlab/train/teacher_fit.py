"""Whether a teacher can serve an experiment's data, found before anything is started."""

from kdlab.data.images import ImageData
from kdlab.errors import ModelError
from kdlab.models.bare import bare
from kdlab.models.model import check_fit
from kdlab.train.teacher import TeacherSpec, begin_with
from kdlab.train.teacher_classes import cut_to, named, names_beside


def check(spec: TeacherSpec, data: ImageData) -> None:
    """Whether the teacher can serve this data, before anything is started.

    Raises:
        ModelError: another number of classes, or images it cannot take.
        WeightsError: a weights file that is missing, damaged or foreign.
    """
    if spec.headless:
        check_fit(
            bare(spec.model, data.shape[0]), data.shape, 0, f"the teacher {spec.called}"
        )
        return
    own = None if spec.data is None else spec.data.load()
    known = () if own is None else own.classes
    if spec.model.weights is not None:
        known = names_beside(spec.model.weights_path())
    names = named(spec.classes, known, data)
    if own is not None:
        if names is None and len(own.classes) != len(data.classes):
            raise ModelError(
                f"The teacher is trained on {own.name} with {len(own.classes)} classes, the "
                f"student's data {data.name} has {len(data.classes)}: the number of classes "
                "differs, so its soft labels mean nothing here. Choose a teacher of the "
                "same data set, or say what its classes are (teacher.classes)."
            )
        if own.shape[0] != data.shape[0]:
            raise ModelError(
                f"The teacher is trained on {own.name} with {own.shape[0]} channels, the "
                f"student's data {data.name} has {data.shape[0]}. Give both the same channels."
            )
    count = len(names or data.classes)
    model = spec.model.build(count, data.shape[0])
    check_fit(model, data.shape, count, "the teacher")
    begin_with(spec, model, data)
    if names is not None:
        cut_to(model, names, data)
