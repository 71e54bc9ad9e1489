"""Attacks by somebody on the same machine who knows no secret. Standard library only.

Started with `python -I -S -c SOURCE [UID]`; becomes that user at once. Reads one JSON per
line: {"port", "pid", "dask", "cert"}; answers each with {"port", "attempts", "breaches"}. A
breach is an answer of a server that tells or does something, or a file or process that could
be touched.
"""

import contextlib
import json
import os
import re
import socket
import ssl
import struct
import sys
import tempfile
import time

PAGES = (
    "/",
    "/health",
    "/info/main/workers.html",
    "/json/counts.json",
    "/status",
    "/metrics",
    "/api/2.0/mlflow/experiments/search?max_results=10",
    "/ajax-api/2.0/mlflow/experiments/search?max_results=10",
    "/?token=guessed",
)

# A TLS alert, a closed page, a server of Dask without pages.
REFUSED = re.compile(
    rb"\x15\x03|HTTP/1\.[01] (400|401|403|404 Not Found\r\nServer: Tornado)"
)


def opened(port):
    wire = socket.socket()  # names would need a codec, whose file cannot be read any more
    wire.settimeout(3)
    wire.connect(("127.0.0.1", port))
    wire.settimeout(0.3)
    return wire


def heard(wire, words, limit=4096):
    """Send these words, and return what comes back."""
    with contextlib.suppress(OSError):
        wire.sendall(words)
        return wire.recv(limit)
    return b""


def page(port, path, method=b"GET", body=b""):
    head = b"%s %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n" % (
        method,
        path.encode(),
        port,
    )
    head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    with opened(port) as wire:
        wire.settimeout(2)
        answer = heard(wire, head + body)
    return answer


def webpages(port, order):
    for path in PAGES:
        yield f"GET {path}", page(port, path)
    body = json.dumps({"experiment_id": "1"}).encode()
    yield "delete", page(port, "/api/2.0/mlflow/experiments/delete", b"POST", body)


def dask_calls(port, order):
    """A handshake and a call that runs a function, as Dask frames them."""
    for words in map(bytes.fromhex, order["dask"]):
        with opened(port) as wire:
            first = heard(wire, b"")  # a server without certificates greets first
            yield "Dask in the open", first + heard(wire, words)


def dask_with_tls(port, order):
    """Dask's calls inside TLS: without a certificate, and with one of another authority."""
    for certificate in (None, order["cert"]):
        for words in map(bytes.fromhex, order["dask"]):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            if certificate:
                with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                    file.write(certificate)
                    file.flush()
                    context.load_cert_chain(file.name)
            answer = b""
            with contextlib.suppress(OSError), opened(port) as wire:
                wire.settimeout(2)
                with context.wrap_socket(wire) as inside:
                    answer = heard(inside, words)
            yield f"Dask in TLS, certificate: {bool(certificate)}", answer


def label_frames(port, order):
    frame = struct.pack("<4sIQ", b"kdl1", 2, 0) + b"{}"
    large = struct.pack("<4sIQ", b"kdl1", 64, 2**40) + b"{" * 64
    ids = json.dumps({"number": 1, "epoch": 0, "replies": "full",
                      "arrays": [["ids", "<i8", [1]]]}).encode()  # fmt: skip
    request = struct.pack("<4sIQ", b"kdl1", len(ids), 8) + ids + bytes(8)
    for words in (frame, large, request, b"kdlA" + bytes(16) + bytes(32) + request):
        with opened(port) as wire:
            answer = heard(wire, words)
            # A nonce and a proof are what a greeting gets; a request must get nothing.
            more = heard(wire, request) if len(answer) == 48 else answer
            yield "label wire", more


def sequence_numbers(port, order):
    """Gloo hands a connection to whoever waits for its number."""
    for number in range(100):
        with opened(port) as wire:
            wire.settimeout(0.005)
            yield "gloo", heard(wire, struct.pack("<q", number))


def floods(port, order):
    for words in (os.urandom(1 << 20), bytes(32 << 20), b"\xff" * 4096):
        with opened(port) as wire:
            begin = time.monotonic()
            with contextlib.suppress(OSError):
                wire.settimeout(2)
                wire.sendall(words)
            assert time.monotonic() - begin < 60
            yield "flood", b""
    silent = []
    for _ in range(60):
        with contextlib.suppress(OSError):
            silent.append(opened(port))
    yield "silent connections", b""
    time.sleep(1)  # they are held for so long
    for wire in silent:
        wire.close()


def belongings(order):
    """Files and processes of the run."""
    for path in order["files"]:
        for flag, what in ((os.O_RDONLY, "read"), (os.O_WRONLY, "written")):
            with contextlib.suppress(OSError):
                os.close(os.open(path, flag))
                yield f"{path} can be {what}"
    for name in ("environ", "mem", "fd", "cwd"):
        with contextlib.suppress(OSError):
            path = f"/proc/{order['pid']}/{name}"
            os.listdir(path) if name in ("fd", "cwd") else os.close(
                os.open(path, os.O_RDONLY)
            )
            yield f"{path} can be read"
    with contextlib.suppress(OSError):
        os.kill(order["pid"], 0)
        yield f"process {order['pid']} can be signalled"


def main():
    if len(sys.argv) > 1:
        user = int(sys.argv[1])
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    for line in sys.stdin:
        order = json.loads(line)
        attempts, breaches, port = 0, [], order["port"]
        if "files" in order:
            breaches += belongings(order)
            attempts += 2 * len(order["files"]) + 5
        for way in (webpages, dask_calls, dask_with_tls, label_frames, sequence_numbers,
                    floods) if port else ():  # fmt: skip
            try:
                for what, answer in way(port, order):
                    attempts += 1
                    if answer and not REFUSED.match(answer):
                        breaches.append(f"{what}: {answer[:80]!r}")
            except OSError:
                attempts += 1  # shut in our face
        report = {"port": port, "attempts": attempts, "breaches": breaches}
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()


main()
