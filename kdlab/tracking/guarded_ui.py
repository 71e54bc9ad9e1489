"""MLflow's UI for whoever knows its token: every user of a machine can reach loopback.

MLflow finds this application by the entry point `kdlab` of `mlflow.app`. The first address
has the token in it and leaves it as a cookie; scripts send it as MLFLOW_TRACKING_TOKEN.
"""

import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from mlflow.server.fastapi_app import app as mlflow_app
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse

from kdlab.tracking import UI_TOKEN

_DAYS_30 = 30 * 24 * 3600
_REFUSED = (
    "This MLflow UI answers to whoever knows its token. Open the address that `kdlab ui` "
    "printed; a script sets MLFLOW_TRACKING_TOKEN."
)

Scope = MutableMapping[str, Any]
AsgiChannel = Callable[..., Awaitable[Any]]


class Guarded:
    """An ASGI application in front of MLflow's."""

    def __init__(self, inner: Callable[..., Awaitable[None]], token: str) -> None:
        self._inner, self._token = inner, token

    async def __call__(self, scope: Scope, receive: AsgiChannel, send: AsgiChannel) -> None:
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
            return
        asked = HTTPConnection(scope)
        cookie = f"kdlab-ui-{asked.url.port}"  # cookies are of a host, not of a port
        bearer = asked.headers.get("authorization", "").removeprefix("Bearer ")
        if self._knows(asked.cookies.get(cookie, "")) or self._knows(bearer):
            await self._inner(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif self._knows(asked.query_params.get("token", "")):
            # The browser keeps what stands behind the # of an address.
            answer = RedirectResponse(asked.url.path, 303)
            answer.set_cookie(cookie, self._token, _DAYS_30, httponly=True, samesite="lax")
            await answer(scope, receive, send)
        else:
            await PlainTextResponse(_REFUSED, 401)(scope, receive, send)

    def _knows(self, said: str) -> bool:
        return hmac.compare_digest(said.encode(), self._token.encode())


app = Guarded(mlflow_app, os.environ[UI_TOKEN])
