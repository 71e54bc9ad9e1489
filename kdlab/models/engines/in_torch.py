"""Engines of PyTorch alone: as it is, with batch norms folded, in bf16, compiled.

A batch norm that is asked is a scale and a shift by constants. Those of the convolution before it
can hold them, and one pass over memory is saved for each (Jacob et al. 2018, section 3.2).
"""

import copy
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from kdlab.models.engines.engine import Asked, Engine, EngineUnusable, Precision
from kdlab.models.model import Normalised

_GRAPHS_OF_A_PROCESS = 256
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def folded_engines(device: str) -> Iterator[Engine]:
    """Batch norms folded: channels last, and as PyTorch lies by itself."""
    for precision in _precisions(device):
        for layout in (torch.channels_last, torch.contiguous_format):
            name = "folded" if layout is torch.channels_last else "folded-planar"
            yield Engine(name, precision, partial(_folded, precision, layout))


def compiled_engines(device: str) -> Iterator[Engine]:
    """The same, compiled."""
    for precision in _precisions(device):
        prepare = partial(_compiled, precision)
        yield Engine("compiled", precision, prepare, slow_to_prepare=True)


def _precisions(device: str) -> list[Precision]:
    """Those that this device computes by its hardware."""
    half: list[Precision] = ["bf16"] if device == "cpu" else ["bf16", "fp16"]
    return ["fp32", *(p for p in half if in_hardware(p, device))]


def in_hardware(precision: Precision, device: str) -> bool:
    """Emulated bf16 is many times slower than fp32."""
    if device != "cpu":
        return precision != "bf16" or torch.cuda.is_bf16_supported()
    capabilities = torch.backends.cpu.get_cpu_capability()
    mkldnn = torch.ops.mkldnn
    has_bf16 = getattr(mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    return "AVX512" in capabilities and bool(has_bf16())


def _folded(
    precision: Precision,
    layout: torch.memory_format,
    model: nn.Module,
    views: Tensor,
    _: int,
) -> Asked:
    return _in_precision(folded(model, views), precision, layout)


def _compiled(precision: Precision, model: nn.Module, views: Tensor, _: int) -> Asked:
    ready = _in_precision(folded(model, views), precision, torch.channels_last)
    # Sizes differ from request to request; a graph for each would be compiled again and again.
    # Freezing on CPUs was 5 to 15 % slower than without it (ResNet-18, MobileNetV3; AVX-512).
    # On an H200 `max-autotune` was not ready within 45 s, for ResNet-50 in bf16; this was in 30.
    made = torch.compile(ready, dynamic=True, fullgraph=views.is_cuda)

    def ask(given: Tensor) -> Tensor:
        # All networks share one code object, and past so many graphs of it PyTorch would give up.
        # The limit is one of the thread that asks.
        torch._dynamo.config.recompile_limit = _GRAPHS_OF_A_PROCESS
        scores: Tensor = made(given)
        return scores

    return ask


def _in_precision(
    model: nn.Module, precision: Precision, layout: torch.memory_format
) -> nn.Module:
    """In place: each network behind its normalisation; that itself stays in fp32."""
    for part in list(model.modules()):
        if isinstance(part, Normalised):
            part.net = _Within(part.net, _DTYPES[precision], layout)
    return model


class _Within(nn.Module):
    """A network with weights of one type and layout; fp32 comes and goes."""

    def __init__(
        self, net: nn.Module, dtype: torch.dtype, layout: torch.memory_format
    ) -> None:
        super().__init__()
        # Layouts are of four dimensions; those of weights decide those of what flows.
        self.net = net.to(dtype).to(memory_format=layout)
        self.dtype, self.layout = dtype, layout

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W) normalised -> (N, classes) float32."""
        scores: Tensor = self.net(images.to(dtype=self.dtype, memory_format=self.layout))
        return scores.float()


@torch.inference_mode()
def folded(model: nn.Module, views: Tensor) -> nn.Module:
    """A copy in which convolutions hold the batch norms that follow them.

    Which follow which is seen, not guessed: by what flows when `views` are asked about.

    Args:
        model: in evaluation mode.
        views: (N, C, H, W) as the model takes them; one or two are enough.

    Raises:
        EngineUnusable: the model is in training mode, where batch norms count.
    """
    if model.training:
        raise EngineUnusable(
            "The network is in training mode; its batch norms are not constants."
        )
    made = copy.deepcopy(model)
    for conv, norm in _followed(made, views):
        _fold(conv, norm)
        _replace(made, norm, _rest(norm))
    return made


def _followed(model: nn.Module, views: Tensor) -> list[tuple[nn.Conv2d, nn.BatchNorm2d]]:
    """Convolutions with the batch norm that takes what they give, each used once."""
    gave = dict[int, tuple[nn.Conv2d, Tensor]]()  # by id; kept, so that ids stay
    calls = dict[nn.Module, int]()
    pairs = list[tuple[nn.Conv2d, nn.BatchNorm2d]]()

    def convolved(conv: nn.Module, _: object, out: Tensor) -> None:
        assert isinstance(conv, nn.Conv2d)
        gave[id(out)] = conv, out
        calls[conv] = calls.get(conv, 0) + 1

    def normed(norm: nn.Module, given: tuple[Tensor, ...]) -> None:
        assert isinstance(norm, nn.BatchNorm2d)
        calls[norm] = calls.get(norm, 0) + 1
        if (found := gave.get(id(given[0]))) is not None:
            pairs.append((found[0], norm))

    hooks = [
        part.register_forward_hook(convolved)
        for part in model.modules()
        if isinstance(part, nn.Conv2d)
    ]
    hooks += [
        part.register_forward_pre_hook(normed)
        for part in model.modules()
        if isinstance(part, nn.BatchNorm2d)
    ]
    try:
        model(views)
    finally:
        for hook in hooks:
            hook.remove()
    counted = [p for pair in pairs for p in pair]
    return [
        (conv, norm)
        for conv, norm in pairs
        if calls[conv] == calls[norm] == counted.count(conv) == counted.count(norm) == 1
        and norm.running_mean is not None
    ]


def _fold(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    conv.weight, conv.bias = fuse_conv_bn_weights(
        conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.eps,
        norm.weight, norm.bias,
    )  # fmt: skip


def _rest(norm: nn.BatchNorm2d) -> nn.Module:
    """What it does besides: timm's have an activation in them."""
    parts = [getattr(norm, name, None) for name in ("drop", "act")]
    found = [part for part in parts if isinstance(part, nn.Module)]
    return nn.Sequential(*found) if found else nn.Identity()


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child is old:
                setattr(parent, name, new)
