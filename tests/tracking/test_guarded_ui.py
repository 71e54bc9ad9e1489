"""MLflow's pages are for whoever knows their token, and for nobody else."""

import asyncio

import pytest

from kdlab.tracking import UI_TOKEN

TOKEN = "a token of tests"
COOKIE = "kdlab-ui-5000"


@pytest.fixture(scope="module")
def guarded():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(UI_TOKEN, TOKEN)  # read where the module is imported
        from kdlab.tracking.guarded_ui import Guarded, app

    assert isinstance(app, Guarded)
    return Guarded


@pytest.fixture
def ask(guarded):
    """What a request is answered: (status or None where MLflow has it, headers)."""

    def ask(path="/", query="", kind="http", **headers):
        passed, sent = [], []

        async def inner(scope, receive, send):
            passed.append(scope["path"])

        async def send(message):
            sent.append(message)

        async def receive():
            return {"type": "http.request"}

        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {
            "type": kind,
            "method": "GET",
            "path": path,
            "query_string": query.encode(),
            "headers": [(b"host", b"127.0.0.1:5000"), *raw],
            "server": ("127.0.0.1", 5000),
            "scheme": "http",
        }
        asyncio.run(guarded(inner, TOKEN)(scope, receive, send))
        if passed:
            assert sent == []
            return "passed", {}
        first = sent[0]
        headers = {k.decode(): v.decode() for k, v in first.get("headers", ())}
        return first.get("status", first.get("code")), headers

    return ask


@pytest.mark.parametrize(
    "knows",
    [
        {},
        {"cookie": f"{COOKIE}=guessed"},
        {"cookie": f"kdlab-ui-5001={TOKEN}"},  # of another UI on this host
        {"authorization": "Bearer guessed"},
        {"authorization": "Bearer "},
        {"query": "token=guessed"},
        {"query": "token="},
    ],
)
@pytest.mark.long
def test_who_does_not_know_the_token_gets_nothing(ask, knows):
    status, headers = ask("/api/2.0/mlflow/experiments/search", **knows)
    assert status == 401
    assert "set-cookie" not in headers


@pytest.mark.parametrize(
    "knows", [{"cookie": f"{COOKIE}={TOKEN}"}, {"authorization": f"Bearer {TOKEN}"}]
)
@pytest.mark.long
def test_who_knows_it_is_passed_on(ask, knows):
    assert ask("/health", **knows)[0] == "passed"


def test_the_first_address_leaves_a_cookie_and_the_token_goes_out_of_sight(ask):
    status, headers = ask("/", query=f"token={TOKEN.replace(' ', '+')}")
    assert status == 303
    assert headers["location"] == "/"
    said = headers["set-cookie"].lower()
    assert said.startswith(COOKIE)
    assert "httponly" in said
    assert "samesite=lax" in said


def test_a_websocket_of_a_stranger_is_closed(ask):
    assert ask(kind="websocket", query=f"token={TOKEN}")[0] == 1008
    assert ask(kind="websocket", cookie=f"{COOKIE}={TOKEN}")[0] == "passed"


def test_the_servers_own_begin_and_end_are_passed_on(ask):
    assert ask(kind="lifespan")[0] == "passed"
