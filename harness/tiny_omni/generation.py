"""One request on its way through the server: engine outputs in, text and speech out, both at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import torch

from harness.tiny_omni.errors import TinyOmniError
from harness.tiny_omni.forms import Usage
from harness.tiny_omni.protocol import Modality
from harness.tiny_omni.request import EngineOutput, EngineRequest, FinishReason
from harness.tiny_omni.speech import Speech
from harness.tiny_omni.talker import Talker
from harness.tiny_omni.tokenizer import Detokenizer


class GenerationFailed(TinyOmniError):
    """The engine gave a request up; the message is the engine's."""


class SubmitsRequests(Protocol):
    """What a generation needs of an engine."""

    def submit(self, request: EngineRequest) -> None: ...

    def abort(self, request_id: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Job:
    """What a client asked for, in tokens."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    ignore_eos: bool
    modalities: frozenset[Modality]


@dataclass(frozen=True, slots=True)
class Text:
    """New text; the last piece, empty or not, carries the finish reason."""

    text: str
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class Finished:
    """The end: nothing follows."""

    reason: FinishReason
    usage: Usage


Event = Text | Speech | Finished


class Generation:
    """A request from its submission, on entering the context, to its end; leaving earlier aborts it.

    A token that stops the request has no text; every other token has, special ones too.

    Parameters:
        engine: runs the request.
        pieces: the bytes of every token id.
        talker: needed when the job wants audio, which starts as soon as the prompt's rows are there.
        on_finish: called once with the engine's reason, or "abort" when left early, on the event loop.

    Raises on entering:
        RequestRefused, EngineFailed: from the engine.
    """

    def __init__(
        self,
        engine: SubmitsRequests,
        pieces: Sequence[bytes],
        talker: Talker | None,
        job: Job,
        on_finish: Callable[[FinishReason], None],
    ) -> None:
        self._engine, self._talker, self._job, self._on_finish = engine, talker, job, on_finish
        self._detokenizer = Detokenizer(pieces)
        self._outputs: asyncio.Queue[EngineOutput] = asyncio.Queue()
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._ended = False
        self._generated = 0
        self._work: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()

        def on_output(output: EngineOutput) -> None:
            # A closed loop means that the server is gone and nobody waits for this any more.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._outputs.put_nowait, output)

        job = self._job
        self._engine.submit(
            EngineRequest(
                request_id=job.request_id,
                prompt_token_ids=job.prompt_token_ids,
                max_tokens=job.max_tokens,
                ignore_eos=job.ignore_eos,
                needs_rows="audio" in job.modalities,
                on_output=on_output,
            )
        )
        self._work = asyncio.create_task(self._run())
        self._work.add_done_callback(lambda _: self._events.put_nowait(None))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._ended:
            self._engine.abort(self._job.request_id)
            self._on_finish("abort")
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    async def events(self) -> AsyncIterator[Event]:
        """Text and speech as they come, then one `Finished`.

        Raises:
            GenerationFailed: the engine gave up.
            NothingToSay, SpeechFailed: from the Talker.
        """
        while (event := await self._events.get()) is not None:
            yield event
        assert self._work is not None
        await self._work

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                last = await self._follow(group)
        except BaseExceptionGroup as group_error:
            raise group_error.exceptions[0] from None
        usage = Usage(len(self._job.prompt_token_ids), self._generated, last.cached_tokens)
        self._events.put_nowait(Finished(last.finish_reason or "stop", usage))

    async def _follow(self, group: asyncio.TaskGroup) -> EngineOutput:
        """Turn outputs into text until the last one, which is returned; speech runs beside it in `group`."""
        while True:
            output = await self._outputs.get()
            if output.finish_reason is not None:
                self._ended = True
                self._on_finish(output.finish_reason)
            if output.finish_reason == "error":
                raise GenerationFailed(output.error or "the engine gave no reason")
            if output.prompt_rows is not None and self._talker is not None:
                group.create_task(self._speak(self._talker, output.prompt_rows))
            self._generated += len(output.new_token_ids)
            self._emit_text(output)
            if output.finish_reason is not None:
                return output

    def _emit_text(self, output: EngineOutput) -> None:
        if "text" not in self._job.modalities:
            return
        shown = output.new_token_ids[:-1] if output.finish_reason == "stop" else output.new_token_ids
        text = self._detokenizer.push(shown)
        if output.finish_reason is not None:
            text += self._detokenizer.flush()
        if text or output.finish_reason is not None:
            self._events.put_nowait(Text(text, output.finish_reason))

    async def _speak(self, talker: Talker, rows: Mapping[str, torch.Tensor]) -> None:
        async for piece in talker.speak(rows, self._job.max_tokens):
            self._events.put_nowait(piece)
