"""The label wire over real sockets: whole arrays, errors passed on, strangers cut off."""

import asyncio
import contextlib
import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

from kdlab.cluster.child_configs import PoolConnectionConfig
from kdlab.cluster.reader.pool_connection import PoolConnection, Unreachable, Unusable
from kdlab.cluster.transport import label_wire, security
from kdlab.cluster.transport.messages import RequestTimes, check, decode, encode, engine_of
from kdlab.papers.edl_dist.reader_rules import Rules
from kdlab.soft_labels.compressed import log_probabilities

CONFIG = PoolConnectionConfig(
    classes=10,
    replies="full",
    top_k=1,
    inputs="reference",
    rules=Rules(t_s=1.0, lt=1, ut=2, deadline_s=5.0),
    coordinator="",
    student="test",
    tls=None,
)


@contextlib.asynccontextmanager
async def answering(handler):
    server = await label_wire.listen("127.0.0.1", handler, lambda: 10**9)
    try:
        yield label_wire.port_of(server)
    finally:
        server.close()


def echo(asked, arrays, reply):
    """Reply after `wait_s`, so that answers come in another order than requests."""
    asyncio.get_running_loop().call_later(asked.get("wait_s", 0.0), reply, arrays)


@pytest.mark.parametrize("count", [0, 1, 1000, 3_000_000])
def test_arrays_arrive_whole_and_writeable(count):
    sent = {
        "ids": np.arange(count, dtype=np.int64),
        "views": np.arange(count * 2, dtype=np.uint8).reshape(count, 2)[:, ::-1],
        "logits": np.linspace(-1, 1, count, dtype=np.float16),
    }

    async def run():
        async with answering(echo) as port:
            asker = await label_wire.connect("127.0.0.1", port)
            _, got = await asker.ask({}, sent)
            asker.retire()
            return got

    got = asyncio.run(run())
    assert got.keys() == sent.keys()
    for name, array in sent.items():
        assert got[name].dtype == array.dtype
        assert np.array_equal(got[name], array)
        assert got[name].flags.writeable


def test_answers_find_their_requests_in_any_order():
    async def run():
        async with answering(echo) as port:
            asker = await label_wire.connect("127.0.0.1", port)
            waits = [0.1, 0.0, 0.05, 0.0]
            asked = [
                asker.ask({"wait_s": wait}, {"ids": np.array([n], np.int64)})
                for n, wait in enumerate(waits)
            ]
            return [int(arrays["ids"][0]) for _, arrays in await asyncio.gather(*asked)]

    assert asyncio.run(run()) == [0, 1, 2, 3]


def answers_of(handler, ids=4):
    async def run():
        async with answering(handler) as port:
            wires = await PoolConnection.open(CONFIG)
            wires.follow({"tcp://127.0.0.1:9": port}, (), full=True)
            try:
                return await wires.soft_labels(
                    "tcp://127.0.0.1:9", 0, np.arange(ids, dtype=np.int64), None
                )
            finally:
                await wires.close()

    return asyncio.run(run())


def test_the_teachers_own_error_is_passed_on():
    def fails(asked, arrays, reply):
        reply(RuntimeError("no such image\nand a trace"))

    with pytest.raises(Unusable, match=r"^it raised RuntimeError: no such image$"):
        answers_of(fails)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (np.zeros((3, 10), np.float32), r"shape \(3, 10\), expected \(4, 10\)"),
        (np.zeros((4, 12), np.float32), r"shape \(4, 12\), expected \(4, 10\)"),
        (np.full((4, 10), np.inf, np.float16), "40 of 40 numbers .* not finite"),
    ],
)
def test_wrong_shapes_and_numbers_are_unusable(answer, why):
    def wrong(asked, arrays, reply):
        reply({"logits": answer})

    with pytest.raises(Unusable, match=why):
        answers_of(wrong)


def test_an_answer_that_cannot_be_read_is_unusable():
    def objects(asked, arrays, reply):
        reply({"logits": np.zeros((4, 10), np.float64)})

    with pytest.raises(Unusable, match=r"its answer cannot be read .*type '<f8'"):
        answers_of(objects)


def test_an_answer_of_another_shape_is_unusable_with_the_numbers():
    def one_too_few(asked, arrays, reply):
        reply({"logits": np.zeros((3, 10), np.float32)})

    with pytest.raises(Unusable, match=r"with shape \(3, 10\), expected \(4, 10\)"):
        answers_of(one_too_few)


@pytest.mark.parametrize("replies", ["full", "half", "top_k", "sampled"])
def test_every_way_to_reply_travels(replies):
    logits = np.random.default_rng(1).normal(size=(4, 10)).astype(np.float32)

    def replies_as_told(asked, arrays, reply):
        reply(encode(logits, replies, top_k=9))

    got = answers_of(replies_as_told)
    if replies == "sampled":
        assert np.abs(softmax(got, axis=1) - softmax(logits, axis=1)).max() < 1 / 9
        return
    expected = log_probabilities(logits) if replies == "top_k" else logits
    assert np.allclose(got, expected, atol=2e-2)


def test_nobody_there_is_unreachable():
    async def run():
        async with answering(echo) as port:
            free = port
        wires = await PoolConnection.open(CONFIG)
        wires.follow({"tcp://127.0.0.1:9": free}, (), full=True)
        await wires.soft_labels("tcp://127.0.0.1:9", 0, np.arange(2), None)

    with pytest.raises(Unreachable, match="no connection to it"):
        asyncio.run(run())


@pytest.mark.parametrize(
    "first",
    [
        b"GET / HTTP/1.1\r\nHost: teacher\r\n\r\n",
        struct.pack("<4sIQ", b"kdl0", 2, 0) + b"{}",
        struct.pack("<4sIQ", b"kdl1", 2**31, 0),
        struct.pack("<4sIQ", b"kdl1", 2, 2**40) + b"{}",
        struct.pack("<4sIQ", b"kdl1", 2, 0) + b"[]",
        struct.pack("<4sIQ", b"kdl1", 5, 0) + b"{nope",
    ],
)
def test_a_stranger_is_cut_off_and_the_others_are_served(first):
    async def run():
        async with answering(echo) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(first)
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
            asker = await label_wire.connect("127.0.0.1", port)
            _, got = await asker.ask({}, {"ids": np.arange(3, dtype=np.int64)})
            return got["ids"].tolist()

    assert asyncio.run(run()) == [0, 1, 2]


@pytest.mark.parametrize(
    "arrays",
    [
        [["a", "|O", [1]]],  # objects: would be pickles
        [["a", "<f4", [-1]]],
        [["a", "<f4", [5]]],  # more than the body has
        [["a", "<f4", [1]]],  # less
    ],
)
def test_arrays_that_do_not_fit_their_body_are_refused(arrays):
    head = json.dumps({"number": 1, "arrays": arrays}).encode()
    frame = struct.pack("<4sIQ", b"kdl1", len(head), 8) + head + bytes(8)

    async def run():
        async with answering(echo) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(frame)
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()

    asyncio.run(run())


def test_memory_is_not_taken_for_what_a_frame_only_claims():
    """The arrays must make up the body, and the body must be one this teacher may get."""
    sent = {"ids": np.zeros(1000, np.int64)}

    async def run():
        server = await label_wire.listen("127.0.0.1", echo, lambda: 4000)
        asker = await label_wire.connect("127.0.0.1", label_wire.port_of(server))
        with pytest.raises(ConnectionError):
            await asker.ask({}, sent)
        asker = await label_wire.connect("127.0.0.1", label_wire.port_of(server))
        _, got = await asker.ask({}, {"ids": sent["ids"][:500]})
        server.close()
        return len(got["ids"])

    assert asyncio.run(run()) == 500


GOOD = {"epoch": 0, "replies": "full", "top_k": 1}
IDS = {"ids": np.arange(3, dtype=np.int64)}
VIEWS = {"views": np.zeros((3, 1, 8, 8), np.uint8)}


@pytest.mark.parametrize(
    ("asked", "inputs", "why"),
    [
        (GOOD | {"epoch": "0"}, IDS, "a request asks for"),
        (GOOD | {"replies": "pickle"}, IDS, "a request asks for"),
        (GOOD | {"replies": "top_k", "top_k": 0}, IDS, "top_k is 0 of 10 classes"),
        (GOOD | {"replies": "sampled", "top_k": 256}, IDS, "is 256; a label has 1 to 255"),
        (GOOD | {"replies": "top_k", "top_k": 10}, IDS, "top_k is 10 of 10 classes"),
        (GOOD, {}, "the inputs are {}"),
        (GOOD, IDS | VIEWS, "images of this pool are"),
        (GOOD, {"ids": np.zeros((), np.int64)}, "images of this pool are"),
        (GOOD, {"ids": np.zeros(0, np.int64)}, "images of this pool are"),
        (GOOD, {"ids": np.zeros(3, np.float32)}, "images of this pool are"),
        (GOOD, {"views": np.zeros((3, 1, 9, 9), np.uint8)}, "images of this pool are"),
    ],
)
def test_requests_that_no_teacher_answers(asked, inputs, why):
    has = {"shape": (1, 8, 8), "classes": 10, "most": 3, "images": 100}
    check(GOOD, IDS, **has)
    check(GOOD, VIEWS, **has)
    with pytest.raises(ValueError, match=why):
        check(asked, inputs, **has)


@pytest.mark.parametrize(
    ("inputs", "images", "why"),
    [
        ({"ids": np.array([0, 100], np.int64)}, 100, "the data set has 100 images"),
        ({"ids": np.array([-1], np.int64)}, 100, "sample ids from -1 to -1"),
        (
            {"ids": np.arange(4, dtype=np.int64)},
            100,
            "4 samples in one request; the most is 3",
        ),
        ({"views": np.zeros((4, 1, 8, 8), np.uint8)}, 100, "4 samples in one request"),
        (IDS, None, "this teacher has no data"),
    ],
)
def test_ids_out_of_range_and_too_many_are_refused_on_arrival(inputs, images, why):
    """113 bytes ended a run, and 393 kB took 7.5 GB: both are refused before any work."""
    with pytest.raises(ValueError, match=why):
        check(GOOD, inputs, (1, 8, 8), 10, most=3, images=images)


# Who may connect


def test_who_does_not_know_the_token_hears_nothing(with_token):
    async def run():
        heard = []
        server = await label_wire.listen(
            "127.0.0.1", lambda asked, arrays, reply: heard.append(asked), lambda: 10**6
        )
        port = label_wire.port_of(server)
        for words in (b"", b"kdl1" + bytes(12), b"kdlA" + bytes(16), b"kdlA" + bytes(48)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(words + bytes(200))
            answer = await asyncio.wait_for(reader.read(), 15)
            assert len(answer) in (0, 48)  # a nonce and a proof, and then the end
            writer.close()
        security._token = b"another"
        with pytest.raises(ConnectionError, match="token"):
            await label_wire.connect("127.0.0.1", port)
        server.close()
        assert heard == []

    asyncio.run(run())


def test_a_stranger_who_listens_is_not_believed(with_token):
    """A reader sends nothing before the other end has proved to know the token."""

    async def run():
        got = []

        async def stranger(reader, writer):
            got.append(await reader.read(20))
            writer.write(bytes(48))
            got.append(await reader.read(100))
            writer.close()

        server = await asyncio.start_server(stranger, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionError, match="token"):
            await label_wire.connect("127.0.0.1", port)
        await until_true(lambda: len(got) == 2)
        server.close()
        assert got[1] == b""

    asyncio.run(run())


async def until_true(look):
    for _ in range(1500):
        if look():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come true within 15 s")


def test_who_knows_the_token_is_answered(with_token):
    async def run():
        async with answering(echo) as port:
            asker = await label_wire.connect("127.0.0.1", port)
            _, got = await asker.ask({}, {"ids": np.arange(2, dtype=np.int64)})
            return got["ids"].tolist()

    assert asyncio.run(run()) == [0, 1]


def test_a_reader_that_asks_too_much_waits_and_no_memory_fills_up():
    async def run():
        waiting = []
        server = await label_wire.listen(
            "127.0.0.1", lambda asked, arrays, reply: waiting.append(reply), lambda: 10**6
        )
        asker = await label_wire.connect("127.0.0.1", label_wire.port_of(server))
        ids = {"ids": np.zeros(1000, np.int64)}
        answers = [asker.ask({}, ids) for _ in range(2 * label_wire._MAX_OPEN)]
        await until_true(lambda: len(waiting) >= label_wire._MAX_OPEN)
        await asyncio.sleep(0.1)
        # What lay in the buffer when reading stopped is there too.
        assert len(waiting) <= label_wire._MAX_OPEN + 2
        done = 0
        while done < len(answers):
            await until_true(lambda: waiting)
            waiting.pop(0)({})
            done += 1
        await asyncio.gather(*answers)
        server.close()

    asyncio.run(run())


def test_connections_are_bounded():
    async def run():
        server = await label_wire.listen("127.0.0.1", echo, lambda: 1000)
        port = label_wire.port_of(server)
        opened = [
            await asyncio.open_connection("127.0.0.1", port)
            for _ in range(label_wire._MAX_CONNECTIONS + 3)
        ]
        ends = [asyncio.ensure_future(reader.read()) for reader, _ in opened]
        await until_true(lambda: sum(end.done() for end in ends) == 3)
        for _, writer in opened:
            writer.close()
        server.close()

    asyncio.run(run())


def test_a_broken_connection_fails_all_that_wait_and_the_next_ask_connects_anew():
    async def run():
        async with answering(lambda asked, arrays, reply: None) as port:
            asker = await label_wire.connect("127.0.0.1", port)
            waiting = [asker.ask({}, {}) for _ in range(3)]
            await asyncio.sleep(0)
            asker.transport.abort()
            errors = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(error, ConnectionError) for error in errors)
            assert not asker.usable

    asyncio.run(run())


def test_retired_closes_once_the_last_answer_is_there():
    async def run():
        async with answering(echo) as port:
            asker = await label_wire.connect("127.0.0.1", port)
            late = asker.ask({"wait_s": 0.05}, {"ids": np.arange(2, dtype=np.int64)})
            asker.retire()
            assert not asker.transport.is_closing()
            _, got = await late
            assert got["ids"].tolist() == [0, 1]
            await asyncio.sleep(0)
            assert asker.transport.is_closing()

    asyncio.run(run())


@pytest.mark.long
def test_an_idle_connection_is_closed_and_a_used_one_is_not(monkeypatch):
    """Its reader's machine may be gone without a word; so may those of 127 others."""
    monkeypatch.setattr(label_wire, "_IDLE_S", 0.3)

    async def run():
        async with answering(echo) as port:
            idle = await label_wire.connect("127.0.0.1", port)
            used = await label_wire.connect("127.0.0.1", port)
            waits = used.ask({"wait_s": 1.5}, {"ids": np.arange(3)})
            await until_true(lambda: not idle.usable)
            _, got = await waits  # five times as long as one may be idle
            assert got["ids"].tolist() == [0, 1, 2]
            await until_true(lambda: not used.usable)

    asyncio.run(run())


GOOD_LABELS = encode(np.linspace(-3, 3, 20, dtype=np.float32).reshape(2, 10), "top_k", 3)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"classes": np.array([[1, 2, 10], [1, 2, 3]], np.int32)}, "number 10 of 10"),
        ({"classes": np.array([[1, 2, -1], [1, 2, 3]], np.int32)}, "classes up to number"),
        ({"classes": np.array([[1, 2, 1], [1, 2, 3]], np.int32)}, "a class twice"),
        ({"tail": np.array([5.0, -1.0], np.float16)}, "add up to"),
        ({"tail": np.array([np.nan, -1.0], np.float16)}, "add up to nan"),
        ({"values": np.full((2, 3), 1000, np.float16)}, "add up to inf"),
        ({"values": np.full((2, 3), -9, np.float16)}, "add up to"),
        ({"tail": np.zeros(3, np.float16)}, "it answered with"),
        ({"values": np.zeros((2, 10), np.float16)}, "it answered with"),
        ({"classes": np.zeros((2, 0), np.int32), "values": np.zeros((2, 0), np.float16)},
         "it answered with"),
    ],
)  # fmt: skip
def test_labels_that_make_no_sense_are_refused(changed, why):
    """A tail mass of 5, and classes that do not exist, were trained on before."""
    assert decode(GOOD_LABELS, 10).shape == (2, 10)
    with pytest.raises(ValueError, match=why):
        decode(GOOD_LABELS | changed, 10)


@given(st.integers(0, 2**32), st.integers(2, 1500), st.floats(0.01, 30))
def test_no_right_label_is_refused(seed, classes, spread):
    """The half-precision numbers of a right label never look wrong."""
    chance = np.random.default_rng(seed)
    logits = chance.normal(0, spread, (4, classes)).astype(np.float32)
    for k in {1, min(10, classes - 1), classes - 1}:
        assert decode(encode(logits, "top_k", k), classes).shape == (4, classes)


@pytest.mark.parametrize(
    ("sent", "known"),
    [
        (b"compiled bf16", "compiled bf16"),
        (None, ""),
        (b"\x1b[2J", ""),
        ("ä".encode(), ""),
        (b"x" * 1000, "x" * 24),
    ],
)
def test_an_answer_says_which_engine_computed_it(sent, known):
    named = {} if sent is None else {"engine": np.frombuffer(sent, np.uint8)}
    assert engine_of(named) == known
    assert engine_of(RequestTimes().with_times(named, "eager fp32")) == "eager fp32"
