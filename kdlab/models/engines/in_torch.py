"""Engines of PyTorch alone: batch norms folded, in half precision, compiled.

At inference a batch norm is a scale and a shift by constants. The convolution before it can include
them, which saves a pass over memory (Jacob et al. 2018, section 3.2).
"""

import copy
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from kdlab.models.engines.engine import Engine, EngineUnusable, Precision, Predict
from kdlab.models.model import Normalised

_GRAPHS_OF_A_PROCESS = 256
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def folded_engines(device: str) -> Iterator[Engine]:
    """Yield engines with batch norms folded: channels last, and in PyTorch's default layout."""
    for precision in _precisions(device):
        for layout in (torch.channels_last, torch.contiguous_format):
            name = "folded" if layout is torch.channels_last else "folded-planar"
            yield Engine(name, precision, partial(_prepare_folded, precision, layout))


def compiled_engines(device: str) -> Iterator[Engine]:
    """Yield engines with batch norms folded, compiled."""
    for precision in _precisions(device):
        prepare = partial(_prepare_compiled, precision)
        yield Engine("compiled", precision, prepare, slow_to_prepare=True)


def _precisions(device: str) -> list[Precision]:
    """Return the precisions that this device computes in hardware."""
    half: list[Precision] = ["bf16"] if device == "cpu" else ["bf16", "fp16"]
    return ["fp32", *(p for p in half if in_hardware(p, device))]


def in_hardware(precision: Precision, device: str) -> bool:
    """Return whether the device computes in it; emulated bf16 is many times slower than fp32."""
    if device != "cpu":
        return precision != "bf16" or torch.cuda.is_bf16_supported()
    capabilities = torch.backends.cpu.get_cpu_capability()
    mkldnn = torch.ops.mkldnn
    has_bf16 = getattr(mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    return "AVX512" in capabilities and bool(has_bf16())


def _prepare_folded(
    precision: Precision,
    layout: torch.memory_format,
    model: nn.Module,
    views: Tensor,
    _: int,
) -> Predict:
    return _in_precision(fold_batch_norms(model, views), precision, layout)


def _prepare_compiled(
    precision: Precision, model: nn.Module, views: Tensor, _: int
) -> Predict:
    ready = _in_precision(fold_batch_norms(model, views), precision, torch.channels_last)
    # Batch sizes differ by request; `dynamic` avoids a compilation for each.
    # Freezing on CPUs was 5 to 15 % slower than without it (ResNet-18, MobileNetV3; AVX-512).
    # On an H200 `max-autotune` was not ready within 45 s, for ResNet-50 in bf16; this was in 30.
    network = torch.compile(ready, dynamic=True, fullgraph=views.is_cuda)

    def ask(images: Tensor) -> Tensor:
        # All networks share one code object, and PyTorch gives up past so many graphs of it. The
        # limit is per thread.
        torch._dynamo.config.recompile_limit = _GRAPHS_OF_A_PROCESS
        scores: Tensor = network(images)
        return scores

    return ask


def _in_precision(
    model: nn.Module, precision: Precision, layout: torch.memory_format
) -> nn.Module:
    """Convert in place each network after its normalisation, which stays in fp32."""
    for part in list(model.modules()):
        if isinstance(part, Normalised):
            part.net = _Within(part.net, _DTYPES[precision], layout)
    return model


class _Within(nn.Module):
    """A network with weights of one type and layout; input and output are fp32."""

    def __init__(
        self, net: nn.Module, dtype: torch.dtype, layout: torch.memory_format
    ) -> None:
        super().__init__()
        # The layout of weights decides that of activations.
        self.net = net.to(dtype).to(memory_format=layout)
        self.dtype, self.layout = dtype, layout

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W) normalised -> (N, classes) float32."""
        scores: Tensor = self.net(images.to(dtype=self.dtype, memory_format=self.layout))
        return scores.float()


@torch.inference_mode()
def fold_batch_norms(model: nn.Module, views: Tensor) -> nn.Module:
    """Copy a network and fold each batch norm into the convolution before it.

    Pairs are found by a forward pass of `views`, by the identity of tensors.

    Args:
        model: in evaluation mode.
        views: (N, C, H, W) inputs of the model; one or two are enough.

    Raises:
        EngineUnusable: the model is in training mode, where batch norms are not constant.
    """
    if model.training:
        raise EngineUnusable(
            "The network is in training mode; its batch norms are not constants."
        )
    copied = copy.deepcopy(model)
    for conv, norm in _find_pairs(copied, views):
        _fold(conv, norm)
        _replace(copied, norm, _activation_of(norm))
    return copied


def _find_pairs(model: nn.Module, views: Tensor) -> list[tuple[nn.Conv2d, nn.BatchNorm2d]]:
    """Find convolutions and the batch norms of their outputs, each called once."""
    outputs = dict[int, tuple[nn.Conv2d, Tensor]]()  # by id; kept, so that ids stay unique
    calls = dict[nn.Module, int]()
    pairs = list[tuple[nn.Conv2d, nn.BatchNorm2d]]()

    def on_conv(conv: nn.Module, _: object, out: Tensor) -> None:
        assert isinstance(conv, nn.Conv2d)
        outputs[id(out)] = conv, out
        calls[conv] = calls.get(conv, 0) + 1

    def on_norm(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(norm, nn.BatchNorm2d)
        calls[norm] = calls.get(norm, 0) + 1
        if (source := outputs.get(id(inputs[0]))) is not None:
            pairs.append((source[0], norm))

    hooks = [
        part.register_forward_hook(on_conv)
        for part in model.modules()
        if isinstance(part, nn.Conv2d)
    ]
    hooks += [
        part.register_forward_pre_hook(on_norm)
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


def _activation_of(norm: nn.BatchNorm2d) -> nn.Module:
    """Return a batch norm's dropout and activation: timm's include them."""
    parts = [getattr(norm, name, None) for name in ("drop", "act")]
    modules = [part for part in parts if isinstance(part, nn.Module)]
    return nn.Sequential(*modules) if modules else nn.Identity()


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child is old:
                setattr(parent, name, new)
