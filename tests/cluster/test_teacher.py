"""A teacher in this process: what it loads, whom it answers on its wire, how it ends."""

import asyncio
import hashlib
import logging
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests_support import until

from kdlab.cluster.child_configs import TeacherConfig
from kdlab.cluster.deployment import DeployedModel
from kdlab.cluster.notebook_components import define_components
from kdlab.cluster.teachers.probe import probe_images
from kdlab.cluster.teachers.teacher import Ending, TeacherServer
from kdlab.cluster.teachers.weights import remove_other_copies
from kdlab.cluster.transport import label_wire
from kdlab.cluster.transport.roles import FAILED, REFUSED, WITHDRAWN
from kdlab.config import registry
from kdlab.config.seal import file_sha256
from kdlab.errors import NoTeacherLeft

GOOD = {"epoch": 0, "replies": "full", "top_k": 1}
IDS = {"ids": np.arange(4, dtype=np.int64)}


def asked(pool, teacher, *requests):
    """Send these requests on the teacher's wire: (header, arrays) of each answer."""

    async def ask():
        asker = await label_wire.connect("127.0.0.1", label_wire.port_of(teacher.wire))
        answers = [await asker.ask(about, arrays) for about, arrays in requests]
        asker.retire()
        return answers

    return pool.run(ask())


@pytest.fixture
def right(teacher, digits, deployment):
    """The answer of the right weights to the probe."""
    images = torch.from_numpy(probe_images(deployment.shape))
    return tuple(map(tuple, teacher.load(digits[0], "cpu").infer(images).tolist()))


def put_nan(state):
    state["head.bias"][3] = float("nan")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (put_nan, "4 of 40 numbers of its answer to the probe are not finite"),
        (lambda state: state["head.weight"].mul_(1.2), "5% is allowed"),
    ],
)
def test_one_that_fails_the_probe_ends_and_says_why(pool_here, spoilt, right, change, why):
    """The reference comes from the right weights, the teacher loads others."""
    pool = pool_here(replace(spoilt(change), reference=right), teachers=1)
    (teacher,) = pool.teachers
    assert teacher.ending.code == REFUSED
    assert why in teacher.ending.why
    assert pool.status().teachers == ()


def test_the_right_one_passes_the_probe(pool_here, deployment, right):
    pool = pool_here(replace(deployment, reference=right), teachers=1)
    assert pool.teachers[0].ready
    assert "ready: serves models/" in pool.teachers[0].lines[0]


def test_one_with_other_views_ends_and_by_value_it_serves(pool_here, served, deployment):
    changed = replace(deployment, identity=replace(deployment.identity, views="0" * 16))
    (refused,) = pool_here(changed, teachers=1).teachers
    assert refused.ending.code == REFUSED
    assert "makes other views" in refused.ending.why
    pool = pool_here(replace(changed, by_reference=False), teachers=1)
    source, samples, _ = served(pool, inputs="value_uint8", epochs=2)
    for epoch in range(2):
        ids = np.concatenate([batch.ids.copy() for batch in source.epoch(epoch, ())])
        assert sorted(ids) == sorted(samples.train_ids())


def test_one_with_other_data_gets_pixels_where_that_is_allowed(
    pool_here, served, deployment, caplog
):
    identity = replace(deployment.identity, digest="0" * 16)
    pool = pool_here(replace(deployment, identity=identity, or_value=True), teachers=1)
    assert "served by value: This machine has other data" in caplog.text
    (seen,) = pool.status().teachers
    assert seen.facts.by_reference is False
    assert seen.facts.here == 0.0
    source, samples, events = served(pool, epochs=2, inputs="auto")
    for epoch in range(2):
        ids = np.concatenate([batch.ids.copy() for batch in source.epoch(epoch, ())])
        assert sorted(ids) == sorted(samples.train_ids())
    assert "teacher_lost" not in [name for name, _ in events]


def test_one_that_has_another_model_ends(pool_here):
    pool = pool_here()
    teacher = pool.add_teacher(sha256="0" * 64)
    assert teacher.ending.code == REFUSED
    assert "started for model 0000000000000000, the pool serves" in teacher.ending.why


def test_an_error_that_nobody_foresaw_ends_it_to_be_started_again(pool_here, monkeypatch):
    def broken(self):
        raise RuntimeError("this driver is gone")

    monkeypatch.setattr("kdlab.cluster.teachers.inference.Inference.measure", broken)
    (teacher,) = pool_here(teachers=1).teachers
    assert teacher.ending == Ending(FAILED, "RuntimeError: this driver is gone")


def test_an_inference_thread_that_fails_ends_it_too(pool_here):
    pool = pool_here(teachers=1)
    (teacher,) = pool.teachers

    class Broken:
        size = 1

        @property
        def by(self):
            raise RuntimeError("a device error")

    teacher.requests._queue.put(Broken())
    until(lambda: teacher.ending is not None)
    assert teacher.ending.code == FAILED
    assert teacher.ending.why == "its inference ended: RuntimeError: a device error"
    until(lambda: pool.status().teachers == ())  # it holds no connection and no lease


def test_a_busy_scheduler_is_asked_again(pool_here, monkeypatch, caplog):
    monkeypatch.setattr("kdlab.cluster.teachers.teacher.AGAIN_S", 0.001)
    pool = pool_here()
    pool.remote.up = False
    tries = []

    def counted(*_):
        tries.append(1)
        pool.remote.up = len(tries) >= 3
        return True

    logging.getLogger("kdlab").addFilter(counted)
    try:
        teacher = pool.add_teacher()
    finally:
        logging.getLogger("kdlab").removeFilter(counted)
    assert teacher.ready
    assert caplog.text.count("not ready yet: nobody is there") == 3


@pytest.mark.long
def test_what_is_deployed_while_it_loads_is_what_it_serves(pool_here, deployment):
    """Each of several deployments follows while the one before is loaded."""
    pool = pool_here()
    others = []
    for number in range(3):
        identity = replace(deployment.identity, augment=f"other {number}")
        others.append(replace(deployment, identity=identity, by_reference=False))
    left = list(others)
    prepare, loaded = TeacherServer._prepare, []

    def slow(self, what, weights):
        if left:  # meanwhile the pool is told to serve the next
            assert pool.run(pool.coordinator.deploy(left.pop(0).to_json())) == ""
        loaded.append(what.fingerprint)
        return prepare(self, what, weights)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TeacherServer, "_prepare", slow)
        teacher = pool.add_teacher()
    assert loaded == [deployment.fingerprint, *(o.fingerprint for o in others)]
    assert teacher.inference.deployment == others[-1]
    assert pool.status().deployed == others[-1].fingerprint
    assert [t.state for t in pool.status().teachers] == ["free"]


def test_nonsense_is_answered_with_an_error_and_the_next_request_is_served(pool_here):
    pool = pool_here(teachers=1)
    nonsense = [
        (GOOD, {}),
        (GOOD, {"views": np.zeros((2, 9, 9, 9), np.uint8)}),
        (GOOD, {"ids": np.array([10**9], np.int64)}),  # no such sample
        (GOOD | {"replies": "top_k", "top_k": 0}, IDS),
        ({}, IDS),
        (GOOD | {"serves": "another"}, IDS),
        ({"weights": "0" * 64, "offset": 0}, {}),
        ({"weights": 7}, {}),
    ]
    *refusals, (right, answer) = asked(pool, pool.teachers[0], *nonsense, (GOOD, IDS))
    assert all("error" in header for header, _ in refusals)
    assert "it now serves teacher" in refusals[5][0]["error"]
    assert "not served here" in refusals[6][0]["error"]
    assert "error" not in right
    assert answer["logits"].shape == (4, 10)
    assert pool.teachers[0].open_requests == 0


def test_before_its_model_is_loaded_it_refuses(tmp_path):
    config = TeacherConfig(
        scheduler="", name="t", host="127.0.0.1", threads=1, device="cpu", tls=None
    )
    server, answers = TeacherServer(config, tmp_path, print), []
    server.infer(GOOD, IDS, answers.append)
    assert "not loaded its model yet" in str(answers[0])
    assert server._largest_request() == 0  # nor is memory taken for what is sent


def test_one_that_lies_answers_for_another_class(pool_here):
    pool = pool_here()
    honest, liar = pool.add_teacher(), pool.add_teacher(chaos=True)
    assert set(liar.worker.handlers) == {"kdlab_partition", "kdlab_delay", "kdlab_lie"}
    assert honest.worker.handlers == {}  # nobody can make it one
    pool.run(liar.lie(1.0))
    ((_, right),), ((_, wrong),) = (asked(pool, one, (GOOD, IDS)) for one in (honest, liar))
    assert np.allclose(np.roll(right["logits"], 1, axis=1), wrong["logits"], atol=1e-5)


def test_a_sample_asked_for_alone_gets_the_bits_that_it_gets_among_others(pool_here):
    """A slow teacher gets parts of one sample; which part a sample is in must not matter."""
    pool = pool_here(teachers=1)
    (teacher,) = pool.teachers
    singles = [(GOOD, {"ids": IDS["ids"][n : n + 1]}) for n in range(4)]
    (_, batch), *answers = asked(pool, teacher, (GOOD, IDS), *singles)
    for row, (_, answer) in enumerate(answers):
        assert np.array_equal(answer["logits"], batch["logits"][row : row + 1])


def test_one_that_leaves_says_so_and_answers_what_still_comes(pool_here):
    pool = pool_here(teachers=1)
    (teacher,) = pool.teachers

    async def leave():
        going = asyncio.create_task(teacher.withdraw())
        await asyncio.sleep(0.05)
        await teacher.withdraw()  # asked twice: once is enough
        asker = await label_wire.connect("127.0.0.1", label_wire.port_of(teacher.wire))
        header, arrays = await asker.ask(GOOD, IDS)
        asker.retire()
        await going
        return header, arrays

    header, arrays = pool.run(leave())
    assert "error" not in header
    assert len(arrays["logits"]) == 4
    assert teacher.ending == Ending(WITHDRAWN)
    assert pool.remote.calls.count("leave") == 1
    assert teacher.lines[-1].startswith("withdrawn after ")


def test_a_lease_is_renewed_with_what_is_news(pool_here):
    pool = pool_here(teachers=1)
    (teacher,) = pool.teachers
    asked(pool, teacher, (GOOD, IDS))
    until(lambda: teacher.inference.answered == 1)  # it is counted after the answer
    pool.run(teacher._renew())
    (seen,) = pool.status().teachers
    assert (seen.facts.answered, seen.facts.queued, seen.facts.shared) == (1, 0, 0)
    assert pool.status().renewals == 1


def test_memory_is_given_back_while_nobody_asks(pool_here, monkeypatch):
    """A teacher held the memory that it had loaded and computed with for good."""
    calls = []
    module = "kdlab.cluster.teachers.teacher.give_back_freed_memory"
    monkeypatch.setattr(module, lambda: calls.append(1))
    pool = pool_here(teachers=1)
    (teacher,) = pool.teachers
    for still_open, since_s, times in ((0, 60.0, 1), (1, 60.0, 0), (0, 0.0, 0)):
        calls.clear()
        teacher.open_requests = still_open
        teacher.last_activity = time.monotonic() - since_s
        pool.run(teacher._renew())
        assert len(calls) == times


def test_one_that_is_not_known_any_more_registers_with_what_it_has_loaded(pool_here):
    pool = pool_here(teachers=1)
    (teacher,) = pool.teachers
    loaded = teacher.inference
    pool.restart_coordinator()
    pool.run(teacher._renew())
    until(lambda: teacher.ready)
    assert teacher.inference is loaded
    assert pool.status().deployed == loaded.deployment.fingerprint
    pool.remote.up = False
    pool.run(teacher._renew())  # nobody answers: it stays ready and asks the next time
    assert teacher.ready


# Weights


@pytest.fixture
def sent(deployment, tmp_path):
    """(a deployment whose weights nobody can read at their path, the file)."""
    (member,) = deployment.members
    gone = replace(member, weights=str(tmp_path / "not" / "here"))
    return replace(deployment, members=(gone,)), tmp_path.joinpath(member.weights)


def put(pool, sha256, data, step=10_000):
    async def send():
        have = 0
        while have < len(data):
            have = await pool.remote.kdlab_weights_put(
                sha256=sha256, offset=have, chunk=data[have : have + step]
            )

    pool.run(send())


def copies(pool, teacher):
    return list((pool.folder / teacher.config.name).glob("*.safetensors"))


def test_weights_come_from_the_coordinator_and_then_from_teachers(pool_here, sent):
    elsewhere, file = sent
    (member,) = elsewhere.members
    pool = pool_here(elsewhere)
    put(pool, member.sha256, file.read_bytes())
    first = pool.add_teacher()
    assert first.ready
    assert pool.remote.calls.count("weights") == 1  # in one piece of a megabyte
    pool.coordinator.shelf._path(member.sha256).unlink()
    second = pool.add_teacher()  # only the first one has them now
    assert second.ready
    assert pool.remote.calls.count("weights") == 1
    for teacher in (first, second):
        assert [file_sha256(path) for path in copies(pool, teacher)] == [member.sha256]


def test_weights_that_are_others_on_arrival_are_not_loaded(pool_here, sent, monkeypatch):
    """A connection or a disk may spoil them: it asks again, and leaves none behind."""
    monkeypatch.setattr("kdlab.cluster.teachers.teacher.AGAIN_S", 0.001)
    elsewhere, file = sent
    (member,) = elsewhere.members
    pool = pool_here(elsewhere)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    put(pool, member.sha256, bytes(data))
    lines = []

    def mend(record):
        lines.append(record.getMessage())
        pool.coordinator.shelf._path(member.sha256).write_bytes(file.read_bytes())
        return True

    logging.getLogger("kdlab").addFilter(mend)
    try:
        teacher = pool.add_teacher()
    finally:
        logging.getLogger("kdlab").removeFilter(mend)
    assert lines == [
        f"not ready yet: weights that arrived are not those of {member.sha256[:16]}"
    ]
    assert teacher.ready
    assert len(list(copies(pool, teacher)[0].parent.iterdir())) == 1


def test_copies_of_what_is_served_no_more_are_removed(sent, tmp_path):
    elsewhere, _ = sent
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    served = scratch / f"{elsewhere.members[0].sha256}.safetensors"
    for path in (served, scratch / "old.safetensors", scratch / "note.txt"):
        path.touch()
    remove_other_copies(elsewhere, scratch)
    assert {path.name for path in scratch.iterdir()} == {served.name, "note.txt"}


LOSES_A_ROW = '''
from dataclasses import dataclass
import kdlab
from torch import nn
from kdlab.models.model import ModelSpec

class Fewer(nn.Module):
    def __init__(self, classes, channels):
        super().__init__()
        self.layer = nn.Linear(64 * channels, classes)

    def forward(self, views):
        scores = self.layer(views.flatten(1))
        return scores[1:] if len(scores) > 4 else scores

@kdlab.register("models/loses_a_row_here")
@dataclass(frozen=True, kw_only=True)
class LosesARow(ModelSpec):
    """Answers five or more images with one row too few: no probe sees it."""

    def architecture(self, num_classes, in_chans):
        return Fewer(num_classes, in_chans)
'''


def test_a_model_that_loses_a_row_is_found_out(pool_here, served, deployment, tmp_path):
    digest = hashlib.sha256(LOSES_A_ROW.encode()).hexdigest()
    components = {"models/loses_a_row_here": {"source": LOSES_A_ROW, "sha256": digest}}
    define_components(components)
    spec = registry.find("models/loses_a_row_here")[0]()
    weights = tmp_path / "fewer.safetensors"
    save_file(spec.build(10, 1).net.state_dict(), weights)
    sha256 = file_sha256(weights)
    member = DeployedModel(
        model=spec.to_dict(), weights=str(weights), sha256=sha256, weight=1.0
    )
    deployed = replace(
        deployment, members=(member,), teacher=sha256[:16], reference=(),
        components=components,
    )  # fmt: skip
    pool = pool_here(deployed, teachers=1)
    with pytest.raises(
        NoTeacherLeft, match=r"answered with shape \(\d+, 10\) for \d+ samples"
    ):
        served(pool, wait_s=0.5)
