"""A disk that takes so many writes of a run, and then none."""

import errno
import math
from pathlib import Path

from kdlab.config import home
from kdlab.events.log import EventLog
from kdlab.train import checkpoint


class SmallDisk:
    """Room comes again with the reserve that a run deletes, unless others take it at once."""

    def __init__(self, monkeypatch, writes, gives=True):
        self.room, self.taken, self.refused = writes, 0, 0
        write_home, bytes_, emit = home.write_whole, Path.write_bytes, EventLog.emit
        save_file, unlinked = checkpoint.save_file, Path.unlink

        def write_bytes(path, data):
            self.take()
            return bytes_(path, data)

        def write_whole(path, write):
            self.take()
            write_home(path, write)

        def emitted(log, event):
            self.take()
            emit(log, event)

        def unlink(path, missing_ok=False):
            if gives and path.name == ".reserve" and path.exists():
                self.room = math.inf
            unlinked(path, missing_ok)

        def saved(tensors, path):
            self.take()
            save_file(tensors, path)

        monkeypatch.setattr(Path, "write_bytes", write_bytes)
        monkeypatch.setattr(Path, "unlink", unlink)
        monkeypatch.setattr(home, "write_whole", write_whole)
        monkeypatch.setattr(EventLog, "emit", emitted)
        monkeypatch.setattr(checkpoint, "save_file", saved)

    def take(self):
        if self.room <= 0:
            self.refused += 1
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= 1
        self.taken += 1
