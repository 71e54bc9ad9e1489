"""MLflow's pages are for whoever knows their token, and for nobody else."""

import asyncio

import pytest

from kdlab.tracking import UI_HOST, UI_ONCE, UI_TOKEN

TOKEN, ONCE, HOST = "a token of tests", "a token of one visit", "abc.localhost"
ENTRY = f"token={ONCE.replace(' ', '+')}"


@pytest.fixture(scope="module")
def guarded():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ((UI_TOKEN, TOKEN), (UI_ONCE, ONCE), (UI_HOST, HOST)):
            patch.setenv(name, value)  # read where the module is imported
        from kdlab.tracking.guarded_ui import AuthenticatedUi, app

    assert isinstance(app, AuthenticatedUi)
    return AuthenticatedUi


@pytest.fixture
def ui(guarded):
    """Make a guarded UI, and return a function that sends it requests."""

    def make(**options):
        passed, sent, asked = [], [], {}

        async def inner(scope, receive, send):
            passed.append(scope["path"])
            if scope["type"] == "http":
                await send({"type": "http.response.start", "status": 200, "headers": []})

        async def send(message):
            sent.append(message)

        async def receive():
            return {"type": "http.request"}

        app = guarded(inner, TOKEN, ONCE, HOST, **options)

        def ask(path="/", query="", kind="http", host=HOST, **headers):
            """Return status ("passed" where MLflow received the request) and headers."""
            passed.clear()
            sent.clear()
            raw = [(name.encode(), value.encode()) for name, value in headers.items()]
            asked["scope"] = {
                "type": kind,
                "method": "GET",
                "path": path,
                "query_string": query.encode(),
                "headers": [(b"host", f"{host}:5000".encode()), *raw],
                "server": ("127.0.0.1", 5000),
                "scheme": "http",
            }
            asyncio.run(app(asked["scope"], receive, send))
            first = sent[0] if sent else {}
            headers = {k.decode(): v.decode() for k, v in first.get("headers", ())}
            status = "passed" if passed else first.get("status", first.get("code"))
            return status, headers

        ask.logged = lambda: asked["scope"][
            "query_string"
        ]  # what a server's log would have
        return ask

    return make


def entered(ask):
    """Return the cookie of a browser that opened the first address."""
    _, headers = ask(query=ENTRY)
    return headers["set-cookie"].partition(";")[0]


@pytest.mark.parametrize(
    "knows",
    [
        {},
        {"cookie": "kdlab-ui=guessed"},
        {"cookie": f"kdlab-ui={ONCE}"},
        {"cookie": f"kdlab-ui={TOKEN}"},
        {"authorization": "Bearer guessed"},
        {"authorization": "Bearer "},
        {"authorization": f"Bearer {ONCE}"},
        {"query": "token=guessed"},
        {"query": "token="},
        {"query": f"token={TOKEN.replace(' ', '+')}"},
        {"query": ENTRY, "host": "127.0.0.1"},  # whose cookies every port gets
    ],
)
@pytest.mark.long
def test_who_does_not_know_the_token_gets_nothing(ui, knows):
    ask = ui()
    status, headers = ask("/api/2.0/mlflow/experiments/search", **knows)
    assert status == 401
    assert "set-cookie" not in headers
    assert ask.logged() in (b"", b"token=")
    assert ask(query=ENTRY)[0] == 200  # nobody else has used it up


@pytest.mark.long
def test_a_script_says_the_token_by_any_name_of_this_machine(ui):
    credentials = {"authorization": f"Bearer {TOKEN}"}
    assert ui()("/health", host="127.0.0.1", **credentials)[0] == "passed"


def test_the_first_address_leaves_a_cookie_and_the_token_goes_out_of_sight(ui):
    ask = ui()
    status, headers = ask(query=ENTRY)
    assert status == 200  # a strict cookie does not follow a redirection from elsewhere
    cookie = headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert "max-age" not in cookie
    assert ONCE not in cookie
    assert TOKEN not in cookie
    assert ask.logged() == b""


def test_the_first_address_works_once(ui):
    ask = ui()
    cookie = entered(ask)
    assert ask(query=ENTRY)[0] == 401
    assert ask.logged() == b""
    status, headers = ask("/ajax-api/2.0/mlflow/experiments/search", cookie=cookie)
    assert status == "passed"
    assert headers["referrer-policy"] == "same-origin"  # a link does not tell the host
    assert ask(query=ENTRY, cookie=cookie)[0] == "passed"
    assert ask.logged() == b""


def test_the_first_address_works_for_some_minutes(ui):
    assert ui(life_s=0.0)(query=ENTRY)[0] == 401


def test_a_cookie_is_of_one_server(ui):
    assert ui()(cookie=entered(ui()))[0] == 401


def test_a_websocket_of_a_stranger_is_closed(ui):
    ask = ui()
    assert ask(kind="websocket", query=ENTRY)[0] == 1008
    assert ask(kind="websocket", cookie=entered(ask))[0] == "passed"


def test_the_servers_own_begin_and_end_are_passed_on(ui):
    assert ui()(kind="lifespan")[0] == "passed"
