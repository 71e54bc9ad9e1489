"""MLflow's UI for whoever knows its token: every user of a machine can reach loopback.

MLflow finds this application by the entry point `kdlab` of `mlflow.app`. Scripts send the
token as MLFLOW_TRACKING_TOKEN. A browser comes with another one, which is good for one visit
in the first minutes, and gets a cookie that lives as long as this process.

Browsers send a cookie to every port of its host, thus a cookie of 127.0.0.1 to the servers of
other users. So this UI has a host of its own: a name below localhost, which browsers take for
loopback, that nobody else knows, and that is another one each time.
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
    "This MLflow UI answers to whoever knows its token. Open the address that `kdlab ui` "
    "printed, which works once and for some minutes: for another one, start it again. In a "
    "link to 127.0.0.1 put the host of that address. A script sets MLFLOW_TRACKING_TOKEN."
)
# Not a redirection: what stands behind the # of the address stays. Of MLflow's two views the one
# of training, in which its links then stay.
_ENTERED = """<script>
localStorage["mlflow.workflowType_v1"] = '"machine_learning"'
location.replace(location.pathname + location.hash)
</script>"""

Scope = MutableMapping[str, Any]
AsgiChannel = Callable[..., Awaitable[Any]]


class AuthenticatedUi:
    """An ASGI application in front of MLflow's.

    Args:
        inner: MLflow's.
        token: of scripts.
        once: lets one browser in, that calls this by `host`, within `life_s`.
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
        self._session = secrets.token_urlsafe(32)  # nowhere but here and in the cookie

    async def __call__(self, scope: Scope, receive: AsgiChannel, send: AsgiChannel) -> None:
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
            return
        asked = HTTPConnection(scope)
        if said := asked.query_params.get("token", ""):
            scope["query_string"] = b""  # the server's log has the rest of the address
        bearer = asked.headers.get("authorization", "").removeprefix("Bearer ")
        known = _same(asked.cookies.get(_COOKIE, ""), self._session)
        if known or _same(bearer, self._token):
            await self._inner(scope, receive, _without_referrer(send))
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._first(asked.url.hostname, said)(scope, receive, send)

    def _first(self, host: str | None, said: str) -> PlainTextResponse | HTMLResponse:
        """The answer to somebody unknown who says this."""
        in_time = time.monotonic() < self._deadline
        if not (in_time and host == self._host and _same(said, self._once)):
            return PlainTextResponse(_REFUSED, 401)
        self._deadline = 0.0  # once
        answer = HTMLResponse(_ENTERED)
        # Lax: a link in a notebook leads here; what another site has the browser send does not.
        answer.set_cookie(_COOKIE, self._session, httponly=True, samesite="lax")
        return answer


def _without_referrer(send: AsgiChannel) -> AsgiChannel:
    """Who is linked to, perhaps at another port, does not hear the name of this host."""

    async def sends(message: Scope) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"referrer-policy", b"same-origin")]
        await send(message)

    return sends


def _same(said: str, secret: str) -> bool:
    return hmac.compare_digest(said.encode(), secret.encode())


app = AuthenticatedUi(
    mlflow_app, os.environ[UI_TOKEN], os.environ[UI_ONCE], os.environ[UI_HOST]
)
