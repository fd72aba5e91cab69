"""Before every endpoint: the request's label, which every answer carries, and the key, which says who asks."""

import attrs
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lmpool.io.http.errors import ApiError, Code, error_response
from lmpool.io.http.headers import LABEL, draw_label, read_label
from lmpool.io.http.keys import ANYBODY, Client, Keys

OPEN_PATHS = frozenset(("/livez", "/readyz", "/metrics", "/openapi.json"))
"""For probes and scrapes: they need no key and tell nothing about requests."""

CALLER = "lmpool.caller"


@attrs.frozen
class Caller:
    client: Client
    label: str


class Gate:
    """ASGI middleware; leaves a `Caller` in the scope."""

    def __init__(self, app: ASGIApp, keys: Keys | None) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        headers = Headers(scope=scope)
        label = draw_label()

        async def send_labelled(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[LABEL] = label
            await send(message)

        try:
            label = read_label(headers) or label
            client = ANYBODY if scope["path"] in OPEN_PATHS else self._client_of(headers)
        except ApiError as error:
            await error_response(error)(scope, receive, send_labelled)
            return
        scope[CALLER] = Caller(client, label)
        await self._app(scope, receive, send_labelled)

    def _client_of(self, headers: Headers) -> Client:
        if self._keys is None:
            return ANYBODY
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key:
            text = "This server needs an API key: send the header 'Authorization: Bearer KEY'."
            raise ApiError(Code.INVALID_API_KEY, text)
        client = self._keys.client_of(key.strip())
        if client is None:
            raise ApiError(Code.INVALID_API_KEY, "The API key is not one of this server's.")
        return client


def require_admin(caller: Caller) -> None:
    """Raises ApiError."""
    if not caller.client.is_admin:
        text = (
            "This needs an admin key: start the server with --api-key-file and a line 'KEY TENANT admin' in that "
            "file, and send the header 'Authorization: Bearer KEY'."
        )
        raise ApiError(Code.ADMIN_KEY_REQUIRED, text)


def caller_of(scope: Scope) -> Caller:
    caller = scope[CALLER]
    assert isinstance(caller, Caller)
    return caller
