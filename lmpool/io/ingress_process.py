"""The body of the ingress process: HTTP on the socket that the supervisor bound, over the links of one ingress."""

import asyncio
import logging
import resource
import socket
import time
from pathlib import Path

import jinja2

from lmpool.core.ids import Epoch
from lmpool.core.plan import ReplicaError
from lmpool.io.child import ChildEnd, drain_ordered
from lmpool.io.clock import monotonic_now
from lmpool.io.http.app import Application, create_app
from lmpool.io.http.key_watch import KeyWatch
from lmpool.io.http.keys import KeyFileError
from lmpool.io.http.server import serve
from lmpool.io.http.service import Context
from lmpool.io.ingress import IngressAdapter, IngressPlace
from lmpool.io.orders import Beat, Drain, IngressOrder, Progress, Ready
from lmpool.io.pool import Pool
from lmpool.io.text.model_text import FolderError, ModelText
from lmpool.io.text.token_bytes import DecoderError

BEAT_S = 1.0
DESCRIPTORS_KEPT = 256
"""For links, files and everything else that is no client's connection."""
OPEN_FILES_MAX = 1 << 16
"""Some ten times the requests that a server is usually asked to hold."""

FOLDER_HINT = "the model's tokenizer or chat template cannot be used; get the folder again from where it came"


async def run_ingress(order: IngressOrder, channel: ChildEnd) -> None:
    """Serves until told to drain. Ready once control and every replica are linked; probes are answered before.

    Raises ReplicaError for a folder or key file that cannot be used.
    """
    drain = drain_ordered(channel)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # what else it says, the supervisor says better
    watch = _key_watch(order)
    text = await asyncio.to_thread(_text, Path(order.model_folder))
    ingress = IngressAdapter(
        IngressPlace(
            run=order.run,
            run_folder=order.run_folder,
            epoch=Epoch(order.epoch),
            replicas=order.replicas,
            block_size=order.block_size,
            requests_max=order.requests_max,
        )
    )
    app = create_app(
        Context(
            service=Pool(ingress, text),
            text=text,
            names=order.served_names,
            keys=None if watch is None else watch.keys,
            body_bytes_max=order.body_bytes_max,
            requests_max=order.requests_max,
            now=monotonic_now,
            created=int(time.time()),
        )
    )
    ingress.dial()
    try:
        await _serve(order, channel, app, ingress, text, drain, watch)
    finally:
        await ingress.close()
        text.close()


async def _serve(
    order: IngressOrder,
    channel: ChildEnd,
    app: Application,
    ingress: IngressAdapter,
    text: ModelText,
    drain: "asyncio.Future[Drain]",
    watch: KeyWatch | None,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end(drain: "asyncio.Future[Drain]") -> None:
        stop.set()
        loop.call_later(drain.result().seconds, app.door.closing.set)

    async def tell_ready() -> None:
        channel.note(Progress("serving probes, waiting for control and replicas"))
        await ingress.all_linked()
        channel.note(Ready(_facts(order, ingress, text)))

    async def beat() -> None:
        while True:
            channel.note(Beat(working=False, steps=0))
            if watch is not None:
                watch.look()
            await asyncio.sleep(BEAT_S)

    drain.add_done_callback(end)
    listener = socket.socket(fileno=order.listen_fd)
    open_files_max = raise_open_files()
    connections_max = max(open_files_max // 2, open_files_max - DESCRIPTORS_KEPT)
    serving = asyncio.create_task(serve(app, listener, stop, order.drain_s, connections_max))
    others = (asyncio.create_task(tell_ready()), asyncio.create_task(beat()))
    try:
        await asyncio.wait((serving, ingress.fault), return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            app.door.closing.set()
            stop.set()
        await serving
        if ingress.fault.done():
            ingress.fault.result()
    finally:
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def raise_open_files() -> int:
    """How many files this process may now have open: as many as it is allowed to ask for, within reason."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return OPEN_FILES_MAX if soft == resource.RLIM_INFINITY else soft


def _key_watch(order: IngressOrder) -> KeyWatch | None:
    """Raises ReplicaError."""
    if order.api_key_file is None:
        return None
    try:
        return KeyWatch(Path(order.api_key_file))
    except KeyFileError as error:
        raise ReplicaError(str(error), "mend the file, or start without --api-key-file") from error


def _text(folder: Path) -> ModelText:
    """Raises ReplicaError."""
    try:
        return ModelText(folder)
    except (FolderError, DecoderError) as error:
        raise ReplicaError(str(error), FOLDER_HINT) from error
    except jinja2.TemplateSyntaxError as error:
        raise ReplicaError(
            f"the chat template of {folder}, line {error.lineno}: {error.message}", FOLDER_HINT
        ) from error
    except Exception as error:  # of tokenizers, which has no narrower one for a damaged file
        raise ReplicaError(f"cannot read tokenizer.json in {folder}: {error}", FOLDER_HINT) from error


def _facts(order: IngressOrder, ingress: IngressAdapter, text: ModelText) -> tuple[str, ...]:
    name, *others = order.served_names
    also = f" (also {', '.join(others)})" if others else ""
    chat = (
        "chat on: /v1/chat/completions and /v1/completions"
        if text.facts.has_template
        else "chat off (the model has no chat template): /v1/completions"
    )
    keys = "no keys: everybody who reaches the port is served" if order.api_key_file is None else "keys are asked for"
    return (f"model {name}{also}; longest context {ingress.tokens_max} tokens", f"{chat}; {keys}")
