"""A teacher's loaded model: check it, choose its engine, measure its rate and batch size."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kdlab.cluster.deployment import Deployment
from kdlab.cluster.limits import free_memory
from kdlab.cluster.teachers.engines_of_teacher import EnginesOfTeacher, few_enough
from kdlab.cluster.teachers.label_cache import LabelCache
from kdlab.cluster.teachers.probe import probe_images, proof_of
from kdlab.data.images import ImageData
from kdlab.data.splits import by_class
from kdlab.errors import DataError, TeacherRefused
from kdlab.models.device_feed import DeviceFeed, PendingResult
from kdlab.models.engines import Predict
from kdlab.models.ensemble import Combination, combined
from kdlab.models.memory import keep_freed_memory
from kdlab.models.model import check_fit, load_weights
from kdlab.papers.edl_dist.request_sizes import best_and_least, measure_sizes

_MEASURE_S = 0.4  # and each size at least once
_KEPT_BYTES = 2**28  # of cached answers at most, and this share of the free memory
_KEPT_SHARE = 0.1
_EXAMPLES = 32  # most views that engines are measured with
_RANGES = 300  # views from which int8 takes its ranges
_AS_GOOD = 0.95  # of the rate: then the larger batch is chosen
_NEW = 0.1  # weight of the newest value in a running rate
_GATHERED = 1024  # most samples of several students in a batch
_GATHERED_S = 0.1  # longest batch, for which a small request may have to wait


@dataclass(slots=True)
class RunningRate:
    """Running means of samples and of their seconds; the ratio is the rate.

    Not a mean of rates: a batch that was ready long ago takes no time, and the one before it more.
    """

    samples: float
    seconds: float

    def add(self, samples: float, seconds: float) -> float:
        self.samples += _NEW * (samples - self.samples)
        self.seconds += _NEW * (seconds - self.seconds)
        return self.samples / max(self.seconds, 1e-9)


class LoadedModel:
    def __init__(
        self,
        deployment: Deployment,
        weights: list[Path],
        threads: int,
        device: str,
        number: int = 0,
    ) -> None:
        keep_freed_memory()
        torch.set_num_threads(threads)  # Dask's nanny exports OMP_NUM_THREADS=1
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device == "cuda":
            device = f"cuda:{number % torch.cuda.device_count()}"
        self.device, self.deployment, self.weights = device, deployment, weights
        self.feed = DeviceFeed(torch.device(device))
        self._pace: RunningRate | None = None  # starts from the measured rate
        self.model = self._load(weights)
        self.engines: EnginesOfTeacher | None = None  # None: plain PyTorch
        self._ask: Predict = self.model
        self.data: ImageData | None = None
        self.cache: LabelCache | None = None  # None where answers are not shared
        self.t_t = 0.0  # samples/s while it computes
        self.best_batch = deployment.batch
        self.min_batch = 1  # samples; smaller batches are inefficient

    def _load(self, weights: list[Path]) -> nn.Module:
        deployment, members = self.deployment, []
        specs = deployment.model_specs()
        for spec, path, known in zip(specs, weights, deployment.members, strict=True):
            member = spec.build(deployment.num_classes, deployment.shape[0])
            load_weights(member.net, path, known.sha256)
            members.append(member)
        how = deployment.combination or Combination.from_weights(
            [m.weight for m in deployment.members]
        )
        model = combined(members, how)
        check_fit(model, deployment.shape, deployment.num_classes, "the teacher")
        model.eval()
        return model.requires_grad_(requires_grad=False).to(self.device)

    @torch.inference_mode()
    def _predict(self, views: Sequence[NDArray[Any]], ask: Predict) -> PendingResult:
        """(N, C, H, W) views, uint8 or float32 from 0 to 1 -> (sum of N, classes) logits."""
        pixels = self.feed.concatenate(views)
        if pixels.dtype != torch.uint8:
            pixels = pixels * 255  # the models' normalisation expects 0 to 255
        if len(pixels) > 1:
            return PendingResult(ask(pixels).float())
        # Other kernels compute a single row, with other last bits than in a student's whole batch.
        return PendingResult(ask(pixels.repeat(2, 1, 1, 1)).float()[::2])

    @property
    def engine(self) -> str | None:
        """Description of the engine and of those tried; None where none was to be chosen."""
        return None if self.engines is None else self.engines.described

    @property
    def in_use(self) -> str:
        """Engine that computes now, and its precision: `eager fp32`."""
        return "eager fp32" if self.engines is None else self.engines.in_use.chosen.label

    def choose_engine(self, say: Callable[[str], None]) -> None:
        """Choose the fastest engine that agrees, where the deployment lets the teacher choose."""
        if self.deployment.engine == "eager":
            return
        views = torch.from_numpy(self._examples()).to(self.device)

        def changed(gain: float) -> None:
            self.t_t *= gain
            self._pace = None
            if self.cache is not None:  # labels of two precisions are not mixed
                self.cache.clear()
            say(f"computes with {self.engine}")

        self.engines = EnginesOfTeacher(
            self.model,
            self.deployment,
            torch.get_num_threads(),
            few_enough(self.model, views),
            changed,
            None if self.data is None else self._shown,
        )
        self._ask = self.engines.in_use
        say(f"computes with {self.engine}")

    def _examples(self) -> NDArray[np.uint8]:
        """Views of the data, where it is loaded; else synthetic images."""
        count = min(self.deployment.batch, _EXAMPLES)
        if self.data is None:
            shape = self.deployment.shape
            return np.resize(probe_images(shape), (count, *shape))
        views: NDArray[np.uint8] = self.data.views(self.data.train[:count], 0)
        return views

    def _shown(self) -> torch.Tensor:
        """Views from which int8 takes its ranges, of all classes: folders list them by class."""
        assert self.data is not None
        rows, _ = by_class(self.data.train, self.data.labels, _RANGES, 0)
        return torch.from_numpy(self.data.views(rows, 0))

    def probe(self) -> list[list[float]]:
        """Answer to the probe images, which proves that it is the right model."""
        ask = self.model if self.engines is None else self.engines.in_use.predict_unobserved
        return proof_of(self._predict([probe_images(self.deployment.shape)], ask).get())

    def measure(self) -> None:
        """Measure t_t of EDL-Dist, samples/s without the cost of inputs (3.2), and the batch size.

        Sizes take turns, so that drift affects all, up to one that takes longer than a part may.
        """

        def prepared(size: int) -> float:
            self._seconds(size)  # the first call of a shape is slower
            return self._seconds(size)

        first = measure_sizes(self.deployment.batch, prepared)
        seconds = {size: [took] for size, took in first.items()}
        begin = time.perf_counter()
        while time.perf_counter() - begin < _MEASURE_S:
            for size, taken in seconds.items():
                taken.append(self._seconds(size))
        each = {size: median(taken) for size, taken in seconds.items()}
        self.best_batch, self.min_batch = best_and_least(each)
        self.t_t = self.best_batch / each[self.best_batch]
        if self.best_batch == self.deployment.batch:
            self._measure_gathered()

    def _measure_gathered(self) -> None:
        """Raise the best batch size where batches of several students compute faster."""
        while (size := 2 * self.best_batch) <= _GATHERED and size / self.t_t <= _GATHERED_S:
            try:
                self._seconds(size)  # a warm-up
            except torch.OutOfMemoryError:
                return
            sizes = self.best_batch, size
            taken = [tuple(map(self._seconds, sizes)) for _ in range(3)]
            gain = median(2 * single / double for single, double in taken)
            if gain * _AS_GOOD < 1:
                return
            self.best_batch, self.t_t = size, self.t_t * gain

    def timed(self, count: int, seconds: float) -> None:
        """Update t_t by samples that were computed, with their views, in these seconds."""
        if self._pace is None:
            size = max(1, self.best_batch)
            self._pace = RunningRate(size, size / max(self.t_t, 1e-9))
        self.t_t = self._pace.add(count, seconds)

    def load_data(self) -> None:
        """Load the data set, where samples come by reference.

        Raises:
            TeacherRefused, DataError: it is missing or differs, and teachers without it get
                no pixels instead.
        """
        if not self.deployment.by_reference:
            return
        try:
            self.data = self.deployment.load_data()
            if self.deployment.share_answers:
                room = min(_KEPT_BYTES, int(_KEPT_SHARE * free_memory()))
                ids, classes = self.data.ids_below, self.deployment.num_classes
                self.cache = LabelCache(ids, classes, room)
        except (TeacherRefused, DataError) as error:
            if not self.deployment.or_value:
                raise
            logging.getLogger("kdlab").warning("served by value: %s", error)

    def local_share(self) -> float:
        """Share of the data that is on this machine; 0 where the data was not found."""
        lacks = 0.0 if self.deployment.by_reference else 1.0
        return lacks if self.data is None else self.data.local_share()

    def _seconds(self, size: int) -> float:
        """Seconds of the engine for a batch of synthetic images."""
        batch = np.zeros((size, *self.deployment.shape), np.uint8)
        begin = time.perf_counter()
        ask = self._ask if self.engines is None else self.engines.first.ask
        self._predict([batch], ask).get()
        return time.perf_counter() - begin
