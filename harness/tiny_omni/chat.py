"""A chat as the text of one prompt: recordings spelled in place, the reference in front."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from harness.tiny_omni.ear import Ear
from harness.tiny_omni.protocol import ApiError, AudioPart, InputAudioPart, Message, Part, Reference, TextPart
from harness.tiny_omni.recording import BadRecording, read_base64, read_data_url
from harness.tiny_omni.reference import write_reference
from harness.tiny_omni.tokenizer import render_chat


def chat_text(
    messages: Sequence[Message], ear: Ear, *, reference: Reference | None = None, add_generation_prompt: bool = True
) -> str:
    """The prompt of a chat.

    Parameters:
        reference: the voice to answer in: its turn opens the prompt.

    Raises:
        ApiError: status 400: a recording that cannot be heard; the message names its field.
        SpeechFailed: the ear could not learn the voices.
    """
    turns = [
        {"role": message.role, "content": _content(message.content, ear, f"messages.{index}.content")}
        for index, message in enumerate(messages)
    ]
    if reference is not None:
        with _field("ref_audio"):
            recording = read_data_url(reference.audio)
            content = write_reference(ear.name_voice(recording), ear.spell(recording), reference.text)
        turns.insert(0, {"role": "system", "content": content})
    return render_chat(turns, add_generation_prompt)


def _content(content: str | list[Part], ear: Ear, where: str) -> str:
    if isinstance(content, str):
        return content
    return "".join(_part(part, ear, f"{where}.{index}") for index, part in enumerate(content))


def _part(part: Part, ear: Ear, where: str) -> str:
    with _field(where):
        match part:
            case TextPart():
                return part.text
            case AudioPart():
                return ear.spell(read_data_url(part.audio_url.url)) + "\n"
            case InputAudioPart():
                return ear.spell(read_base64(part.input_audio.data)) + "\n"


@contextmanager
def _field(where: str) -> Iterator[None]:
    try:
        yield
    except BadRecording as error:
        raise ApiError(f"{where}: {error}") from None
