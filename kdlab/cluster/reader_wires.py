"""The reader's two wires: to its teachers and to the coordinator, over Dask's RPC.

Measured (`kdlab bench transport`): with requests under way while others are computed,
the round trip does not show in the student's rate, so no leaner wire is kept beside it.
"""

from typing import Any

import numpy as np
from distributed.core import ConnectionPool
from numpy.typing import NDArray

from kdlab.cluster.messages import decode, request
from kdlab.cluster.security import connection_arguments
from kdlab.cluster.wire import CALL_S, within


class Unusable(Exception):
    """A teacher answered, and the answer cannot be trained on."""


class Unreachable(Exception):
    """A request came to nothing on the way."""


class Wires:
    def __init__(self, pool: ConnectionPool, config: dict[str, Any]) -> None:
        self._pool, self._config = pool, config

    @classmethod
    async def open(cls, config: dict[str, Any]) -> "Wires":
        pool = await ConnectionPool(
            limit=4096, timeout=5, connection_args=connection_arguments()
        )
        return cls(pool, config)

    def connections(self) -> int:
        """Open ones, to teachers and to the coordinator."""
        return int(self._pool.open)

    async def close(self) -> None:
        await self._pool.close()

    async def soft_labels(
        self,
        teacher: str,
        epoch: int,
        ids: NDArray[np.int64],
        views: NDArray[np.uint8] | None,
    ) -> NDArray[np.float32]:
        """(N, classes) float32 logits of these samples.

        Raises:
            Unreachable: no connection, or no answer within the deadline.
            Unusable: an error of the teacher, a wrong shape, numbers that are not finite.
        """
        config = self._config
        call = self._pool(teacher).kdlab_infer(
            epoch=epoch,
            replies=config["replies"],
            top_k=config["top_k"],
            **request(config["inputs"], ids, views),
        )
        try:
            answer = await within(config["deadline_s"], call)
        except TimeoutError:
            raise Unreachable(f"no answer within {config['deadline_s']:g} s") from None
        except OSError as error:  # Dask's CommClosedError is one
            raise Unreachable(f"its connection broke ({type(error).__name__})") from error
        except Exception as error:  # raised by the teacher's own code, of any kind
            raise Unusable(f"it raised {brief(error)}") from error
        try:
            logits = decode(answer, config["classes"])
        except ValueError as error:
            raise Unusable(brief(error)) from error
        trouble = _trouble(logits, (len(ids), config["classes"]))
        if trouble:
            raise Unusable(trouble)
        return logits

    async def coordinator(self, operation: str, **arguments: Any) -> Any:
        """One call about this student.

        Raises:
            OSError, TimeoutError: the scheduler is gone or silent.
        """
        remote = self._pool(self._config["coordinator"])
        call = getattr(remote, f"kdlab_{operation}")
        return await within(CALL_S, call(student=self._config["student"], **arguments))


def _trouble(logits: NDArray[np.float32], shape: tuple[int, int]) -> str:
    """Why an answer cannot be used; empty when it can."""
    if logits.shape != shape:
        return f"it answered with shape {logits.shape}, expected {shape}"
    bad = int((~np.isfinite(logits)).sum())
    return f"{bad} of {logits.size} numbers of its answer are not finite" if bad else ""


def brief(error: BaseException) -> str:
    text = str(error).split("\n", 1)[0]
    return f"{type(error).__name__}: {text}"[:300]
