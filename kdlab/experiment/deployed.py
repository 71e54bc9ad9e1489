"""The deployment of prepared teachers."""

from collections.abc import Mapping

from kdlab.cluster.deployment import DeployedModel, Deployment
from kdlab.cluster.teachers.probe import identity_of
from kdlab.data.images import ImageData
from kdlab.train.teacher import PreparedTeachers


def deployment_of(
    teachers: PreparedTeachers,
    data: ImageData,
    *,
    data_spec: Mapping[str, object],
    batch: int,
    by_reference: bool = True,
    or_value: bool = False,
    components: dict[str, dict[str, str]] | None = None,
    reference: tuple[tuple[float, ...], ...] = (),
) -> Deployment:
    """Describe prepared teachers for a pool; see `Deployment` for the fields."""
    return Deployment(
        members=tuple(
            DeployedModel(
                model=member.spec.model.without_weights().to_dict(),
                weights=str(member.weights),
                sha256=member.sha256,
                weight=member.spec.weight,
            )
            for member in teachers.members
        ),
        teacher=teachers.fingerprint,
        num_classes=len(data.classes),
        combination=None if teachers.is_plain else teachers.combination,
        shape=data.shape,
        batch=batch,
        data=data_spec,
        identity=identity_of(data),
        by_reference=by_reference,
        or_value=or_value,
        components=components or {},
        reference=reference,
    )
