"""Process groups of ranks that have proved who they are, and what ranks tell each other in them.

Gloo gives a connection to whoever is the first to write a peer's number, and on a machine with
other users that may be one of them. So each pair of a new group proves in both directions that
it knows a secret, before anything else goes through it; a group in which one pair cannot is
made anew. NCCL's pairs know each other by a number that only the store has.

What ranks say is MessagePack of dataclasses, checked where it arrives: never a pickle.
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

_TRIES = 20  # to make a group; who always comes first keeps ranks from meeting, no more
_MEET_S = 8.0  # to connect: whose peer a stranger has hung up on would wait for ever
_PROOF_S = 5.0  # for the others' answers: all have just met
_SAY_S = 15.0  # for their word on it
_BYTES = 32  # of a nonce, and of a proof


class UnauthenticatedPeer(RuntimeError):
    """Somebody who does not know the secret takes part in each group that is made."""


def begin(
    store: Store,
    backend: str,
    rank: int,
    world: int,
    secret: bytes,
    patience: timedelta,
) -> None:
    """The default group, proved; `dist.destroy_process_group` ends it.

    Args:
        store: that all ranks reach.
        backend: "gloo" or "nccl".
        rank: of this process.
        world: how many there are.
        secret: that all ranks of this group know, and nobody else.
        patience: for a collective.

    Raises:
        Unproved: a stranger was there each time.
        ConnectionError: a rank is gone.
    """
    for number in range(_TRIES):
        own = PrefixStore(f"meeting {number}", store)
        # All at the same moment: a stranger has less time to come first.
        _all_say(own, "ready", rank, world, "yes", patience)
        good = False
        # Names of groups are counted in each process: a try that failed has left its own.
        distributed_c10d._world.group_count = 0
        with suppress(RuntimeError):  # a pair broke while it was made
            meet = _meet(patience, backend)
            dist.init_process_group(
                backend, store=own, rank=rank, world_size=world, timeout=meet
            )
            assert isinstance(dist.group.WORLD, dist.ProcessGroup)
            good = _proved(dist.group.WORLD, secret, patience)
        word, soon = "yes" if good else "no", timedelta(seconds=_SAY_S)
        # Its own eyes count: others may be able to write into the store.
        if _all_say(own, "proved", rank, world, word, soon) == {"yes"} and good:
            return
        if dist.is_initialized():
            dist.destroy_process_group()
    raise UnauthenticatedPeer(_words())


def new_group(
    ranks: Sequence[int] | None = None, backend: str | None = None
) -> dist.ProcessGroup | None:
    """A group beside the default one, proved; None for who is not in it.

    All ranks of the default group must call this, at the same time, with the same arguments.

    Raises:
        Unproved: a stranger was there each time.
    """
    patience = distributed_c10d.default_pg_timeout
    meet = _meet(patience, backend or dist.get_backend())
    for _ in range(_TRIES):
        secret = bytes(
            _from_first(torch.tensor(list(secrets.token_bytes(_BYTES)))).tolist()
        )
        own, found = None, False
        with suppress(RuntimeError):  # a pair broke while it was made
            members = None if ranks is None else list(ranks)
            made = dist.new_group(members, meet, backend)
            own = made if isinstance(made, dist.ProcessGroup) else None  # else not a member
            found = own is None or _proved(own, secret, patience)
        good = torch.tensor([int(found)], device=_device())
        dist.all_reduce(good, dist.ReduceOp.MIN)
        if good.item():
            return own
        if own is not None:
            dist.destroy_process_group(own)
    raise UnauthenticatedPeer(_words())


def of_all(backend: str | None = None) -> dist.ProcessGroup:
    """A group of all ranks beside the default one; every rank must call this."""
    made = new_group(backend=backend)
    assert made is not None
    return made


def _words() -> str:
    return (
        f"A ProcessGroup was made {_TRIES} times, and each time somebody else had taken a rank's "
        "place: a program of another user connects to each new port of this machine. See who "
        "that is (`ps aux`), or train with one process."
    )


def _all_say(
    store: Store, what: str, rank: int, world: int, own: str, patience: timedelta
) -> set[str]:
    """What each rank says; waits for all."""
    store.set(f"{what} {rank}", own)
    keys = [f"{what} {other}" for other in range(world)]
    try:
        store.wait(keys, patience)
    except RuntimeError as error:
        why = f"A rank of this ProcessGroup said nothing for {patience.total_seconds():g} s"
        raise ConnectionError(f"{why}: it is gone, or stands still.") from error
    return {store.get(key).decode() for key in keys}


def _meet(patience: timedelta, backend: str) -> timedelta:
    """For a group to come up: Gloo's is patient only then, NCCL's connects later."""
    return min(patience, timedelta(seconds=_MEET_S)) if backend == "gloo" else patience


def _proved(group: dist.ProcessGroup, secret: bytes, patience: timedelta) -> bool:
    """Whether each pair of this rank knows the secret, as far as this rank can see.

    From then on a collective may take `patience`.
    """
    own, members = dist.get_rank(), dist.get_process_group_ranks(group)
    others = [rank for rank in members if rank != own]
    if dist.get_backend(group) != "gloo":
        return True
    group._get_backend(torch.device("cpu"))._set_default_timeout(patience)
    nonces = {rank: secrets.token_bytes(_BYTES) for rank in others}
    with suppress(RuntimeError):  # a pair is broken, or silent for too long
        asked = _exchanged(group, nonces)
        said = _exchanged(group, {r: _proof(secret, own, r, asked[r]) for r in others})
        return all(
            hmac.compare_digest(said[r], _proof(secret, r, own, nonces[r])) for r in others
        )
    return False


def _proof(secret: bytes, sender: int, receiver: int, nonce: bytes) -> bytes:
    return hmac.digest(secret, f"{sender} to {receiver}".encode() + nonce, "sha256")


def _exchanged(group: dist.ProcessGroup, out: dict[int, bytes]) -> dict[int, bytes]:
    """Bytes to each, and from each, past no third."""
    patience = timedelta(seconds=_PROOF_S)
    sent = {rank: torch.tensor(list(said), dtype=torch.uint8) for rank, said in out.items()}
    got = {rank: torch.empty(_BYTES, dtype=torch.uint8) for rank in out}
    works = [dist.irecv(got[rank], rank, group) for rank in out]
    works += [dist.isend(sent[rank], rank, group) for rank in out]
    for work in works:
        assert work is not None  # this process belongs to the group
        work.wait(patience)
    return {rank: bytes(said.tolist()) for rank, said in got.items()}


# What ranks tell each other


def from_all(own: T, kind: type[T], group: dist.ProcessGroup | None = None) -> list[T]:
    """What each rank has, in their order; every rank must call this.

    Raises:
        MessageError: what one says is none of this kind.
    """
    device, world = _device(group), dist.get_world_size(group)
    said = _bytes_of(own, device)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world)]
    dist.all_gather(sizes, torch.tensor([len(said)], device=device), group=group)
    room = max(int(size) for size in sizes)
    every = [torch.empty(room, dtype=torch.uint8, device=device) for _ in range(world)]
    dist.all_gather(
        every, torch.nn.functional.pad(said, (0, room - len(said))), group=group
    )
    return [
        from_msgpack(kind, bytes(one[: int(size)].cpu().numpy()))
        for one, size in zip(every, sizes, strict=True)
    ]


def from_first(own: T, kind: type[T]) -> T:
    """What rank 0 has; every rank must call this.

    Raises:
        MessageError: it is none of this kind.
    """
    device = _device()
    said = _bytes_of(own, device)
    size = int(_from_first(torch.tensor([len(said)])))
    if dist.get_rank():
        said = torch.empty(size, dtype=torch.uint8, device=device)
    return from_msgpack(kind, bytes(_from_first(said).cpu().numpy()))


def _from_first(own: Tensor) -> Tensor:
    shared = own.to(_device())
    dist.broadcast(shared, 0)
    return shared


def _bytes_of(own: object, device: torch.device) -> Tensor:
    return torch.frombuffer(bytearray(to_msgpack(own)), dtype=torch.uint8).to(device)


def _device(group: dist.ProcessGroup | None = None) -> torch.device:
    """Where tensors lie that go through a group."""
    nccl = dist.get_backend(group) == "nccl"
    return (
        torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
    )
