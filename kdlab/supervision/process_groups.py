"""Authenticated process groups of ranks, and messages between their ranks.

Gloo gives a connection to the first process that writes a peer's number, and on a shared machine
that may be a process of another user. So each pair of a new group proves in both directions
that it knows a secret, before other data passes; a group in which one pair fails is created
again. NCCL's pairs know each other by a number that only the store has.

Messages are MessagePack of dataclasses, checked where they arrive: never a pickle.
"""

import hmac
import secrets
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import distributed_c10d

from kdlab.codec import from_msgpack, to_msgpack

T = TypeVar("T")

_TRIES = 20  # to create a group; a stranger who is always first can prevent it, no more
_MEET_S = 8.0  # to connect: a rank whose peer was cut off by a stranger would wait for ever
_PROOF_S = 5.0  # for the others' proofs: all have just connected
_ANSWER_S = 15.0  # for the others to report whether their proofs held
_BYTES = 32  # of a nonce, and of a proof


class UnauthenticatedPeer(RuntimeError):
    """A process without the secret took part in every group that was created."""


def begin(
    store: Store,
    backend: str,
    rank: int,
    world: int,
    secret: bytes,
    patience: timedelta,
) -> None:
    """Create and authenticate the default group; `dist.destroy_process_group` ends it.

    Args:
        store: that all ranks reach.
        backend: "gloo" or "nccl".
        rank: of this process.
        world: number of ranks.
        secret: known to all ranks of this group, and to nobody else.
        patience: timeout of a collective.

    Raises:
        UnauthenticatedPeer: a stranger took part each time.
        ConnectionError: a rank is lost.
    """
    for number in range(_TRIES):
        attempt = PrefixStore(f"meeting {number}", store)
        # All ranks start at once, so that a stranger has less time to be first.
        _all_answers(attempt, "ready", rank, world, "yes", patience)
        good = False
        # Each process numbers its groups: a failed try has used a number.
        distributed_c10d._world.group_count = 0
        with suppress(RuntimeError):  # a pair broke while the group was created
            meet = _meet(patience, backend)
            dist.init_process_group(
                backend, store=attempt, rank=rank, world_size=world, timeout=meet
            )
            assert isinstance(dist.group.WORLD, dist.ProcessGroup)
            good = _proved(dist.group.WORLD, secret, patience)
        answer, soon = "yes" if good else "no", timedelta(seconds=_ANSWER_S)
        # `good` counts too: strangers may be able to write into the store.
        if _all_answers(attempt, "proved", rank, world, answer, soon) == {"yes"} and good:
            return
        if dist.is_initialized():
            dist.destroy_process_group()
    raise UnauthenticatedPeer(_stranger_message())


def new_group(
    ranks: Sequence[int] | None = None, backend: str | None = None
) -> dist.ProcessGroup | None:
    """Create and authenticate another group; None in a process that is not in it.

    All ranks of the default group must call this, at the same time, with the same arguments.

    Raises:
        UnauthenticatedPeer: a stranger took part each time.
    """
    patience = distributed_c10d.default_pg_timeout
    meet = _meet(patience, backend or dist.get_backend())
    for _ in range(_TRIES):
        secret = bytes(
            _from_first(torch.tensor(list(secrets.token_bytes(_BYTES)))).tolist()
        )
        group, good = None, False
        with suppress(RuntimeError):  # a pair broke while the group was created
            members = None if ranks is None else list(ranks)
            created = dist.new_group(members, meet, backend)
            group = created if isinstance(created, dist.ProcessGroup) else None  # no member
            good = group is None or _proved(group, secret, patience)
        all_good = torch.tensor([int(good)], device=_device())
        dist.all_reduce(all_good, dist.ReduceOp.MIN)
        if all_good.item():
            return group
        if group is not None:
            dist.destroy_process_group(group)
    raise UnauthenticatedPeer(_stranger_message())


def group_of_all(backend: str | None = None) -> dist.ProcessGroup:
    """Create another group of all ranks; every rank must call this."""
    group = new_group(backend=backend)
    assert group is not None
    return group


def _stranger_message() -> str:
    return (
        f"The ranks created a ProcessGroup {_TRIES} times, and each time a stranger took a rank's "
        "place: a program of another user connects to each new port of this machine. Find it "
        "(`ps aux`), or train with one process."
    )


def _all_answers(
    store: Store, topic: str, rank: int, world: int, answer: str, patience: timedelta
) -> set[str]:
    """Publish this rank's answer, wait for all ranks, and return the distinct answers."""
    store.set(f"{topic} {rank}", answer)
    keys = [f"{topic} {number}" for number in range(world)]
    try:
        store.wait(keys, patience)
    except RuntimeError as error:
        why = f"A rank of this ProcessGroup is silent for {patience.total_seconds():g} s"
        raise ConnectionError(f"{why}: it is lost or hangs.") from error
    return {store.get(key).decode() for key in keys}


def _meet(patience: timedelta, backend: str) -> timedelta:
    """Timeout while a group connects: Gloo connects then, NCCL later."""
    return min(patience, timedelta(seconds=_MEET_S)) if backend == "gloo" else patience


def _proved(group: dist.ProcessGroup, secret: bytes, patience: timedelta) -> bool:
    """True where each peer of this rank proves that it knows the secret.

    Sets the timeout of later collectives to `patience`.
    """
    this, members = dist.get_rank(), dist.get_process_group_ranks(group)
    others = [rank for rank in members if rank != this]
    if dist.get_backend(group) != "gloo":
        return True
    group._get_backend(torch.device("cpu"))._set_default_timeout(patience)
    nonces = {rank: secrets.token_bytes(_BYTES) for rank in others}
    with suppress(RuntimeError):  # a pair broke, or was silent for too long
        theirs = _exchanged(group, nonces)
        proofs = _exchanged(group, {r: _proof(secret, this, r, theirs[r]) for r in others})
        return all(
            hmac.compare_digest(proofs[r], _proof(secret, r, this, nonces[r]))
            for r in others
        )
    return False


def _proof(secret: bytes, sender: int, receiver: int, nonce: bytes) -> bytes:
    return hmac.digest(secret, f"{sender} to {receiver}".encode() + nonce, "sha256")


def _exchanged(group: dist.ProcessGroup, out: dict[int, bytes]) -> dict[int, bytes]:
    """Exchange bytes with each peer; no third rank sees them."""
    patience = timedelta(seconds=_PROOF_S)
    sent = {rank: torch.tensor(list(raw), dtype=torch.uint8) for rank, raw in out.items()}
    got = {rank: torch.empty(_BYTES, dtype=torch.uint8) for rank in out}
    works = [dist.irecv(got[rank], rank, group) for rank in out]
    works += [dist.isend(sent[rank], rank, group) for rank in out]
    for work in works:
        assert work is not None  # this process belongs to the group
        work.wait(patience)
    return {rank: bytes(tensor.tolist()) for rank, tensor in got.items()}


# Messages between ranks


def from_all(value: T, kind: type[T], group: dist.ProcessGroup | None = None) -> list[T]:
    """Gather a value of each rank, in the order of ranks; every rank must call this.

    Raises:
        MessageError: a rank's value is not of this kind.
    """
    device, world = _device(group), dist.get_world_size(group)
    code = _bytes_of(value, device)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world)]
    dist.all_gather(sizes, torch.tensor([len(code)], device=device), group=group)
    room = max(int(size) for size in sizes)
    every = [torch.empty(room, dtype=torch.uint8, device=device) for _ in range(world)]
    dist.all_gather(
        every, torch.nn.functional.pad(code, (0, room - len(code))), group=group
    )
    return [
        from_msgpack(kind, bytes(padded[: int(size)].cpu().numpy()))
        for padded, size in zip(every, sizes, strict=True)
    ]


def from_first(value: T, kind: type[T]) -> T:
    """Broadcast the value of rank 0; every rank must call this.

    Raises:
        MessageError: it is not of this kind.
    """
    device = _device()
    code = _bytes_of(value, device)
    size = int(_from_first(torch.tensor([len(code)])))
    if dist.get_rank():
        code = torch.empty(size, dtype=torch.uint8, device=device)
    return from_msgpack(kind, bytes(_from_first(code).cpu().numpy()))


def _from_first(value: Tensor) -> Tensor:
    shared = value.to(_device())
    dist.broadcast(shared, 0)
    return shared


def _bytes_of(value: object, device: torch.device) -> Tensor:
    return torch.frombuffer(bytearray(to_msgpack(value)), dtype=torch.uint8).to(device)


def _device(group: dist.ProcessGroup | None = None) -> torch.device:
    """Device of the tensors that a group sends."""
    nccl = dist.get_backend(group) == "nccl"
    return (
        torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
    )
