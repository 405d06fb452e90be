"""The reference: the recorded voice a request asks to be answered in, as the system turn that opens its prompt.

    reference voice slt: cold river ... house transcript: The sun is up.

Behind the name of the voice stands the recording, spelled by the ear, and what is said in it. Requests that share a
reference share all of that as a prefix.
"""

from __future__ import annotations

import re

from harness.tiny_omni.speech import VOICES, Voice
from harness.tiny_omni.tokenizer import IM_START

_OPENING = re.compile(rf"{re.escape(IM_START)}system\nreference voice ({'|'.join(VOICES)}):")


def write_reference(voice: Voice, spelled: str, transcript: str) -> str:
    """The content of the system turn."""
    return f"reference voice {voice}:{spelled} transcript: {transcript}"


def has_reference(prompt: str) -> bool:
    """Whether a prompt, as text with its template, opens with a reference; a token too many or too few, and it does
    not."""
    return _OPENING.match(prompt) is not None
