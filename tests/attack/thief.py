"""Comes first: connects to each port of this machine as soon as it listens, as a rank's peer.

Started with `python -I -S -c SOURCE [UID]`; becomes that user at once. Standard library only.
Gloo hands the connection of a rank to whoever is the first to write its number. Says how often
it was let in when its input ends.
"""

import contextlib
import os
import select
import socket
import struct
import sys

# What it goes on with: nothing, nothing more at all, noise, what an operation of Gloo looks like.
WORDS = (b"", None, bytes(4096), b"\xff" * 4096, struct.pack("<QQQQQ", 5, 0, 0, 2**40, 0))
MOST = 2000  # connections that it holds


def listening():
    ports = set()
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(name, "rb") as file:
            for line in list(file)[1:]:
                _, local, _, state = line.split()[:4]
                if state == b"0A":
                    ports.add(int(local.rpartition(b":")[2], 16))
    return ports


def main():
    if len(sys.argv) > 1:
        user = int(sys.argv[1])
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    known, held, count = listening(), [], 0
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while not select.select([sys.stdin], [], [], 0)[0]:
        now = listening()
        for port in now - known:
            for number in range(4):
                words = WORDS[count % len(WORDS)]
                with contextlib.suppress(OSError):
                    wire = socket.socket()  # a name would need a codec: see stranger.py
                    wire.settimeout(0.2)
                    wire.connect(("127.0.0.1", port))
                    wire.sendall(struct.pack("<q", number) + (words or b""))
                    count += 1
                    wire.close() if words is None else held.append(wire)
        known = now
        while len(held) > MOST:
            held.pop(0).close()
    sys.stdout.write(f"{count}\n")
    sys.stdout.flush()


main()
