"""Checks in the caller's process, before a run exists."""

from collections.abc import Callable, Iterable

import torch

from kdlab.checks import checked
from kdlab.cluster import notebook_components
from kdlab.config.registry import component_names
from kdlab.data.images import ImageData
from kdlab.errors import BadInput, DataError, ModelError
from kdlab.events.checks import CheckMade
from kdlab.experiment.feature_setup import feature_job
from kdlab.experiment.method import method_of
from kdlab.experiment.setup import TrainingSetup, head_of, network_of, networks_of
from kdlab.experiment.spec import ExperimentSpec
from kdlab.models.model import check_fit
from kdlab.report.check_table import worst_first
from kdlab.run.outputs.data_facts import facts_of
from kdlab.run.rates import machine_facts
from kdlab.train import teacher_fit


def preflight(spec: ExperimentSpec, say: Callable[[str], None]) -> None:
    """Decode the data, build every model, connect to every address; BadInput on a fault."""
    say("checking data, models and addresses")
    needs = {member.source.needs_teacher for member in spec.members()}
    if "served" in needs and spec.teacher_pool is not None:
        spec.teacher_pool.check()  # first: cheapest and most often wrong
    if spec.workers is not None:
        spec.workers.check()
        cells = notebook_components.package_components(component_names(spec.to_dict()))
        refuse_cells(cells, "The spec", "ranks on Dask workers")
    data = _loaded(spec, say)
    if spec.train.schedule == "plateau" and not len(data.validation):
        raise DataError(
            f"train.schedule is plateau, but {data.name} has no validation images. Set "
            "data.validation_share, or take another schedule."
        )
    _refuse_unlabelled(spec, data)
    for source in spec.sources().values():
        source.check(len(data.classes))
    with torch.random.fork_rng():
        teachers = needs - {"none"} or spec.method.needs_teacher
        for member in spec.teachers() if teachers else ():
            teacher_fit.check(member, data)
        if teachers:  # raises for classes that it cannot compare
            blank = torch.zeros((2, len(data.classes)))
            spec.loss.soft(blank, blank, torch.zeros(2, dtype=torch.long))
        if spec.soft_labels.gives_hidden:
            head_of(network_of(spec, data), data)
        try:
            student = spec.student.build(len(data.classes), data.shape[0], refit=True)
            check_fit(student, data.shape, len(data.classes), "the student")
            if spec.train.layer_decay is not None and not hasattr(
                student.net, "group_matcher"
            ):
                raise ModelError(
                    f"train.layer_decay is {spec.train.layer_decay:g}, but "
                    f"{spec.student.component} does not define its layers; timm's models do."
                )
            if spec.features:
                feature_job(spec.features, networks_of(spec, data), student, data)
        except (MemoryError, RuntimeError) as error:  # PyTorch is out of memory
            raise ModelError(
                f"The student {spec.student.component} cannot be built: {error}. Nothing was "
                "started; a smaller width or depth takes less memory."
            ) from error
        setup = TrainingSetup(spec)
        setup.data = data
        method_of(spec).check(setup)


def findings(spec: ExperimentSpec) -> list[CheckMade]:
    """Return findings on data and machine, as a run reports them when it begins."""
    return worst_first(checked(facts_of(spec.data.load()), machine_facts()))


def _loaded(spec: ExperimentSpec, say: Callable[[str], None]) -> ImageData:
    data = spec.data.load(say)
    for line in spec.data.notes(data):
        say(line)
    if len(data.train) < 2 or not len(data.test):
        raise DataError(
            f"{data.name} has {len(data.train)} training and {len(data.test)} test images; it "
            "needs at least 2 and 1."
        )
    return data


def _refuse_unlabelled(spec: ExperimentSpec, data: ImageData) -> None:
    """Raise BadInput where a training would need labels that are missing."""
    if not data.unlabelled:
        return
    some = f"{data.unlabelled:,} training images of {data.name} have no label"
    if spec.method.needs_labels:
        raise BadInput(f"{some}, and {spec.method.component} trains on labels.")
    if spec.loss.of_labels:
        raise BadInput(
            f"{some}, and {spec.loss.component} treats the true class apart. Another loss, such as "
            "losses/hinton, needs none."
        )
    untaught = [name for name, s in spec.sources().items() if s.needs_teacher == "none"]
    if data.unlabelled == len(data.train) and untaught and not spec.method.needs_teacher:
        raise BadInput(
            f"{some}, that is all of them, and {', '.join(untaught)} would have to learn from "
            "labels. Remove it from compare."
        )


def refuse_cells(cells: Iterable[str], user: str, where: str) -> None:
    """Raise BadInput where other machines would need components of notebook cells."""
    names = ", ".join(cells)
    if names:
        raise BadInput(
            f"{user} uses {names} from a notebook cell, which {where} do not accept. Install the "
            "component as an entry point of the group kdlab.components on every machine, or "
            "omit workers."
        )
