"""Frames of the label wire: torn anywhere, too long, hostile; nothing is taken on trust."""

import json
import re
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdlab.cluster.transport.frames import Frames, ProtocolError, size_of
from kdlab.codec import MessageError

MOST = 10_000  # bytes of a body


class Transport:
    """Keeps what is written to it."""

    def __init__(self):
        self.written, self.aborted = [], False

    def write(self, data):
        self.written.append(bytes(data))

    def abort(self):
        self.aborted = True


class End(Frames):
    """Keeps the frames that came, and why others were not."""

    def __init__(self, secret=None, largest=MOST):
        super().__init__(lambda: largest, secret)
        self.frames, self.errors, self.transport = [], [], Transport()

    def on_frame(self, header, arrays):
        self.frames.append((header, arrays))

    def on_nonsense(self, error):
        self.errors.append(error)

    def feed(self, data, *cuts):
        """These bytes as a socket brings them, cut at these places."""
        for start, stop in zip((0, *cuts), (*cuts, len(data)), strict=True):
            rest = data[start:stop]
            while rest and not self.transport.aborted:
                into = self.get_buffer(len(rest))
                count = min(len(into), len(rest))
                into[:count] = rest[:count]
                self.buffer_updated(count)
                rest = rest[count:]
        return self


def framed(header, **arrays):
    """The bytes of a frame."""
    end = End()
    end.write(header, arrays)
    return b"".join(end.transport.written)


def raw(header, body=b"", *, magic=b"kdl1", head_size=None, body_size=None):
    """Return a frame with this head and these sizes, right or wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    sizes = (head_size or len(text), len(body) if body_size is None else body_size)
    return struct.pack("<4sIQ", magic, *sizes) + text + body


def head(*arrays):
    return {"number": 1, "arrays": list(arrays)}


SMALL = {"ids": np.arange(5, dtype=np.int64), "half": np.ones((2, 3), np.float16)}
LARGE = {"views": np.arange(9_000, dtype=np.uint8).reshape(9, 1_000)}
EMPTY = {"none": np.zeros((0, 7), np.float32)}


@given(st.lists(st.integers(0, 9_600), max_size=12).map(sorted))
@pytest.mark.long
def test_a_stream_that_is_torn_anywhere_gives_the_same_frames(cuts):
    sent = [SMALL, LARGE, {}, EMPTY, SMALL]
    data = b"".join(framed({"number": n}, **arrays) for n, arrays in enumerate(sent))
    end = End().feed(data, *(min(cut, len(data)) for cut in cuts))
    assert [header for header, _ in end.frames] == [{"number": n} for n in range(5)]
    for (_, got), arrays in zip(end.frames, sent, strict=True):
        assert got.keys() == arrays.keys()
        for name, array in arrays.items():
            assert got[name].dtype == array.dtype
            assert np.array_equal(got[name], array)
    assert not end.errors


def test_byte_by_byte_too():
    data = framed({"number": 1}, **SMALL) + framed({"number": 2})
    end = End().feed(data, *range(1, len(data)))
    assert len(end.frames) == 2


def test_what_comes_may_be_written_to_and_keeps_its_own_memory():
    end = End().feed(framed({}, **SMALL) + framed({}, **SMALL))
    (_, first), (_, second) = end.frames
    first["ids"][:] = 7
    assert np.array_equal(second["ids"], SMALL["ids"])


def test_half_a_frame_is_none():
    data = framed({"number": 1}, **LARGE)
    end = End().feed(data[:-1])
    assert end.frames == []
    assert end.feed(data[-1:]).frames[0][0] == {"number": 1}


def test_its_size_is_known_before_it_is_sent():
    for arrays in (SMALL, LARGE, EMPTY, {}):
        assert size_of({"number": 3}, arrays) == len(framed({"number": 3}, **arrays))


def test_small_frames_are_one_system_call_and_large_ones_are_not_copied():
    end = End(largest=2**20)
    end.write({}, SMALL)
    assert len(end.transport.written) == 1
    end.transport.written.clear()
    end.write({}, {"views": np.zeros(100_000, np.uint8)})
    assert [len(part) for part in end.transport.written][1:] == [100_000]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1\r\nHost: teacher\r\n\r\n", r"a frame begins with b'GET '"),
        (raw(head(), magic=b"kdl0"), "a frame begins with b'kdl0'"),
        (raw(head(), head_size=2**31), "a frame begins with b'kdl1'"),
        (raw(head(), body_size=MOST + 1), f"a body of {MOST + 1} bytes, at most {MOST}"),
        (raw(head(), body_size=2**63), "bytes, at most"),
        (raw(head(["a", "|O", [1]]), bytes(8)), "array 'a' of type '|O'"),
        (raw(head(["a", "<f8", [1]]), bytes(8)), "array 'a' of type '<f8'"),
        (raw(head(["a", "<f4", [-1]]), bytes(8)), "array 'a'"),
        (raw(head(["a", "<f4", [2**41]]), bytes(8)), "array 'a'"),
        (raw(head(["a", "<f4", [True]]), bytes(4)), "Expected `int`"),
        (raw(head(["a", "<f4", ["2"]]), bytes(8)), "Expected `int`"),
        (raw(head(["a", "<f4", [1] * 9]), bytes(4)), "array 'a'"),
        (raw(head(["a", "<f4", [5]]), bytes(8)), "do not make up the 8 bytes"),
        (raw(head(["a", "<f4", [1]]), bytes(8)), "do not make up the 8 bytes"),
        (raw(head(["a", "<f4", [2**39, 2**39]]), bytes(8)), "do not make up the 8 bytes"),
        (raw(head(["a", "<f4"]), bytes(8)), "Expected `array` of length 3"),
        (raw(head(7), bytes(8)), "Expected `array`"),
        (raw({"number": 1}, b""), "arrays"),
        (raw(b"[]"), "Expected `object`"),
        (raw(b"[" * 16_000), "nested too deeply"),
        (raw(b"{nope"), "property name"),
        (raw(b"\xff\xfe{}"), "can't decode"),
    ],
    ids=lambda _: "",
)
def test_what_is_no_frame_ends_the_connection_and_nothing_of_it_is_heard(data, why):
    end = End().feed(framed({"number": 0}) + data + framed({"number": 9}))
    assert end.transport.aborted
    assert [header for header, _ in end.frames] == [{"number": 0}]  # what came before
    (error,) = end.errors
    assert isinstance(error, KeyError | MessageError | ValueError)
    assert re.search(why, str(error))


def test_no_memory_is_taken_for_a_body_that_is_only_announced(monkeypatch):
    """Neither its length nor its shapes are believed before they agree."""
    taken = []

    class Counting(bytearray):
        def __init__(self, size):
            taken.append(size)
            super().__init__(size)

    monkeypatch.setattr("kdlab.cluster.transport.frames.bytearray", Counting, raising=False)
    end = End()
    taken.clear()  # its own buffer
    end.feed(raw(head(["a", "|u1", [2**39]]), body_size=2**39))
    end = End()
    taken.clear()
    end.feed(raw(head(["a", "|u1", [MOST]]), body_size=9))
    assert taken == []


@given(st.binary(max_size=200), st.integers(0, 60))
@pytest.mark.long
def test_noise_never_raises_out_of_the_protocol(noise, place):
    """A flipped byte of a frame either still is a frame or ends the connection."""
    data = bytearray(framed({"number": 1}, **SMALL))
    data[place : place + len(noise)] = noise
    end = End().feed(bytes(data))
    assert len(end.errors) == end.transport.aborted


class Greeted(End):
    """Waits for a proof of six bytes before the first frame."""

    def greeting(self, received):
        if len(received) < 6:
            return 0
        if received[:6] != b"secret":
            raise ProtocolError("who are you?")
        self.greeted = True
        return 6


def test_frames_count_only_after_the_greeting_even_in_one_piece():
    data = b"secret" + framed({"number": 1}, **SMALL)
    for cuts in ((), (3,), (6,), (8,)):
        assert len(Greeted(secret=b"token").feed(data, *cuts).frames) == 1
    end = Greeted(secret=b"token").feed(b"public" + framed({"number": 1}))
    assert end.transport.aborted
    assert end.frames == []


def test_a_proof_is_of_this_connection_and_of_who_gives_it():
    reader, teacher = End(secret=b"token"), End(secret=b"token")
    reader.nonces = teacher.nonces = b"n" * 32
    teacher.check_proof(reader.proof(b"reader"), b"reader")
    with pytest.raises(ProtocolError, match="does not know this pool's token"):
        teacher.check_proof(reader.proof(b"reader"), b"teacher")  # sent back to its sender
    reader.nonces = b"m" * 32
    with pytest.raises(ProtocolError):
        teacher.check_proof(reader.proof(b"reader"), b"reader")  # of another connection
    stranger = End(secret=b"guess")
    stranger.nonces = teacher.nonces
    with pytest.raises(ProtocolError):
        teacher.check_proof(stranger.proof(b"reader"), b"reader")
