"""Local data sets: how training images are dealt to workers (ECD-001).

The paper does not say how. "Each of them holds a local dataset" suggests shares of equal size
at random; its Table 1 suggests that every worker has all images in a different order, since
E-DNN_L loses only 0.6 points on S-DNN, no more with 8 workers than with 4. Label-skewed shares,
class by class from a Dirichlet distribution as in federated learning, are there to study
uneven data.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from kdlab.config import Fault
from kdlab.config.spec import POSITIVE, Spec
from kdlab.data.counter_random import permutation
from kdlab.errors import BadInput

_TRIES = 100


@dataclass(frozen=True, kw_only=True)
class Shards(Spec):
    """How training images are dealt to workers.

    kind: `iid` deals at random, `dirichlet` gives each class unevenly, `all` gives every
        worker all images, in a different order.
    concentration: of the Dirichlet distribution; the smaller, the fewer classes a worker has.
    seed: of the deal; the same for all seeds of a run.
    """

    kind: Literal["iid", "dirichlet", "all"] = "iid"
    concentration: Annotated[float, POSITIVE] = 0.5
    seed: int = 0

    def cross_faults(self) -> Iterator[Fault]:
        if self.kind != "dirichlet" and self.concentration != Shards.concentration:
            yield Fault("concentration", f"has no effect with kind: {self.kind}")

    def order(self, seed: int, worker: int) -> int:
        """Seed of a worker's order: a different one for each where all share the images."""
        return seed + 1_000_003 * worker if self.kind == "all" else seed

    def dealt(
        self, ids: NDArray[np.int64], labels: NDArray[np.int64], workers: int, least: int
    ) -> list[NDArray[np.int64]]:
        """Ids of each worker: every id once, or at every worker (`all`).

        Args:
            ids: of the training images.
            labels: of all images, by id.
            workers: K.
            least: images each worker must have, for example one batch.

        Raises:
            BadInput: the data is too small for so many workers.
        """
        if len(ids) < (1 if self.kind == "all" else workers) * least:
            lower = "" if self.kind == "all" else "method.workers or "
            raise BadInput(
                f"{len(ids)} training images are too few for {workers} workers: each needs at "
                f"least {least}, one batch. Lower {lower}train.batch."
            )
        if self.kind == "all":
            return [np.sort(ids)] * workers
        if self.kind == "iid" or workers == 1:
            shuffled = permutation(self.seed, 0, ids)
            return [np.sort(part) for part in np.array_split(shuffled, workers)]
        for attempt in range(_TRIES):
            parts = self._skewed(ids, labels, workers, attempt)
            if min(map(len, parts)) >= least:
                return parts
        raise BadInput(
            f"No deal of {len(ids)} images to {workers} workers with concentration "
            f"{self.concentration:g} gave each at least {least} ({_TRIES} were drawn). Raise "
            "method.shards.concentration, or lower train.batch."
        )

    def _skewed(
        self, ids: NDArray[np.int64], labels: NDArray[np.int64], workers: int, attempt: int
    ) -> list[NDArray[np.int64]]:
        generator = np.random.default_rng([self.seed, attempt])
        parts: list[list[NDArray[np.int64]]] = [[] for _ in range(workers)]
        for label in np.unique(labels[ids]):
            rows = generator.permutation(ids[labels[ids] == label])
            shares = generator.dirichlet([self.concentration] * workers)
            ends = np.rint(np.cumsum(shares)[:-1] * len(rows)).astype(int)
            for part, dealt in zip(parts, np.split(rows, ends), strict=True):
                part.append(dealt)
        return [np.sort(np.concatenate(part)) for part in parts]
