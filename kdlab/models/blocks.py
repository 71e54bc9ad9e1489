"""A network as a sequence of blocks, each of which needs only the output of the one before.

The network is traced once (torch.fx) and can be cut wherever exactly one tensor is alive.
Inside a residual block two are, so no cut is possible there, and the error names the
connection that crosses it. Blocks share parameters and buffers with the network they come
from: training the blocks trains the network.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import Parameter, signature
from itertools import accumulate, pairwise

import torch
from torch import Tensor, fx, nn
from torch.utils.flop_counter import FlopCounterMode

from kdlab.errors import ModelError
from kdlab.models.model import evaluating

_PER_OUTPUT = 10  # operations counted per output number, for norms and activations


@dataclass(frozen=True, slots=True)
class Cut:
    """A place to cut the network: behind a module."""

    after: str  # name of the module, as in `named_modules`
    at: int  # number of the last traced operation before it


class _Tracer(fx.Tracer):
    """Traces layers, and timm's modules that cannot be traced, as one operation each."""

    def __init__(self) -> None:
        super().__init__()
        from timm.models import get_notrace_modules

        self._leaves = tuple(get_notrace_modules())

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        is_layer = next(m.children(), None) is None
        return (
            is_layer
            or isinstance(m, self._leaves)
            or getattr(m, "traced_whole", False)  # modules of kdlab that cannot be traced
            or super().is_leaf_module(m, module_qualified_name)
        )


class Cuttable:
    """A traced network with one input and one output tensor, and the places to cut it.

    Its mode (train or eval) is traced too; its in-place activations no longer work in place.

    Raises:
        ModelError: it cannot be traced: its path depends on its input.
    """

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        # A block's output is also what its student is compared with: nothing may change it.
        for module in net.modules():
            if getattr(module, "inplace", False) is True:
                module.inplace = False  # type: ignore[assignment]  # not a tensor
        tracer = _Tracer()
        try:
            self.graph = fx.GraphModule(net, tracer.trace(net, _beside_the_input(net)))
        except (fx.proxy.TraceError, TypeError, RuntimeError) as error:
            raise ModelError(
                f"{type(net).__name__} cannot be cut into blocks: its path depends on its "
                f"input ({str(error).splitlines()[0]}). Take one that does not."
            ) from error
        for node in self.graph.graph.nodes:
            if node.kwargs.get("inplace") is True:
                node.kwargs = {**node.kwargs, "inplace": False}
        self.graph.recompile()
        *self._nodes, self._result = self.graph.graph.nodes
        self._ends = self._module_ends()
        self.cuts = [
            Cut(name, at)
            for name, at in self._ends.items()
            if len(self._alive(at)) == 1 and at < len(self._nodes) - 1
        ]

    def _module_ends(self) -> dict[str, int]:
        """Map each module, nested or not, to its last operation, in order."""
        ends: dict[str, int] = {}
        for number, node in enumerate(self._nodes):
            for path in self._paths(node):
                ends.pop(path, None)
                ends[path] = number
        return dict(sorted(ends.items(), key=lambda item: (item[1], -len(item[0]))))

    @staticmethod
    def _paths(node: fx.Node) -> list[str]:
        stack = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
        if node.op == "call_module":
            stack.append(str(node.target))
        return [path for path in stack if path]

    def _alive(self, at: int) -> list[fx.Node]:
        """Return the tensors computed up to operation `at` that later operations use."""
        number = {node: k for k, node in enumerate(self._nodes)}
        return [
            node
            for node in self._nodes[: at + 1]
            if any(number.get(user, len(self._nodes)) > at for user in node.users)
            and node.op != "get_attr"
        ]

    def cuts_at(self, names: Sequence[str]) -> list[Cut]:
        """Return cuts behind these modules, in the order of the network.

        Raises:
            ModelError: no such module (names the nearest), a connection that skips the
                cut, or no module after the last cut.
        """
        cuts = []
        for name in names:
            if name not in self._ends:
                near = get_close_matches(name, self._ends, n=3, cutoff=0.3)
                raise ModelError(
                    f"There is no module {name!r} in {type(self.net).__name__}. Nearest: "
                    f"{', '.join(near) or 'none'}."
                )
            at = self._ends[name]
            alive = self._alive(at)
            if len(alive) != 1:
                uses = [
                    f"{_text(n)} is used by {', '.join(sorted(map(_text, n.users)))}"
                    for n in alive
                    if n is not self._nodes[at]
                ]
                raise ModelError(
                    f"{type(self.net).__name__} cannot be cut behind {name!r}: "
                    f"{'; '.join(uses)}, which skips the cut. The nearest places: "
                    f"{', '.join(self._near(at)) or 'none'}."
                )
            if at >= len(self._nodes) - 1:
                raise ModelError(
                    f"{name!r} is the end of {type(self.net).__name__}: no block would follow "
                    "it. The last block needs no name."
                )
            cuts.append(Cut(name, at))
        cuts.sort(key=lambda cut: cut.at)
        for a, b in pairwise(cuts):
            if a.at == b.at:
                raise ModelError(f"{a.after!r} and {b.after!r} are the same place.")
        return cuts

    def _near(self, at: int) -> list[str]:
        return [
            cut.after for cut in sorted(self.cuts, key=lambda cut: abs(cut.at - at))[:3]
        ]

    def blocks(self, cuts: Sequence[Cut]) -> list[nn.Module]:
        """Split the network into len(cuts) + 1 blocks; their composition is the network."""
        ends = [-1, *(cut.at for cut in cuts), len(self._nodes) - 1]
        return [self._piece(before, end) for before, end in pairwise(ends)]

    def _piece(self, before: int, end: int) -> nn.Module:
        """Copy operations (before, end]; the input is the one tensor alive before them."""
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        if before >= 0:
            (source,) = self._alive(before)
            copies[source] = graph.placeholder("input")
        for node in self._nodes[before + 1 : end + 1]:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        is_last = end == len(self._nodes) - 1
        (result,) = self._result.all_input_nodes if is_last else self._alive(end)
        graph.output(copies[result])
        return fx.GraphModule(self.net, graph)

    def balanced_cuts(
        self, count: int, costs: Callable[[Sequence[nn.Module]], Sequence[float]]
    ) -> list[Cut]:
        """Return cuts into `count` blocks that minimise the cost of the costliest.

        `costs` gives the cost of each piece between neighbouring cuts, as `operations` does.

        Raises:
            ModelError: more blocks than the network has places to cut.
        """
        places = self.distinct_cuts()
        if not 1 <= count <= len(places) + 1:
            raise ModelError(
                f"{type(self.net).__name__} can be cut into 1 to {len(places) + 1} blocks, not "
                f"into {count}."
            )
        piece_costs = costs(self.blocks(places))
        return [places[stop - 1] for stop in fair_ends(piece_costs, count)[:-1]]

    def distinct_cuts(self) -> list[Cut]:
        """Return one cut for each place: behind the outermost module that ends there."""
        outermost = {cut.at: cut for cut in self.cuts}  # the innermost comes first
        computing = {k for k, n in enumerate(self._nodes) if n.op == "call_module"}
        cuts: list[Cut] = []
        for at, cut in sorted(outermost.items()):
            before = cuts[-1].at if cuts else -1
            if any(before < k <= at for k in computing):
                cuts.append(cut)
        while cuts and not any(k > cuts[-1].at for k in computing):
            cuts.pop()
        return cuts


def _beside_the_input(net: nn.Module) -> dict[str, object]:
    """Return defaults of the forward pass's arguments after the first, such as a mask."""
    _, *others = signature(net.forward).parameters.values()
    return {p.name: p.default for p in others if p.default is not Parameter.empty}


@torch.no_grad()
def operations(pieces: Sequence[nn.Module], views: Tensor) -> list[float]:
    """Count the cost of each piece in sequence: multiplications, plus a share for all else.

    Counted, not timed: every process that cuts a network must cut it in the same places.
    """
    costs = []
    for piece in pieces:
        with FlopCounterMode(display=False) as counter:
            views = piece(views)
        costs.append(counter.get_total_flops() / 2 + _PER_OUTPUT * views.numel())
    return costs


def fair_ends(costs: Sequence[float], count: int) -> list[int]:
    """Split costs into `count` runs of smallest largest sum; return the end of each."""
    size, before = len(costs), list(accumulate(costs, initial=0.0))
    best = [[float("inf")] * (size + 1) for _ in range(count + 1)]
    last = [[0] * (size + 1) for _ in range(count + 1)]
    best[0][0] = 0.0
    for runs in range(1, count + 1):
        for stop in range(runs, size + 1):
            for start in range(runs - 1, stop):
                largest = max(best[runs - 1][start], before[stop] - before[start])
                if largest < best[runs][stop]:
                    best[runs][stop], last[runs][stop] = largest, start
    ends, stop = list[int](), size
    for runs in range(count, 0, -1):
        ends.insert(0, stop)
        stop = last[runs][stop]
    return ends


def cut(net: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """Cut a network behind these modules; the last block is the rest."""
    cuttable = Cuttable(net)
    return cuttable.blocks(cuttable.cuts_at(names))


@torch.no_grad()
def check_composition(net: nn.Module, blocks: Sequence[nn.Module], views: Tensor) -> None:
    """Require that the composition of the blocks equals the network bit for bit.

    Raises:
        ModelError: it does not; with the largest difference.
    """
    with evaluating(net, *blocks):
        expected, outputs = net(views), views
        for block in blocks:
            outputs = block(outputs)
    if not torch.equal(expected, outputs):
        raise ModelError(
            f"The {len(blocks)} blocks of {type(net).__name__} differ from the network by up to "
            f"{float((expected - outputs).abs().max()):.3g}. They were not used."
        )


def _text(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_module" else node.name
