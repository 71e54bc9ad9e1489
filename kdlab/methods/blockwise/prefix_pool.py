"""The teacher's first blocks as what a pool serves."""

from dataclasses import replace

import torch

from kdlab.cluster.deployment import DeployedModel, Deployment
from kdlab.experiment.pools import Pools
from kdlab.methods.blockwise.cutting import Cuts
from kdlab.methods.blockwise.served_prefix import ServedPrefix, width_of
from kdlab.methods.blockwise.setup import cutting_of
from kdlab.models.prefix import Prefix


def prefix_deployment(cuts: Cuts, served: ServedPrefix, pools: Pools) -> Deployment:
    """As for the whole teacher, with other answers."""
    setup, spec = pools.setup, pools.spec
    data = setup.data
    (teacher,) = setup.teacher.members
    with torch.random.fork_rng():
        whole = teacher.build(len(data.classes), data.shape[0])
        cpu = torch.device("cpu")
        cutting = cutting_of(cuts, spec, whole, data, spec.seeds[0], cpu)
        ends = cutting.teacher_cuts[: served.blocks]
        model = Prefix(
            model=teacher.spec.model.without_weights(),
            cuts=ends,
            classes=len(data.classes),
            all=served.blocks > len(ends),
        )
        width = width_of(cutting.outputs[: served.blocks])
        built = model.build(width, data.shape[0])
        built.net.load_state_dict(whole.net.state_dict())
    member = DeployedModel(
        model=model.to_dict(),
        weights=str(teacher.weights),
        sha256=teacher.sha256,
        weight=1.0,
    )
    with torch.inference_mode():
        made = pools.deployment(built.eval(), spec.train.batch, served.source)
    return replace(
        made,
        members=(member,),
        teacher=f"{teacher.fingerprint}-{served.blocks}",
        num_classes=width,
        engine="eager",  # engines are held to probabilities, and these are none
    )
