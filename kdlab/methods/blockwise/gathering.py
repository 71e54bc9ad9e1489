"""Gather every block's state on the master, which validates and saves it."""

import json
from dataclasses import dataclass

import torch
import torch.distributed as dist
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from kdlab.codec import from_json, to_builtins
from kdlab.methods.blockwise.device_stages import DeviceStages
from kdlab.methods.blockwise.job import BlockwiseJob
from kdlab.train import checkpoint


@dataclass(frozen=True, slots=True)
class Gathering:
    """Gathers weights and optimiser states of all blocks; each device has one."""

    job: BlockwiseJob
    stages: DeviceStages  # of this device
    talk: dist.ProcessGroup  # of all devices, through host memory

    @torch.no_grad()
    def collect(self) -> None:
        """Send all blocks to the master, as plain tensors; all devices must call this."""
        if self.job.norm != "sync":  # each device of a shared stage saw its own rows alone
            for worker in self.stages.workers:
                if len(worker.stage.devices) > 1:
                    worker.average_statistics()
        for block, pair in enumerate(self.job.cutting.pairs):
            owner = self.job.programme.owner(block)
            if owner == 0:
                continue
            if self.job.rank == owner:
                tensors, facts = self.packed(block)
                self._send(to_bytes(tensors))
                self._send(json.dumps(to_builtins(facts)).encode())
            elif self.job.rank == 0:
                tensors = from_bytes(self._receive(owner))
                facts = from_json(checkpoint.OptimizerFacts, self._receive(owner))
                checkpoint.unpack(
                    tensors, facts, pair.student, self.stages.optimizers[block], rank=-1
                )

    def packed(self, block: int) -> tuple[dict[str, Tensor], checkpoint.OptimizerFacts]:
        """Return tensors and facts of a block's student and optimiser, without random states."""
        tensors, facts = checkpoint.pack(
            self.job.cutting.pairs[block].student, self.stages.optimizers[block]
        )
        return {
            k: v.detach().contiguous().cpu()
            for k, v in tensors.items()
            if not k.startswith("random.")
        }, facts

    def _send(self, content: bytes) -> None:
        data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        dist.send(torch.tensor([len(content)]), 0, group=self.talk)
        dist.send(data, 0, group=self.talk)

    def _receive(self, sender: int) -> bytes:
        size = torch.zeros(1, dtype=torch.int64)
        dist.recv(size, sender, group=self.talk)
        data = torch.empty(int(size), dtype=torch.uint8)
        dist.recv(data, sender, group=self.talk)
        return data.numpy().tobytes()
