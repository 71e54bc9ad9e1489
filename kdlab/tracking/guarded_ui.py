"""MLflow's UI behind a token, since every user of a machine can reach loopback.

MLflow finds this application by the entry point `kdlab` of `mlflow.app`. Scripts send the
token as MLFLOW_TRACKING_TOKEN. A browser uses another one, which is valid for one visit
in the first minutes, and gets a cookie that lives as long as this process.

Browsers send a cookie to every port of its host, so a cookie of 127.0.0.1 also to the servers
of other users. So this UI has its own host: a secret, random name below localhost, which browsers
resolve to loopback.
"""

import hmac
import os
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from mlflow.server.fastapi_app import app as mlflow_app
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, PlainTextResponse

from kdlab.tracking import UI_HOST, UI_ONCE, UI_TOKEN

_COOKIE = "kdlab-ui"
_MINUTES_10 = 600.0
_REFUSED = (
    "This MLflow UI needs a token. Open the address that `kdlab ui` printed; it works once, within "
    "some minutes. For a new one, start `kdlab ui` again. In a link to 127.0.0.1, replace the host "
    "by that of the address. Scripts set MLFLOW_TRACKING_TOKEN."
)
# No redirect, so the fragment of the address stays. It selects MLflow's view of training, in which
# its links then stay.
_ENTERED = """<script>
localStorage["mlflow.workflowType_v1"] = '"machine_learning"'
location.replace(location.pathname + location.hash)
</script>"""

Scope = MutableMapping[str, Any]
AsgiChannel = Callable[..., Awaitable[Any]]


class AuthenticatedUi:
    """An ASGI application in front of MLflow's.

    Args:
        inner: MLflow's application.
        token: of scripts.
        once: token that admits one browser, which must use `host`, within `life_s`.
        host: name without the port.
        life_s: seconds.
    """

    def __init__(
        self,
        inner: Callable[..., Awaitable[None]],
        token: str,
        once: str,
        host: str,
        life_s: float = _MINUTES_10,
    ) -> None:
        self._inner, self._token, self._once, self._host = inner, token, once, host
        self._deadline = time.monotonic() + life_s
        self._session = secrets.token_urlsafe(32)  # only here and in the cookie

    async def __call__(self, scope: Scope, receive: AsgiChannel, send: AsgiChannel) -> None:
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
            return
        request = HTTPConnection(scope)
        if token := request.query_params.get("token", ""):
            scope["query_string"] = b""  # the server logs the address without it
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        admitted = _same(request.cookies.get(_COOKIE, ""), self._session)
        if admitted or _same(bearer, self._token):
            await self._inner(scope, receive, _without_referrer(send))
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._admit(request.url.hostname, token)(scope, receive, send)

    def _admit(self, host: str | None, token: str) -> PlainTextResponse | HTMLResponse:
        """Response to a client without a session: a cookie for the right token, else 401."""
        in_time = time.monotonic() < self._deadline
        if not (in_time and host == self._host and _same(token, self._once)):
            return PlainTextResponse(_REFUSED, 401)
        self._deadline = 0.0  # once
        response = HTMLResponse(_ENTERED)
        # Lax: links in notebooks work; requests from other sites carry no cookie.
        response.set_cookie(_COOKIE, self._session, httponly=True, samesite="lax")
        return response


def _without_referrer(send: AsgiChannel) -> AsgiChannel:
    """Set a referrer policy, so that linked sites do not learn the name of this host."""

    async def sends(message: Scope) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"referrer-policy", b"same-origin")]
        await send(message)

    return sends


def _same(text: str, secret: str) -> bool:
    return hmac.compare_digest(text.encode(), secret.encode())


app = AuthenticatedUi(
    mlflow_app, os.environ[UI_TOKEN], os.environ[UI_ONCE], os.environ[UI_HOST]
)
