"""One variant of `kdlab bench peers` in a process of its own: what memory does it need?"""

import psutil

from benchmarks.peer_loops import PEERS
from benchmarks.peers import PeerMemoryConfig, PeerScene
from benchmarks.slices import BUFFER
from kdlab.supervision.children import announce, configured

_STEPS = 2 * BUFFER + 8  # all buffers are full then


def main() -> None:
    config = configured(PeerMemoryConfig)
    name = config.variant
    with PeerScene(config.folder) as scene:
        variant = scene.peer(name) if name in PEERS else scene.kdlab(name)
        most = 0.0
        for _ in range(_STEPS // 4):
            variant.advance(4)
            most = max(most, _held_mb())
        announce(mb=most)


def _held_mb() -> float:
    """Memory of this process and its children; pages that several share are divided among them."""
    own = psutil.Process()
    every = [own, *own.children(recursive=True)]
    return sum(p.memory_full_info().pss for p in every) / 1e6


if __name__ == "__main__":
    main()
