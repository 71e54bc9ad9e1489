"""Cheaper stand-ins for a block of a network.

Puzzle (Bercovich et al. 2024, arXiv:2411.19146), here for networks of images:

    the search space: alternatives of each block of the parent        -> stand_in
    blockwise local distillation: each learns its block by itself     -> VariantBlock
    replace-1-block scores, integer program, the whole afterwards     -> methods/puzzle
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn

from kdlab.errors import ModelError
from kdlab.models.blocks import cut
from kdlab.models.cifar_resnet import he_init
from kdlab.models.inherited import inherit_layers
from kdlab.models.model import ModelSpec, evaluating
from kdlab.models.separable import SeparableConv, like

StandIn = Literal["separable", "low_rank2", "low_rank4", "low_rank8", "linear", "skip"]
STAND_INS: tuple[StandIn, ...] = get_args(StandIn)
SAME = "same"  # the block itself

# Pixels of a probe. Strides are the same at each; some networks take one only.
_SIDES = (64, 224, 32)
_RANK = "low_rank"


@dataclass(frozen=True, slots=True)
class Piece:
    """A block of a network, with the shapes of its input and output for a probe."""

    block: nn.Module
    before: tuple[int, ...]  # shape of one row of the input
    after: tuple[int, ...]  # and of the output
    never_negative: bool  # the output, as after a ReLU


def pieces_of(
    of: ModelSpec, cuts: Sequence[str], num_classes: int, in_chans: int
) -> list[Piece]:
    """Cut a network with random weights into its blocks.

    Args:
        of: the network.
        cuts: modules its blocks end with; the last block is the rest.
        num_classes: of the network.
        in_chans: channels of its images.

    Raises:
        ModelError: it cannot be cut there, or takes images of none of the usual sizes.
    """
    # Traced blocks keep their mode: in training mode dropout would never be switched off.
    net = of.without_weights().architecture(num_classes, in_chans).eval()
    usual = getattr(net, "pretrained_cfg", {}).get("input_size", (0,))[-1]  # of timm's
    blocks = cut(net, cuts)
    why = ""
    for side in dict.fromkeys((*((usual,) if usual else ()), *_SIDES)):
        count = 2 * in_chans * side * side
        views = torch.linspace(-1, 1, count).view(2, in_chans, side, side)
        try:
            return _probe_blocks(blocks, views)
        except (RuntimeError, AssertionError, ValueError) as error:
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
    raise ModelError(
        f"{of.component} takes no images of {', '.join(map(str, _SIDES))} pixels ({why}), so the "
        "shapes of its blocks are unknown. Choose a network that takes one of these sizes."
    )


@torch.no_grad()
def _probe_blocks(blocks: Sequence[nn.Module], views: Tensor) -> list[Piece]:
    pieces = []
    with evaluating(*blocks):
        for block in blocks:
            out = block(views)
            shapes = tuple(views.shape[1:]), tuple(out.shape[1:])
            pieces.append(Piece(block, *shapes, never_negative=float(out.min()) >= 0))
            views = out
    return pieces


def stand_in(piece: Piece, name: str) -> nn.Module | None:
    """Create a stand-in for a block; None where it does not fit the block.

    separable: spatial convolutions depthwise-separable, as in models/separable.
    low_rankN: spatial convolutions of 1/N of their channels, and a 1×1 one to all of them.
    linear: one 1×1 convolution, its norm, and a ReLU if the block ends with one.
    skip: nothing at all, where shapes allow that.

    Raises:
        ModelError: there is no stand-in of this name.
    """
    if name == SAME:
        return piece.block
    module = _replace_block(piece, name)
    return module if module is not None and _keeps_shape(module, piece) else None


@torch.no_grad()
def _keeps_shape(module: nn.Module, piece: Piece) -> bool:
    with evaluating(module):
        return tuple(module(torch.zeros(2, *piece.before)).shape[1:]) == piece.after


def _replace_block(piece: Piece, name: str) -> nn.Module | None:
    if name not in STAND_INS:
        raise ModelError(
            f"There is no stand-in {name!r}; there are {SAME}, {', '.join(STAND_INS)}."
        )
    if name == "skip":
        return nn.Identity() if piece.before == piece.after else None
    if name == "linear":
        return _linear_block(piece)
    module = copy.deepcopy(piece.block)
    changed = False
    for path, conv in list(module.named_modules()):
        # timm's subclasses pad by themselves.
        if type(conv) is not nn.Conv2d or conv.groups > 1:
            continue
        cheaper = _replace_conv(conv, name)
        if cheaper is not None:
            parent, _, last = path.rpartition(".")
            setattr(module.get_submodule(parent), last, cheaper)
            changed = True
    return module if changed else None


def _replace_conv(conv: nn.Conv2d, name: str) -> nn.Module | None:
    """Create a cheaper stand-in for a convolution; None where that saves nothing."""
    weights = conv.weight.numel()
    if conv.kernel_size == (1, 1):
        return None
    if name == "separable":
        module: nn.Module = SeparableConv(conv)
    else:
        rank = conv.out_channels // int(name.removeprefix(_RANK))
        if rank < 1:
            return None
        module = LowRankConv(conv, rank)
    return module if sum(p.numel() for p in module.parameters()) < weights else None


class LowRankConv(nn.Sequential):
    """A convolution to a few channels, then a 1×1 one to all, in place of one convolution."""

    def __init__(self, conv: nn.Conv2d, rank: int) -> None:
        wide = nn.Conv2d(rank, conv.out_channels, 1, bias=conv.bias is not None)
        super().__init__(like(conv, out_channels=rank), wide)
        he_init(self)

    def stands_for(self, conv: nn.Conv2d) -> bool:
        """Return whether its input and output have the shapes of this convolution's."""
        narrow, wide = cast(tuple[nn.Conv2d, nn.Conv2d], tuple(self))
        return narrow.weight[0].shape == conv.weight[0].shape and (
            wide.out_channels == conv.out_channels
        )

    @torch.no_grad()
    def inherit(self, conv: nn.Conv2d, views: Tensor, wanted: Tensor | None = None) -> None:
        """Set the weights to the convolution's best approximation of this rank (Eckart, Young)."""
        narrow, wide = cast(tuple[nn.Conv2d, nn.Conv2d], tuple(self))
        rank = narrow.out_channels
        left, values, right = torch.linalg.svd(conv.weight.flatten(1), full_matrices=False)
        root = values[:rank].sqrt()
        narrow.weight.copy_((root[:, None] * right[:rank]).view_as(narrow.weight))
        wide.weight.copy_((left[:, :rank] * root).view_as(wide.weight))
        if conv.bias is not None and wide.bias is not None:
            wide.bias.copy_(conv.bias)


def _linear_block(piece: Piece) -> nn.Module | None:
    is_of_maps = any(isinstance(m, nn.Conv2d) for m in piece.block.modules())
    if len(piece.before) != 3 or len(piece.after) != 3 or not is_of_maps:
        return None
    stride = max(1, round(piece.before[1] / piece.after[1]))
    if tuple(ceil(side / stride) for side in piece.before[1:]) != piece.after[1:]:
        return None
    channels, after = piece.before[0], piece.after[0]
    module = nn.Sequential(
        nn.Conv2d(channels, after, 1, stride, bias=False), nn.BatchNorm2d(after)
    )
    if piece.never_negative:
        module.append(nn.ReLU())
    he_init(module)
    return module


class VariantBlock(nn.Module):
    """All stand-ins of one block.

    Its output is a tuple of all outputs in training mode, in evaluation mode that of `shown`.
    """

    traced_whole = True

    def __init__(self, variants: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.variants = nn.ModuleDict(variants)
        self.shown = next(iter(variants))
        self.all_answer = False  # return all outputs in evaluation mode too

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        if self.training or self.all_answer:
            return tuple(variant(x) for variant in self.variants.values())
        out: Tensor = self.variants[self.shown](x)
        return out

    def inherit(self, block: nn.Module, views: Tensor) -> None:
        """Initialise each stand-in from a trained block with these inputs (`inherit_layers`)."""
        for variant in self.variants.values():
            inherit_layers(variant, block, views)


@contextmanager
def all_answer(module: nn.Module) -> Iterator[None]:
    """Return all outputs in evaluation mode too within the block, to measure each stand-in."""
    blocks = variant_blocks(module)
    for block in blocks:
        block.all_answer = True
    try:
        yield
    finally:
        for block in blocks:
            block.all_answer = False


def variant_blocks(module: nn.Module) -> list[VariantBlock]:
    return [m for m in module.modules() if isinstance(m, VariantBlock)]
