"""EDL-Dist as a SoftLabelSource: the trainer's end of the DistilReader."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from math import inf, prod, ulp
from typing import Annotated, ClassVar, Literal

import numpy as np

from kdlab.changes.tunable import Tunable
from kdlab.cluster.child_configs import ReaderConfig, ReaderStart, TransportSettings
from kdlab.cluster.limits import free_memory
from kdlab.cluster.notebook_components import package_components
from kdlab.cluster.reader.reader_process import ReaderProcess
from kdlab.cluster.reader.ring import Layout
from kdlab.cluster.reader.student_reader import FIGURES
from kdlab.cluster.transport.frames import size_of
from kdlab.cluster.transport.messages import (
    ENCODINGS,
    Encoding,
    LabelRequest,
    RequestTimes,
    request,
)
from kdlab.codec import part_of, to_dict
from kdlab.config import Fault, Range, register
from kdlab.config.registry import known_names
from kdlab.config.spec import NOT_NEGATIVE, POSITIVE
from kdlab.data.samples import SampleDescription
from kdlab.errors import BadInput, ClusterError
from kdlab.papers.edl_dist.hybrid_schedule import default_thresholds
from kdlab.papers.edl_dist.reader_rules import ReaderSettings, Rules
from kdlab.soft_labels.label_file import meta_for
from kdlab.soft_labels.source import Batch, MixedLabels, SourceContext, SourceSpec
from kdlab.supervision.children import Child, StartChild, tail

_MAX_MEMORY = 0.8  # of the free memory
_IN_FLIGHT_MEMORY = 0.25  # of the free memory: for inputs and answers in flight


@register("cluster/served")
@dataclass(frozen=True, kw_only=True)
class Served(SourceSpec, TransportSettings, ReaderSettings):
    """EDL-Dist: soft labels from a pool of teachers that may come and go.

    lt, ut: lower and upper threshold of unused soft labels, including those in flight. Once
        a student waited because of them, the samples in flight follow from measured rates
        and latencies. null: 256 and 2048 samples, or two and eight batches if that is more.
    thresholds_in: what lt and ut count: samples, megabytes (inputs and soft labels
        together), or shares of the host memory that is free when the run starts.
    sends: logits, or the teacher's last `hidden` state, to which the student applies the
        teacher's head. Fewer bytes for many classes; `--dry-run` says how many. Teachers
        compute it with plain PyTorch.
    hang_s: a reader without a heartbeat for this time is killed and restarted.
    record: write every event of the reader to reader.jsonl, for kdlab.testing.replay.
    """

    needs_teacher: ClassVar[Literal["none", "in_process", "served"]] = "served"

    lt: Annotated[float, NOT_NEGATIVE] | None = None
    ut: Annotated[float, POSITIVE] | None = None
    thresholds_in: Literal["samples", "megabytes", "memory_share"] = "samples"
    sends: Literal["logits", "hidden"] = "logits"
    hang_s: Annotated[float, POSITIVE] = 20.0
    record: bool = False

    def cross_faults(self) -> Iterator[Fault]:
        if self.thresholds_in != "samples":
            for name in ("lt", "ut"):
                if getattr(self, name) is None:
                    yield Fault(name, f"is null; give it in {self.thresholds_in}")
        if self.encoding.by_chance and self.check_share > 0:
            yield Fault(
                "check_share",
                f"is {self.check_share:g}, but draws of two teachers cannot be compared; "
                "soft_labels.check_share=0 checks none",
            )
        if self.sends == "hidden" and self.encoding.number is None:
            yield Fault("replies", f"is {self.replies}; a hidden state is full or half")
        if self.sends == "hidden" and self.cache_views is not None:
            yield Fault("cache_views", "keeps logits, and sends is hidden")
        if why := self.encoding.fault(self.top_k, inf):
            yield Fault("top_k", why)
        if self.lt is None or self.ut is None:
            return
        if self.lt >= self.ut:
            yield Fault("lt", f"is {self.lt:g} and ut is {self.ut:g}; lt must be below ut")
        if self.thresholds_in == "memory_share" and self.ut > _MAX_MEMORY:
            yield Fault(
                "ut",
                f"is {self.ut:g} of the free memory; at most {_MAX_MEMORY:g} may be used",
            )

    @property
    def gives_hidden(self) -> bool:
        return self.sends == "hidden"

    @property
    def encoding(self) -> Encoding:
        return ENCODINGS[self.replies]

    @property
    def bytes_per_output(self) -> int:
        return np.dtype(self.encoding.number or np.float32).itemsize

    def bytes_on_wire(self, classes: int, view_bytes: int, batch: int) -> float:
        views = np.zeros((batch, view_bytes), np.uint8)
        by_ids = self.inputs in ("reference", "auto")
        asked = request(self.inputs, np.zeros(batch, np.int64), None if by_ids else views)
        numbers = self.encoding.encode(np.zeros((batch, classes), np.float32), self.top_k)
        header = to_dict(LabelRequest(epoch=0, replies=self.replies, top_k=self.top_k))
        return (
            size_of(header | {"number": 0}, asked)
            + size_of({"number": 0}, RequestTimes().with_times(numbers, "eager fp32"))
        ) / batch

    @property
    def keeps_labels(self) -> bool:
        return self.cache_views is not None

    def batch_faults(self, batch: int) -> Iterator[Fault]:
        """Faults of ut in samples; in other units it is known only when the run starts."""
        if self.thresholds_in == "samples" and self.ut is not None and self.ut <= batch:
            yield Fault(
                "ut",
                f"is {self.ut:g} samples and train.batch is {batch}; ut must hold more than "
                "one batch",
            )

    def feature_faults(self) -> Iterator[Fault]:
        yield from super().feature_faults()
        if self.encoding.number is None:
            yield Fault("replies", f"is {self.replies}; features need full or half")

    def tunables(self, batch: int) -> list[Tunable]:
        (lt, ut), low, high = self.bounds(batch), "soft_labels.lt", "soft_labels.ut"
        most = _MAX_MEMORY if self.thresholds_in == "memory_share" else None
        return [
            Tunable(name=low, value=lt, range=NOT_NEGATIVE, below=high),
            Tunable(name=high, value=ut, range=Range(gt=0, le=most)),
        ]

    def ways(self) -> dict[str, bool]:
        return {
            "by_reference": self.inputs in ("reference", "auto"),
            "or_value": self.inputs == "auto",
        }

    def loss_faults(self, against_draws: str) -> Iterator[Fault]:
        if self.encoding.by_chance and against_draws:
            yield Fault(
                "replies",
                f"is {self.replies} and {against_draws}; draws are right on average at "
                "temperature 1 alone, for losses that are linear in them. top_k or half serve "
                "others",
            )

    def check(self, classes: int) -> None:
        if why := self.encoding.fault(self.top_k, classes):
            raise BadInput(
                f"soft_labels.top_k {why}. soft_labels.replies=half sends all classes in two bytes."
            )

    def thresholds(self, sample_bytes: int, largest: int) -> tuple[int, int]:
        """(lt, ut) in samples.

        Args:
            sample_bytes: of one input with its soft label.
            largest: samples in the largest batch.

        Raises:
            BadInput: ut does not hold more than one batch.
        """
        unit = 1.0
        if self.thresholds_in == "megabytes":
            unit = 1e6 / sample_bytes
        elif self.thresholds_in == "memory_share":
            unit = free_memory() / sample_bytes
        lt, ut = (int(bound) for bound in self.bounds(largest, unit))
        if ut <= largest:
            assert self.ut is not None
            raise BadInput(
                f"soft_labels.ut={self.ut:g} {self.thresholds_in} is {ut} samples of "
                f"{sample_bytes} bytes, and a batch has {largest}: not more than one batch "
                "would fit. Raise ut, or lower train.batch."
            )
        return min(lt, ut - 1), ut

    def bounds(self, largest: int, unit: float = 1.0) -> tuple[float, float]:
        """(lt, ut) times `unit`; an unset one is derived from the batch and the set one."""
        lt, ut = map(float, default_thresholds(largest))
        if self.ut is not None:
            ut = self.ut * unit
            lt = min(lt, ut // 4)
        if self.lt is not None:
            lt = self.lt * unit
            ut = ut if self.ut is not None else max(ut, 2 * lt)
        return lt, ut

    def build(self, context: SourceContext) -> "ServedSource":
        return ServedSource(self, context)


class ServedSource:
    def __init__(
        self, spec: Served, context: SourceContext, start_reader: StartChild = Child
    ) -> None:
        assert context.student_rate is not None
        self.spec, self.context = spec, context
        start = ReaderStart(epoch=context.start["epoch"], done=tuple(context.start["done"]))
        config = self._reader_config(start, max(context.student_rate(), ulp(1.0)))
        self.log = context.folder / "reader.log"
        self.reader = ReaderProcess(
            config,
            self.log,
            context.report,
            context.stop,
            on_gpu=context.on_gpu,
            hang_s=spec.hang_s,
            start=start_reader,
        )
        self._held: int | None = None  # slot of the batch in training
        self._first: int | None = None
        if self._has_work(start, config.samples.plan["epochs"]):
            self._first = self.reader.take()  # wait for the first soft labels

    def _reader_config(self, start: ReaderStart, rate: float) -> ReaderConfig:
        spec, context, samples = self.spec, self.context, self.context.samples
        assert context.pool is not None
        description = samples.describe()
        assert isinstance(description, SampleDescription)
        # Of a full epoch: the current one may be a rest.
        batches = samples.batches(start.epoch + 1)
        outputs = context.outputs or samples.classes
        layout = Layout(
            slots=spec.slots,
            largest=max(map(len, batches)),
            shape=tuple(samples.views(batches[0][:1], 0).shape[1:]),
            classes=outputs,
            figures=len(FIGURES),
        )
        sample_bytes = prod(layout.shape) + 4 * outputs
        lt, ut = spec.thresholds(sample_bytes, layout.largest)
        self._sizes = (sample_bytes, layout.largest)
        settings, label_file = part_of(spec, ReaderSettings), None
        if spec.cache_views is not None:
            label_file = meta_for(samples, context.pool.teacher, spec.cache_views, None)
        rules = Rules(
            t_s=rate,
            lt=lt,
            ut=ut,
            sample_mb=sample_bytes / 1e6,
            max_in_flight=self._max_in_flight(prod(layout.shape), 4 * outputs),
            **vars(settings) | ({"order": "strict"} if context.in_group else {}),
        )
        return ReaderConfig(
            rules=rules,
            start=start,
            student=context.student,
            coordinator=context.pool.address,
            serves=context.pool.teacher,
            tls=context.pool.tls,
            samples=description,
            classes=outputs,
            label_file=label_file,
            record=str(context.folder / "reader.jsonl") if spec.record else None,
            components=package_components(set(known_names())),
            layout=layout,
            ring_fd=-1,
            socket_fd=-1,
            **vars(part_of(spec, TransportSettings)),
        )

    def _max_in_flight(self, view_bytes: int, answer_bytes: int) -> int:
        """Samples whose inputs and answers fit a share of the free memory."""
        sample_bytes = answer_bytes + (0 if self.spec.inputs == "reference" else view_bytes)
        free = free_memory()
        return max(self._sizes[1], int(_IN_FLIGHT_MEMORY * free / sample_bytes))

    def _has_work(self, start: ReaderStart, epochs: int) -> bool:
        if start.epoch >= epochs:
            return False
        count = len(self.context.samples.batches(start.epoch))
        return epochs - start.epoch > 1 or count > len(start.done)

    def epoch(self, epoch: int, done: Collection[int]) -> Iterator[Batch]:
        self.reader.at(epoch, done)
        for _ in range(len(self.context.samples.batches(epoch)) - len(done)):
            yield self._next(epoch)

    def _next(self, epoch: int) -> Batch:
        if self._held is not None:
            self.reader.free(self._held)
            self._held = None
        number = self._first
        if number is None:
            number = self.reader.take()
        self._first = None
        slot, labels, soft, views = self.reader.slot(number)
        delivered, index, count = slot.head.tolist()
        if delivered != epoch:
            raise ClusterError(
                f"The reader delivered epoch {delivered} during epoch {epoch}. "
                f"This is a defect of kdlab. End of {self.log}:\n{tail(self.log)}"
            )
        self._held = number
        self.reader.trained(index)
        if count < len(labels):  # slicing costs more than all else here
            views, labels, soft = views[:count], labels[:count], soft[:count]
        ids = slot.ids[:count].copy()
        view = epoch if self.spec.cache_views is None else epoch % self.spec.cache_views
        mixed = MixedLabels.from_samples(self.context.samples, ids, view)
        return Batch(index, ids, views, labels, soft, mixed)

    def figures(self) -> dict[str, float]:
        return self.reader.figures()

    def set_thresholds(self, *, lt: float | None = None, ut: float | None = None) -> None:
        """Change lt or ut, in the spec's unit.

        Raises:
            BadInput: ut does not hold more than one batch.
        """
        old = self.spec
        new = replace(old, lt=old.lt if lt is None else lt, ut=ut or old.ut)
        self.reader.set_thresholds(*new.thresholds(*self._sizes))
        self.spec = new

    def pause(self, *, paused: bool) -> None:
        self.reader.pause(paused=paused)

    def look(self) -> None:
        self.reader.poll()

    def close(self) -> None:
        self.reader.close()
