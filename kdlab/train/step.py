"""One step of any training: forward in the recipe's precision, backward, clip, update."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from hashlib import blake2b

import torch
from torch import Tensor, nn

from kdlab.train.optimizers import make_optimizer
from kdlab.train.recipe import Recipe
from kdlab.train.rounding import EightBits

_KINDS = {"bf16": torch.bfloat16, "fp16": torch.float16}


def seed_by(*key: int) -> None:
    """PyTorch's chances from here on, the same wherever and whenever this key comes up."""
    digest = blake2b(repr(key).encode(), digest_size=7).digest()
    torch.manual_seed(int.from_bytes(digest))


def steps_per_second(step: Callable[[], object], *, least: int, seconds: float) -> float:
    """Over so many steps at least, and as many as take so long."""
    done, begin = 0, time.perf_counter()
    while done < least or time.perf_counter() - begin < seconds:
        step()
        done += 1
    return done / (time.perf_counter() - begin)


class Descent:
    """A model with its optimiser and, in fp16, its gradient scaler.

    What is called is `run_model`: the model itself, compiled or wrapped.
    """

    def __init__(
        self, recipe: Recipe, model: nn.Module, run_model: nn.Module, device: torch.device
    ) -> None:
        self.recipe, self.model, self.run_model = recipe, model, run_model
        self.device = device
        self._kind = _KINDS.get(recipe.precision)  # None: float32
        self.optimizer = make_optimizer(recipe, model)
        self.others = list[nn.Parameter]()  # that are not the model's, and learn
        self.scaler = torch.amp.GradScaler(enabled=recipe.precision == "fp16")

    def add(self, module: nn.Module) -> None:
        """Train its parameters too."""
        parameters = list(module.parameters())
        if parameters:
            decay = self.recipe.weight_decay
            self.optimizer.add_param_group({"params": parameters, "weight_decay": decay})
            self.others += parameters

    def scores(self, views: Tensor) -> Tensor:
        """(N, C, H, W) uint8 on the device -> (N, classes) float32."""
        return self.both_scores(views)[0]

    def both_scores(
        self, views: Tensor, *, in_eight_bits: bool = False
    ) -> tuple[Tensor, Tensor]:
        """(N, classes) that learn the true labels, and that learn a teacher's.

        They are one and the same, but for a network with a distillation token in training
        (DeiT, arXiv:2012.12877, section 4), which has a head for each.
        """
        scores: Tensor | tuple[Tensor, Tensor]
        kind = self._kind
        if kind is None and not in_eight_bits:
            scores = self.run_model(views)
        else:
            rounding = EightBits() if in_eight_bits else nullcontext()
            cast = torch.autocast(self.device.type, dtype=kind) if kind else nullcontext()
            with cast, rounding:
                scores = self.run_model(views)
        if isinstance(scores, tuple):
            return scores[0].float(), scores[1].float()
        found = scores.float()
        return found, found

    def listen(self, *, taught: bool) -> None:
        """Have a distillation token learn from the teacher; without one both tokens are one."""
        net = getattr(self.model, "net", None)
        switch = getattr(net, "set_distilled_training", None)  # of timm's
        if switch is not None:
            switch(taught)

    def __call__(self, loss: Tensor, lr: float) -> None:
        """Down the gradient of this loss."""
        self.begin()
        self.backward(loss)
        self.update(lr)

    def begin(self) -> None:
        """No gradients yet."""
        self.optimizer.zero_grad(set_to_none=True)

    def backward(self, loss: Tensor) -> None:
        """Gradients of this loss are added to those that are there."""
        self.scaler.scale(loss).backward()

    def update(self, lr: float) -> None:
        """Down the gradients that are there."""
        optimizer, scaler = self.optimizer, self.scaler
        for group in optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)  # of a layer decay
        if self.recipe.clip_grad_norm is not None:
            scaler.unscale_(optimizer)
            learning = [*self.model.parameters(), *self.others]
            nn.utils.clip_grad_norm_(learning, self.recipe.clip_grad_norm)
        scaler.step(optimizer)
        scaler.update()
