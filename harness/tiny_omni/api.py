"""The HTTP side: OpenAI's endpoints in vLLM's and vLLM-Omni's forms, over one engine."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from aiohttp import web
from tokenizers import Tokenizer

from harness.tiny_omni.chat import chat_text
from harness.tiny_omni.config import EngineConfig
from harness.tiny_omni.ear import Ear
from harness.tiny_omni.engine import EngineStats
from harness.tiny_omni.errors import EngineFailed, RequestRefused, TinyOmniError
from harness.tiny_omni.faults import Faults
from harness.tiny_omni.forms import ChatForm, CompletionForm, Envelope, Form
from harness.tiny_omni.generation import Finished, Generation, Job, SubmitsRequests, Text
from harness.tiny_omni.metrics import CONTENT_TYPE, EngineCollector, FinishCounts, exposition
from harness.tiny_omni.protocol import (
    ApiError,
    BodyT,
    ChatBody,
    CompletionBody,
    GenerationBody,
    Internal,
    Json,
    Message,
    NotFound,
    Reference,
    TokenizeBody,
    Unavailable,
    parse_body,
)
from harness.tiny_omni.speech import Speech
from harness.tiny_omni.talker import NothingToSay, Talker
from harness.tiny_omni.tokenizer import token_bytes

CRASH_CODE = 42
"""Exit code of the fault crash-after."""
MAX_BODY = 32 * 1024 * 1024
DEFAULT_COMPLETION_TOKENS = 16
"""max_tokens of /v1/completions where absent, as at OpenAI; a chat goes on to the context's end."""

log = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ServedEngine(SubmitsRequests, Protocol):
    """What the server needs of an engine."""

    @property
    def config(self) -> EngineConfig: ...

    @property
    def failure(self) -> BaseException | None: ...

    def reset_prefix_cache(self) -> bool: ...

    def stats(self) -> EngineStats: ...


@dataclass(frozen=True, slots=True)
class Service:
    """Everything that answers requests once it is loaded. `talker` is None when the server has no audio."""

    engine: ServedEngine
    tokenizer: Tokenizer
    talker: Talker | None
    ear: Ear
    finished: FinishCounts = field(default_factory=FinishCounts)


class Api:
    """The web application. It answers 503 until `open` gives it a service.

    Parameters:
        model_name: the name it serves under.
        faults: what goes wrong on purpose.
    """

    def __init__(self, model_name: str, faults: Faults) -> None:
        self._model = faults.wrong_model or model_name
        self._faults = faults
        self._service: Service | None = None
        self._pieces: tuple[bytes, ...] = ()
        self._collector: EngineCollector | None = None
        self._generations = 0
        self.app = web.Application(client_max_size=MAX_BODY, middlewares=[_errors_as_json])
        self.app.add_routes(
            [
                web.get("/health", self.health),
                web.get("/metrics", self.metrics),
                web.get("/v1/models", self.models),
                web.post("/v1/chat/completions", self.chat_completions),
                web.post("/v1/completions", self.completions),
                web.post("/tokenize", self.tokenize),
                web.post("/reset_prefix_cache", self.reset_prefix_cache),
            ]
        )

    def open(self, service: Service) -> None:
        """Begin to answer.

        Raises:
            UsageError: the fault drop-metric names no series.
        """
        self._collector = EngineCollector(
            self._model, service.engine.config, service.engine.stats, service.finished, self._faults.drop_metric
        )
        self._pieces = token_bytes(service.tokenizer)
        self._service = service

    async def health(self, request: web.Request) -> web.Response:
        del request
        self._ready()
        return web.Response()

    async def metrics(self, request: web.Request) -> web.Response:
        del request
        if self._collector is None:
            raise Unavailable("the server is not ready")
        return web.Response(body=exposition(self._collector), headers={"Content-Type": CONTENT_TYPE})

    async def models(self, request: web.Request) -> web.Response:
        del request
        length = self._ready().engine.config.max_model_len
        card = {
            "id": self._model,
            "object": "model",
            "created": 0,
            "owned_by": "tiny_omni",
            "root": self._model,
            "parent": None,
            "max_model_len": length,
        }
        return web.json_response({"object": "list", "data": [card]})

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        service = self._ready()
        body = await self._body(ChatBody, request)
        if "audio" in body.wanted and service.talker is None:
            raise ApiError("modalities: found audio; allowed: text, this server was started with --no-audio")
        if body.reference is not None and service.talker is None:
            raise ApiError("ref_audio: found a recording; allowed: none, this server was started with --no-audio")
        prompt = self._encode(service, await self._chat_text(service.ear, body.messages, reference=body.reference))
        limit = body.limit or max(1, service.engine.config.max_model_len - len(prompt))
        job = Job(f"chatcmpl-{uuid.uuid4().hex}", prompt, limit, body.ignore_eos, body.wanted)
        return await self._answer(request, service, body, job, ChatForm(Envelope.open(job.request_id, self._model)))

    async def completions(self, request: web.Request) -> web.StreamResponse:
        service = self._ready()
        body = await self._body(CompletionBody, request)
        prompt = self._encode(service, body.prompt) if isinstance(body.prompt, str) else tuple(body.prompt)
        limit = body.max_tokens or DEFAULT_COMPLETION_TOKENS
        job = Job(f"cmpl-{uuid.uuid4().hex}", prompt, limit, body.ignore_eos, frozenset({"text"}))
        form = CompletionForm(Envelope.open(job.request_id, self._model))
        return await self._answer(request, service, body, job, form)

    async def tokenize(self, request: web.Request) -> web.Response:
        service = self._ready()
        body = await self._body(TokenizeBody, request)
        text = body.prompt
        if body.messages is not None:
            text = await self._chat_text(service.ear, body.messages, add_generation_prompt=body.add_generation_prompt)
        tokens = self._encode(service, text or "")
        length = service.engine.config.max_model_len
        return web.json_response({"count": len(tokens), "max_model_len": length, "tokens": list(tokens)})

    async def reset_prefix_cache(self, request: web.Request) -> web.Response:
        del request
        if not self._ready().engine.reset_prefix_cache():
            raise ApiError("the prefix cache cannot be reset while a request is running")
        return web.json_response({"success": True})

    def _ready(self) -> Service:
        if self._service is None:
            raise Unavailable("the server is not ready")
        if self._service.engine.failure is not None:
            raise Unavailable(f"the engine failed: {self._service.engine.failure!r}")
        return self._service

    async def _body(self, form: type[BodyT], request: web.Request) -> BodyT:
        body = parse_body(form, await request.read())
        if body.model is not None and body.model != self._model:
            raise NotFound(f"The model `{body.model}` does not exist.")
        return body

    @staticmethod
    async def _chat_text(
        ear: Ear, messages: list[Message], *, reference: Reference | None = None, add_generation_prompt: bool = True
    ) -> str:
        write = partial(chat_text, messages, ear, reference=reference, add_generation_prompt=add_generation_prompt)
        if reference is not None or any(message.has_recording for message in messages):
            # Hearing takes longer than the event loop may wait.
            return await asyncio.to_thread(write)
        return write()

    @staticmethod
    def _encode(service: Service, text: str) -> tuple[int, ...]:
        return tuple(service.tokenizer.encode(text, add_special_tokens=False).ids)

    async def _answer(
        self, request: web.Request, service: Service, body: GenerationBody, job: Job, form: Form
    ) -> web.StreamResponse:
        self._generations += 1
        if self._generations == self._faults.crash_after:
            os._exit(CRASH_CODE)
        if self._generations == self._faults.fail_request:
            raise Internal("fault fail-request")
        stalls = self._generations == self._faults.stall_stream
        async with Generation(service.engine, self._pieces, service.talker, job, service.finished.add) as generation:
            if body.stream:
                usage = body.include_usage and not self._faults.missing_usage
                return await self._stream(request, generation, form, include_usage=usage, stalls=stalls)
            return await self._whole(generation, job, form)

    async def _whole(self, generation: Generation, job: Job, form: Form) -> web.Response:
        text: list[str] = []
        speech: list[Speech] = []
        async for event in generation.events():
            match event:
                case Text():
                    text.append(event.text)
                case Speech():
                    speech.append(event)
                case Finished():
                    answer = form.whole(
                        "".join(text) if "text" in job.modalities else None,
                        speech if "audio" in job.modalities else None,
                        event.reason,
                        None if self._faults.missing_usage else event.usage,
                    )
                    return web.json_response(answer)
        raise AssertionError("a generation ends with Finished or raises")

    async def _stream(
        self, request: web.Request, generation: Generation, form: Form, *, include_usage: bool, stalls: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)

        async def send(message: Json | None) -> bool:
            if message is not None:
                await response.write(b"data: " + json.dumps(message).encode() + b"\n\n")
            return message is not None

        opened = False
        try:
            async for event in generation.events():
                if not opened:
                    # With the first output, as vLLM does: clients that time the first message time the first token.
                    await send(form.opening())
                    opened = True
                match event:
                    case Text():
                        sent = await send(form.text(event.text, event.finish_reason))
                    case Speech():
                        sent = await send(form.speech(event))
                    case Finished():
                        sent = False
                        await send(form.finish(event.reason))
                        if include_usage:
                            await send(form.usage(event.usage))
                if sent and stalls:
                    await asyncio.Event().wait()
        except TinyOmniError as error:
            await send(_as_api_error(error).body())
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


def _as_api_error(error: TinyOmniError) -> ApiError:
    match error:
        case ApiError():
            return error
        case RequestRefused() | NothingToSay():
            return ApiError(str(error))
        case EngineFailed():
            return Unavailable(str(error))
    return Internal(str(error))


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except TinyOmniError as error:
        answer = _as_api_error(error)
    except web.HTTPException as error:
        answer = ApiError(f"{request.method} {request.path}: {error.reason}")
        answer.status, answer.kind = error.status, "NotFoundError" if error.status == 404 else "BadRequestError"
    except Exception as error:
        log.exception("%s %s failed", request.method, request.path)
        answer = Internal(repr(error))
    return web.json_response(answer.body(), status=answer.status)
