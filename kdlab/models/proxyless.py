"""The search space of Pipe-BD's second workload, and its networks.

ProxylessNAS (Cai, Zhu and Han 2019, arXiv:1812.00332): where MobileNetV2 has one inverted
residual, the supernet has several of different kernel and expansion, and a skip where the
shape allows it. Architecture parameters say how likely each is; one path is sampled at a
time, so a step costs what one network costs. Pipe-BD, Table I: kernels 3, 5, 7 and
expansions 3, 6.

    section 3.2, equation 3    g = one-hot sampled from softmax(alpha)    -> MixedBlock
    section 3.2.1              d loss / d g of two sampled paths           -> _Gated
    section 3.3.1, equation 6  expected latency, here operations           -> expected_work
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from kdlab.config import Fault, register
from kdlab.errors import ModelError
from kdlab.models.cifar_resnet import he_init
from kdlab.models.model import IMAGENET, ModelSpec

CHOICES = tuple(f"k{k}e{e}" for k, e in product((3, 5, 7), (3, 6)))
SKIP = "skip"

# MobileNetV2 (arXiv:1801.04381), table 2: channels, repeats and stride of each stage. The
# first one, of expansion 1, the stem and the head are not searched.
_STAGES = ((24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1))
_SMALL_STRIDES = (1, 2, 2, 1, 2, 1)  # for images of 64 pixels and less


@dataclass(frozen=True, slots=True)
class ChoicePlace:
    """A place in the network whose block is chosen."""

    name: str  # "stages.1.0"
    before: int
    after: int
    stride: int

    @property
    def may_skip(self) -> bool:
        return self.stride == 1 and self.before == self.after

    @property
    def choices(self) -> tuple[str, ...]:
        return (*CHOICES, SKIP) if self.may_skip else CHOICES


def places(*, small: bool) -> list[ChoicePlace]:
    """Return all places of the network, in order."""
    choice_places, before = [], 16
    for stage, (after, repeats, stride) in enumerate(_STAGES):
        first = _SMALL_STRIDES[stage] if small else stride
        for k in range(repeats):
            name, place_stride = f"stages.{stage}.{k}", first if k == 0 else 1
            choice_places.append(ChoicePlace(name, before, after, place_stride))
            before = after
    return choice_places


@register("models/proxyless")
@dataclass(frozen=True, kw_only=True)
class Proxyless(ModelSpec):
    """One network of the search space; by default MobileNetV2.

    choices: for each place, in order, kernel and expansion ("k5e3"), or "skip".
    small: strides for images of 64 pixels and less (CIFAR-10).
    """

    statistics = IMAGENET
    choices: tuple[str, ...] = ("k3e6",) * sum(repeats for _, repeats, _ in _STAGES)
    small: bool = False

    def cross_faults(self) -> Iterator[Fault]:
        every = places(small=self.small)
        if len(self.choices) != len(every):
            yield Fault("choices", f"are {len(self.choices)}, must be {len(every)}")
            return
        for place, choice in zip(every, self.choices, strict=True):
            if choice not in place.choices:
                yield Fault(
                    "choices",
                    f"has {choice!r} for {place.name}, must be one of {', '.join(place.choices)}",
                )

    def architecture(self, num_classes: int, in_chans: int) -> nn.Module:
        every = places(small=self.small)
        blocks = list(map(_candidate, self.choices, every))
        return build_network(every, blocks, num_classes, in_chans, self.small)


class _Net(nn.Module):
    def __init__(
        self, stem: nn.Module, stages: nn.Module, features: int, num_classes: int
    ) -> None:
        super().__init__()
        self.stem, self.stages = stem, stages
        self.head = nn.Sequential(*conv_norm_relu(_STAGES[-1][0], features, 1))
        self.classifier = nn.Linear(features, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, classes)."""
        return self.classifier(self.head(self.stages(self.stem(x))).mean(dim=(2, 3)))


def build_network(
    every: Sequence[ChoicePlace],
    blocks: Sequence[nn.Module],
    num_classes: int,
    in_chans: int,
    small: bool,  # strides for images of 64 pixels and less
) -> nn.Module:
    stem = nn.Sequential(
        *conv_norm_relu(in_chans, 32, 3, 1 if small else 2),
        MobileBlock(32, 16, kernel=3, expansion=1, stride=1),
    )
    stages: list[list[nn.Module]] = [[] for _ in _STAGES]
    for place, block in zip(every, blocks, strict=True):
        stages[int(place.name.split(".")[1])].append(block)
    rows = nn.Sequential(*(nn.Sequential(*stage) for stage in stages))
    net = _Net(stem, rows, 1280, num_classes)
    he_init(net)
    return net


def conv_norm_relu(
    before: int, after: int, kernel: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    """Create a convolution, its norm and its activation."""
    conv = nn.Conv2d(
        before, after, kernel, stride, padding=kernel // 2, groups=groups, bias=False
    )
    return [conv, nn.BatchNorm2d(after), nn.ReLU6()]


class MobileBlock(nn.Module):
    """MobileNetV2's inverted residual: expand, convolve each channel, project."""

    def __init__(
        self, before: int, after: int, *, kernel: int, expansion: int, stride: int
    ) -> None:
        super().__init__()
        wide = before * expansion
        expand = conv_norm_relu(before, wide, 1) if expansion > 1 else []
        self.layers = nn.Sequential(
            *expand,
            *conv_norm_relu(wide, wide, kernel, stride, groups=wide),
            *conv_norm_relu(wide, after, 1)[:-1],
        )
        self.residual = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, C', H', W')."""
        return x + self.layers(x) if self.residual else self.layers(x)


def _candidate(choice: str, place: ChoicePlace) -> nn.Module:
    if choice == SKIP:
        return nn.Identity()
    kernel, expansion = int(choice[1]), int(choice[3])
    return MobileBlock(
        place.before, place.after, kernel=kernel, expansion=expansion, stride=place.stride
    )


class MixedBlock(nn.Module):
    """All candidates of one place, one of which is on the path.

    `draw` samples the path of the next batches; in eval mode it is the likeliest one. For
    a step of the architecture two paths are drawn: the output is the first one's, and the gradient
    of both gates shows which is better.
    """

    traced_whole = True  # its path is drawn at run time: models/blocks does not look inside

    def __init__(self, place: ChoicePlace) -> None:
        super().__init__()
        self.place = place
        self.candidates = nn.ModuleList(_candidate(c, place) for c in place.choices)
        self.alpha = nn.Parameter(torch.zeros(len(place.choices)))
        self.path: tuple[int, ...] = (0,)
        self.pixels = 0.0  # of the last input, per channel

    @torch.no_grad()
    def draw(self, chance: torch.Generator, *, architecture: bool) -> None:
        """Sample the path by the architecture parameters; the same on every device by seed."""
        alpha = self.alpha.detach().float().cpu()
        count = 2 if architecture else 1
        drawn = torch.multinomial(alpha.softmax(0), count, generator=chance)
        if architecture:  # which of the two is active, by their shares of both
            first = torch.multinomial(alpha[drawn].softmax(0), 1, generator=chance)
            drawn = drawn if int(first) == 0 else drawn.flip(0)
        self.path = tuple(drawn.tolist())

    @torch.no_grad()
    def drawn_share(self) -> Tensor:
        """Return the log of the drawn paths' total weight, before a step of the architecture."""
        return self.alpha[list(self.path)].logsumexp(0)

    @torch.no_grad()
    def keep_share(self, before: Tensor) -> None:
        """Restore the drawn paths' total weight, so that other paths keep their probability.

        Section 3.2.1: "rescale the value of these two updated path weights".
        """
        drawn = list(self.path)
        self.alpha[drawn] += before - self.alpha[drawn].logsumexp(0)

    @property
    def likeliest(self) -> int:
        return int(self.alpha.detach().argmax())

    @property
    def chosen(self) -> str:
        return self.place.choices[self.likeliest]

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, C', H', W')."""
        self.pixels = float(x.shape[2] * x.shape[3])
        path = self.path if self.training else (self.likeliest,)
        first: Tensor = self.candidates[path[0]](x)
        if len(path) == 1:
            return first
        with torch.no_grad():
            second = self.candidates[path[1]](x)
        # Between the two the probabilities are scaled to sum to one (section 3.2.1).
        both = self.alpha[list(path)].softmax(0)
        gated: Tensor = _Gated.apply(first, second, both)
        return gated

    def expected_work(self) -> Tensor:
        """Return the expected multiplications per image, differentiable in `alpha`."""
        work = torch.tensor(
            [_work(c, self.place, self.pixels) for c in self.place.choices],
            dtype=self.alpha.dtype,
            device=self.alpha.device,
        )
        return (self.alpha.softmax(0) * work).sum()


class _Gated(Function):
    """The first of two outputs, with the gradient of both gates.

    d loss / d gate_j = sum(d loss / d output * output_j); that stands for the gradient of
    probability j (BinaryConnect; section 3.2.1).
    """

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor, gates: Tensor) -> Tensor:
        ctx.save_for_backward(first, second, gates)
        return first.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, Tensor]:
        first, second, gates = ctx.saved_tensors
        of_gates = torch.stack([(outer * first).sum(), (outer * second).sum()])
        return outer, None, of_gates.to(gates.dtype)


def _work(choice: str, place: ChoicePlace, pixels: float) -> float:
    """Count the multiplications of a candidate for one image of `pixels` pixels."""
    if choice == SKIP:
        return 0.0
    kernel, expansion = int(choice[1]), int(choice[3])
    wide, out = place.before * expansion, pixels / place.stride**2
    return pixels * place.before * wide + out * wide * (kernel**2 + place.after)


def mixed_blocks(net: nn.Module) -> list[MixedBlock]:
    """Return the mixed blocks of a supernet or of a piece of it, in order."""
    return [m for m in net.modules() if isinstance(m, MixedBlock)]


def draw_paths(net: nn.Module, step: int) -> None:
    """Draw a path for every mixed block, by its name and the number of the step alone.

    So a piece of the supernet draws the same paths as the supernet.
    """
    for block in mixed_blocks(net):
        seed = 1000 * step + crc32(block.place.name.encode()) % 1000
        chance = torch.Generator().manual_seed(seed)
        block.draw(chance, architecture=False)


def cycle_paths(net: nn.Module, step: int) -> None:
    """Cycle through the candidates of each place, to measure the mean cost of a step."""
    for number, block in enumerate(mixed_blocks(net)):
        block.path = ((step + number) % len(block.candidates),)


def likeliest_network(net: nn.Module, *, small: bool) -> Proxyless:
    """Return the likeliest network of a supernet.

    Raises:
        ModelError: it is no supernet.
    """
    blocks = mixed_blocks(net)
    if not blocks:
        raise ModelError(f"{type(net).__name__} has no mixed blocks to choose from.")
    return Proxyless(choices=tuple(block.chosen for block in blocks), small=small)
