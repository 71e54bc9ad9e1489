"""A machine that will be taken away says so, and its teacher hears it."""

import asyncio
import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from kdlab.cluster.teachers import preemption
from kdlab.cluster.teachers.preemption import checked_notice, wait_for_notice
from kdlab.errors import BadInput

AZURE = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
OF_ANOTHER = json.dumps({"Events": [{"EventType": "Preempt", "Resources": ["spot-18"]}]})
QUIET = {
    "aws": None,
    "gcp": "FALSE",
    "azure": json.dumps({"DocumentIncarnation": 1, "Events": []}),
}
NOTICES = {
    "aws": json.dumps({"action": "terminate", "time": "2026-11-26T08:22:00Z"}),
    "gcp": "TRUE",
    "azure": json.dumps({"Events": [{"EventType": "Preempt", "Resources": ["spot-17"]}]}),
}


class Machine:
    """The metadata services of three clouds, as their manuals describe them."""

    def __init__(self):
        self.says, self.asked, self.fails = dict(QUIET), 0, 0
        machine = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args):
                """Quiet."""

            def do_PUT(self):
                asked = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
                self.answer("a-token" if asked else None)

            def do_GET(self):
                machine.asked += 1
                has = self.headers.get
                if machine.fails:
                    machine.fails -= 1
                    self.send_error(500)
                elif self.path == "/latest/meta-data/spot/instance-action":
                    right = has("X-aws-ec2-metadata-token") == "a-token"
                    self.answer(machine.says["aws"] if right else None)
                elif self.path == "/computeMetadata/v1/instance/preempted":
                    right = has("Metadata-Flavor") == "Google"
                    self.answer(machine.says["gcp"] if right else None)
                elif self.path == NAME and has("Metadata") == "true":
                    self.answer("spot-17")
                elif self.path == AZURE and has("Metadata") == "true":
                    self.answer(machine.says["azure"])
                else:
                    self.answer(machine.says.get("own"))

            def answer(self, text):
                self.send_response(404 if text is None else 200)
                self.end_headers()
                self.wfile.write((text or "").encode())

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()

    def redirect(url):
        parts = urlsplit(url)
        return url.replace(f"{parts.scheme}://{parts.netloc}", machine.address)

    clouds = {
        name: replace(
            service,
            url=redirect(service.url),
            token_url=redirect(service.token_url) if service.token_url else "",
            name_url=redirect(service.name_url) if service.name_url else "",
        )
        for name, service in preemption.CLOUDS.items()
    }
    monkeypatch.setattr(preemption, "CLOUDS", clouds)
    monkeypatch.setattr(preemption, "POLL_S", 0.01)
    monkeypatch.setattr(preemption, "_ANSWER_S", 60.0)  # this machine may be busy
    yield machine
    machine.server.shutdown()
    machine.server.server_close()


def heard(machine, notice, after, say=lambda line: None):
    """Call `after` once the machine was asked three times; return the notice that is heard."""

    async def run():
        waiting = asyncio.create_task(wait_for_notice(notice, say))
        while machine.asked < 3 and not waiting.done():
            await asyncio.sleep(0.01)
        assert not waiting.done(), waiting.result()
        after()
        return await asyncio.wait_for(waiting, 60)

    return asyncio.run(run())


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_each_cloud_is_heard_when_it_says_so_and_not_before(machine, cloud):
    notice = heard(machine, cloud, lambda: machine.says.update({cloud: NOTICES[cloud]}))
    assert notice.startswith(f"{cloud} says ")


def test_the_end_of_another_machine_of_the_scale_set_is_no_notice(machine):
    machine.says["azure"] = OF_ANOTHER
    notice = heard(machine, "azure", lambda: machine.says.update(azure=NOTICES["azure"]))
    assert "spot-17" in notice


@pytest.mark.parametrize(
    "nonsense", ["[]", "7", "<html>", '{"Events": [3]}', '{"Events": 3}']
)
def test_an_answer_that_is_no_notice_is_survived(machine, nonsense):
    machine.says["azure"], lines = nonsense, []
    notice = heard(
        machine,
        "azure",
        lambda: machine.says.update(azure=NOTICES["azure"]),
        lines.append,
    )
    assert notice.startswith("azure says ")
    assert "cannot be polled" in lines[0]


def test_any_address_is_a_notice_once_it_answers(machine):
    address = f"{machine.address}/spot"
    notice = heard(machine, address, lambda: machine.says.update(own="soon"))
    assert notice == f"{address} says soon"


def test_a_service_that_fails_is_asked_again_and_said_once(machine):
    machine.fails, lines = 2, []
    heard(machine, "gcp", lambda: machine.says.update(gcp="TRUE"), lines.append)
    assert [line.split(" (")[0] for line in lines] == [
        "gcp cannot be polled for notices",
        "gcp answers again",
    ]


def test_a_file_is_a_notice_when_it_appears(tmp_path, monkeypatch):
    monkeypatch.setattr(preemption, "POLL_S", 0.01)
    file = tmp_path / "leaving"
    loop_saw = []

    async def run():
        waiting = asyncio.create_task(wait_for_notice(str(file), loop_saw.append))
        await asyncio.sleep(0)
        assert not waiting.done()
        file.touch()
        return await asyncio.wait_for(waiting, 60)

    assert asyncio.run(run()) == f"{file} is there"
    assert loop_saw == []


@pytest.mark.parametrize(
    "notice", ["awz", "https://example.org", "relative/file", "http://"]
)
def test_what_can_be_no_notice_is_refused_at_once(notice):
    with pytest.raises(BadInput, match="none of aws, gcp, azure"):
        checked_notice(notice)
