"""`kdlab teacher ADDRESS`: a teacher's config, reasons for its refusal, and its end."""

import hashlib
from types import SimpleNamespace

import pytest
from tests_support import OfClasses

from kdlab.cluster import schedulers
from kdlab.cluster.child_configs import TeacherConfig
from kdlab.cluster.teachers import teacher_server
from kdlab.cluster.transport.roles import FAILED, NO_SCHEDULER, REFUSED, WITHDRAWN
from kdlab.cluster.transport.security import Tls, address_faults, save_credentials
from kdlab.errors import BadInput, TeacherRefused
from kdlab.models.model import export
from kdlab.models.patch_net import PatchNet
from kdlab.run import join as joining
from kdlab.run.join import certificates, join, own_host

PLAIN, SECURE = "tcp://127.0.0.1:8786", "tls://127.0.0.1:8786"


def config(**more):
    facts = {"name": "", "host": "", "threads": 0, "device": "cpu", "tls": None}
    return TeacherConfig(scheduler=PLAIN, **facts | more)


@pytest.fixture
def pool(monkeypatch):
    """A teacher that ends as `ending` says; its configs and its scheduler's are recorded."""
    record = SimpleNamespace(ending=(WITHDRAWN, None), configs=[], installed=[])

    async def serve(teacher_config, say):
        record.configs.append(teacher_config)
        code, why = record.ending
        return SimpleNamespace(code=code, why=why)

    monkeypatch.setattr(teacher_server, "serve", serve)
    monkeypatch.setattr(
        schedulers, "install", lambda address, tls: record.installed.append((address, tls))
    )
    monkeypatch.setattr(joining, "usable_cores", lambda: 6)
    return record


def test_what_is_not_said_is_of_this_machine(pool, monkeypatch, capsys):
    monkeypatch.setattr(joining.socket, "gethostname", lambda: "gpu3")
    monkeypatch.setattr(joining.os, "getpid", lambda: 77)
    assert join(config(), None) == 0
    (teacher,) = pool.configs
    assert (teacher.name, teacher.threads, teacher.host) == ("gpu3-77", 6, "127.0.0.1")
    assert teacher.sha256 is None  # whatever the pool serves
    assert pool.installed == [(PLAIN, None)]
    assert f"teacher gpu3-77 joins {PLAIN}; Ctrl-C withdraws it" in capsys.readouterr().err


def test_what_is_said_stays(pool):
    join(config(name="mine", host="10.0.0.3", threads=2), None)
    (teacher,) = pool.configs
    assert (teacher.name, teacher.host, teacher.threads) == ("mine", "10.0.0.3", 2)


@pytest.mark.parametrize("code", [FAILED, NO_SCHEDULER])
def test_an_ending_that_may_be_tried_again_is_its_exit_code_and_says_why(
    pool, capsys, code
):
    pool.ending = (code, "the disk is full")
    assert join(config(name="mine"), None) == code
    assert "mine: the disk is full" in capsys.readouterr().err


def test_one_that_is_refused_is_to_be_looked_at(pool):
    pool.ending = (REFUSED, "it has other weights")
    with pytest.raises(
        TeacherRefused, match=f"cannot serve at {PLAIN}: it has other weights"
    ):
        join(config(), None)


def test_a_card_says_which_weights_it_serves(pool, elsewhere):
    spec = PatchNet(patch=4, width=8)
    path = elsewhere / "w.safetensors"
    export(spec.build(10, 1), spec, path, OfClasses(10))
    (elsewhere / "registry").mkdir()
    model = f"{{type: models/patch_net, patch: 4, width: 8, weights: {path}}}"
    (elsewhere / "registry" / "mine.yaml").write_text(
        f"type: train/teacher\nmodel: {model}\n"
    )
    join(config(), "mine")
    assert pool.configs[0].sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_card_of_which_nothing_says_how_it_is_made_is_refused(pool, elsewhere):
    (elsewhere / "registry").mkdir()
    text = "type: train/teacher\nmodel: {type: models/patch_net, patch: 4, width: 8}\n"
    (elsewhere / "registry" / "mine.yaml").write_text(text)
    with pytest.raises(BadInput, match="mine has neither weights nor data and recipe"):
        join(config(), "mine")
    assert pool.configs == []


def test_plain_tcp_must_be_asked_for_by_name():
    assert certificates(PLAIN, None, None, None, insecure=True) is None
    with pytest.raises(BadInput, match="plain TCP: anyone who can connect"):
        certificates(PLAIN, None, None, None, insecure=False)
    with pytest.raises(BadInput, match=r"is no tls:// address; --tls-\.\.\. has no use"):
        certificates(PLAIN, "ca.pem", None, None, insecure=True)


@pytest.mark.parametrize("host", ["host:abc", "host:99999999", "[::1"])
@pytest.mark.parametrize("scheme", ["tls://", "tcp://", ""])
def test_a_malformed_address_is_a_sentence(host, scheme):
    with pytest.raises(BadInput, match=r"is no address \(.*Write it as"):
        certificates(f"{scheme}{host}", None, None, None, insecure=True)
    assert "is no address" in str(next(iter(address_faults(f"{scheme}{host}", None))))


@pytest.mark.parametrize("place", ["~nobodyxyz/ca.pem", "x" * 300])
def test_a_certificate_that_is_no_file_is_a_fault(place):
    with pytest.raises(BadInput, match=r"ca: is .*; there is no such file"):
        Tls(ca=place, cert=place, key=place)


def test_certificates_are_given_or_those_of_ones_own_pool(
    kdlab_home, tmp_path, monkeypatch
):
    monkeypatch.setenv("KDLAB_HOME", str(tmp_path / "home"))
    files = Tls(temporary=True).files(tmp_path)
    ca, cert, key = (files[name] for name in ("ca", "cert", "key"))
    paths = {"ca": ca, "cert": cert, "key": key}
    assert certificates(SECURE, ca, cert, key, insecure=False) == paths
    with pytest.raises(BadInput, match="for each of --tls-cert, --tls-key"):
        certificates(SECURE, ca, None, str(tmp_path / "none.pem"), insecure=False)
    with pytest.raises(BadInput, match="for each of --tls-ca, --tls-cert, --tls-key"):
        certificates(SECURE, None, None, None, insecure=False)
    save_credentials(SECURE, paths)
    assert certificates(SECURE, None, None, None, insecure=False) == paths


@pytest.mark.parametrize("scheduler", [PLAIN, SECURE, "127.0.0.1:8786", "127.0.0.1"])
def test_a_teacher_listens_where_its_scheduler_sees_it(scheduler):
    assert own_host(scheduler) == "127.0.0.1"
