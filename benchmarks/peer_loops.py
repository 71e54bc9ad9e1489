"""Distillation as one would write it without kdlab: by hand, with timm, with torchdistill.

What is between `# begin` and `# end` is what a user writes; the benchmark counts these lines.
All three train the same student with the same teacher, loss, optimiser and batches. They have
the teacher in the student's process: that is what these libraries offer.
"""

import inspect
from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax

from kdlab.errors import BadInput
from kdlab.models.model import Normalised

Step = Callable[[Tensor, Tensor], Tensor]
LR, MOMENTUM, DECAY = 1e-3, 0.9, 5e-4
TEMPERATURE, HARD, SOFT = 4.0, 0.5, 0.5

# The same as an experiment of kdlab. `run.live()` and everything in docs/ come with it.
KDLAB = """
data: {use: data/digits}
teacher: {use: teachers/digits_resnet}
teacher_pool: {use: teacher_pools/local}
student: {use: students/digits_small}
loss: {type: losses/hinton, temperature: 4.0, hard_weight: 0.5, soft_weight: 0.5}
soft_labels: {type: cluster/served, lt: 256, ut: 2048}
train: {epochs: 10, batch: 64, lr: 0.05}
"""


def bare_loop(teacher: Normalised, student: Normalised) -> Step:
    """A plain PyTorch loop, written by hand."""
    # begin
    optimizer = torch.optim.SGD(
        student.parameters(), lr=LR, momentum=MOMENTUM, nesterov=True, weight_decay=DECAY
    )
    student.train()

    def step(views: Tensor, labels: Tensor) -> Tensor:
        with torch.inference_mode():
            target = teacher(views)
        scores = student(views)
        soft = kl_div(
            log_softmax(scores / TEMPERATURE, 1),
            log_softmax(target / TEMPERATURE, 1),
            reduction="batchmean",
            log_target=True,
        )
        loss = HARD * cross_entropy(scores, labels) + SOFT * TEMPERATURE**2 * soft
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    # end
    return step


def with_timm(teacher: Normalised, student: Normalised) -> Step:
    """Timm's LogitDistillationTask."""
    from timm.task import LogitDistillationTask

    for model in (teacher, student):  # kdlab's models normalise their inputs
        channels = model.mean.numel()
        facts = {"mean": (0.0,) * channels, "std": (1.0,) * channels}
        # What timm's own models have, and its tasks read.
        model.__dict__ |= {
            "pretrained_cfg": facts,
            "in_chans": channels,
            "num_classes": None,
        }
    # begin
    task = LogitDistillationTask(
        student,
        teacher,
        distill_loss_weight=SOFT,
        task_loss_weight=HARD,
        temperature=TEMPERATURE,
        verbose=False,
    )
    task.train()
    optimizer = torch.optim.SGD(
        student.parameters(), lr=LR, momentum=MOMENTUM, nesterov=True, weight_decay=DECAY
    )

    def step(views: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = task(views, labels)["loss"]
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    # end
    return step


def _find_torchdistill() -> None:
    """Check that torchdistill is installed.

    Raises:
        BadInput: it is not; says how to install it.
    """
    if find_spec("torchdistill") is None:
        raise BadInput(
            "bench peers compares with torchdistill, which is not installed: "
            "pip install 'kdlab[peers]'"
        )


def with_torchdistill(teacher: Normalised, student: Normalised) -> Step:
    """Torchdistill's KD, stepped without its data loader."""
    _find_torchdistill()
    from torchdistill.core.distillation import DistillationBox

    # begin
    # Its KDLoss weighs the hard loss by alpha and the soft one by (1 - alpha) T^2.
    hooked = {
        "student_module_path": "net",
        "student_module_io": "output",
        "teacher_module_path": "net",
        "teacher_module_io": "output",
    }
    kd = {
        "key": "KDLoss",
        "kwargs": hooked
        | {"temperature": TEMPERATURE, "alpha": HARD, "reduction": "batchmean"},
    }
    hook = {"forward_hook": {"input": [], "output": ["net"]}}
    box = DistillationBox(
        teacher,
        student,
        {},
        {
            "num_epochs": 1,
            "train_data_loader": {},
            "val_data_loader": {},
            "teacher": hook
            | {"forward_proc": "forward_batch_only", "requires_grad": False},
            "student": hook | {"forward_proc": "forward_batch_only", "requires_grad": True},
            "optimizer": {
                "key": "SGD",
                "kwargs": {
                    "lr": LR,
                    "momentum": MOMENTUM,
                    "nesterov": True,
                    "weight_decay": DECAY,
                },
            },
            "criterion": {
                "key": "WeightedSumLoss",
                "kwargs": {"sub_terms": {"kd": {"criterion": kd, "weight": 1.0}}},
            },
        },
        torch.device("cpu"),
        None,
        False,  # not distributed, by place as in its examples
        1,
    )
    student.train()
    teacher.eval()

    def step(views: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = box.forward_process(views, labels, None)
        box.post_forward_process(loss=loss)
        return loss.detach()

    # end
    return step


PEERS: dict[str, Callable[[Normalised, Normalised], Step]] = {
    "bare_loop": bare_loop,
    "timm": with_timm,
    "torchdistill": with_torchdistill,
}


def written() -> dict[str, int]:
    """Lines that a user writes with each, comments and empty ones left out."""
    sources = {name: inspect.getsource(function) for name, function in PEERS.items()}
    counts = {
        name: _count(text.split("# begin")[1].split("# end")[0])
        for name, text in sources.items()
    }
    return counts | {"kdlab": _count(KDLAB) + 1}  # one line of Python starts it


def _count(text: str) -> int:
    lines = [line.strip() for line in text.splitlines()]
    return sum(bool(line) and not line.startswith("#") for line in lines)
