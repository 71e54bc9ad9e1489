"""Check that a teacher fits the data of an experiment."""

from kdlab.data.images import ImageData
from kdlab.errors import ModelError
from kdlab.models.bare import bare
from kdlab.models.model import check_fit
from kdlab.train.teacher import TeacherSpec, begin_with
from kdlab.train.teacher_classes import cut_to, named, names_beside


def check(spec: TeacherSpec, data: ImageData) -> None:
    """Check before a start that the teacher fits this data.

    Raises:
        ModelError: the number of classes or the shape of the images does not fit.
        WeightsError: the weights file is missing, damaged, or of another network.
    """
    if spec.headless:
        network = bare(spec.model, data.shape[0])
        check_fit(network, data.shape, 0, f"the teacher {spec.called}")
        return
    trained_on = None if spec.data is None else spec.data.load()
    known = () if trained_on is None else trained_on.classes
    if spec.model.weights is not None:
        known = names_beside(spec.model.weights_path())
    names = named(spec.classes, known, data)
    if trained_on is not None:
        name = trained_on.name
        if names is None and len(trained_on.classes) != len(data.classes):
            raise ModelError(
                f"The teacher is trained on {name} with {len(trained_on.classes)} classes, the "
                f"student's data {data.name} has {len(data.classes)}: the number of classes "
                "differs, so its soft labels mean nothing here. Choose a teacher of the "
                "same data set, or say what its classes are (teacher.classes)."
            )
        if trained_on.shape[0] != data.shape[0]:
            raise ModelError(
                f"The teacher is trained on {name} with {trained_on.shape[0]} channels, the "
                f"student's data {data.name} has {data.shape[0]}. Give both the same channels."
            )
    count = len(names or data.classes)
    model = spec.model.build(count, data.shape[0])
    check_fit(model, data.shape, count, "the teacher")
    begin_with(spec, model, data)
    if names is not None:
        cut_to(model, names, data)
