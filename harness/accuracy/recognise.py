"""Speech to text. Models are opened from files that are already on this machine; nothing is downloaded."""

from __future__ import annotations

import importlib
import inspect
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from harness.accuracy.audio import SPEECH_RATE, at_rate, read_wav
from harness.accuracy.label import ModelLabel, package_version, sha256_of
from harness.accuracy.packages import brief, load_package
from harness.errors import HarnessFailure, UsageError


class Recogniser(Protocol):
    """Hears what a WAV says. `label` may read the weights, and `transcribe` loads them at its first call."""

    @property
    def label(self) -> ModelLabel: ...

    def transcribe(self, wav: Path) -> str:
        """What is said in `wav`, stripped; empty where nothing is said."""
        ...


class Whisper:
    """openai-whisper without fallbacks, so that the same audio always gives the same words.

    Temperature 0 alone (no retry with sampling), each window by itself (no conditioning on previous text, which
    lets one wrong window spoil the next), half precision on GPUs only.

    Parameters:
        model: path of a checkpoint in openai-whisper's format, or the name of one (`large-v3`) that is already in
            its cache folder (`$XDG_CACHE_HOME/whisper` or `~/.cache/whisper`).
        beam: beams of the search; 1 is greedy.
        device: a torch device, `cpu` or `cuda:0`.
        language: code of the language that is spoken.

    Raises:
        MissingDependency: openai-whisper is not installed.
        UsageError: no such file or name, a name whose file is not there, or a file that is not what its name says.
    """

    def __init__(self, model: str, *, beam: int = 5, device: str = "cpu", language: str = "en") -> None:
        if beam < 1:
            raise UsageError(f"wer.beam: found {beam}; allowed: 1 or more")
        self.path = find_whisper(model)
        self._name, self._beam, self._device, self._language = model, beam, device, language
        self._model: Any = None
        self._label: ModelLabel | None = None

    @property
    def label(self) -> ModelLabel:
        if self._label is None:
            self._label = ModelLabel(
                kind="whisper",
                model=self._name,
                sha256=sha256_of(self.path),
                package=package_version("openai-whisper"),
                options=f"beam={self._beam} language={self._language} device={self._device}",
            )
        return self._label

    def transcribe(self, wav: Path) -> str:
        wave = at_rate(read_wav(wav), SPEECH_RATE)
        if wave.silent:
            return ""
        if self._model is None:
            self._model = self._load()
        with warnings.catch_warnings():
            # It leaves the file of its tokens open, and calls numpy in a way that numpy 2 deprecates.
            warnings.simplefilter("ignore", ResourceWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            heard = self._model.transcribe(
                wave.samples,
                language=self._language,
                task="transcribe",
                beam_size=self._beam if self._beam > 1 else None,
                temperature=0.0,
                condition_on_previous_text=False,
                fp16=not self._device.startswith("cpu"),
            )
        return str(heard["text"]).strip()

    def _load(self) -> Any:
        whisper = _whisper()
        try:
            # A path, never a name: names are what whisper.load_model downloads.
            model = whisper.load_model(str(self.path.resolve()), device=self._device)
        except Exception as error:
            raise UsageError(
                f"wer.model: found {self.path}, which does not load on {self._device} "
                f"({brief(error)}); allowed: a checkpoint in openai-whisper's format"
            ) from error
        if self._language != "en" and not model.is_multilingual:
            raise UsageError(f"wer.model: found {self.path}, which knows English alone; wanted: {self._language!r}")
        return model


class Plugin:
    """A function of the user's own, `module:function`, from the path of a WAV to text.

    Raises:
        UsageError: the module does not import, or has no such function.
    """

    def __init__(self, target: str) -> None:
        module_name, _, name = target.partition(":")
        try:
            module = importlib.import_module(module_name)
        except Exception as error:
            raise UsageError(
                f"wer.recogniser: found {target!r}, whose module does not import "
                f"({brief(error)}); allowed: whisper, or module:function on Python's path"
            ) from error
        function = getattr(module, name, None)
        if not callable(function):
            raise UsageError(f"wer.recogniser: found {target!r}, but {module_name} has no function {name!r}")
        self._target = target
        self._function: Callable[[Path], object] = function

    @property
    def label(self) -> ModelLabel:
        """The digest is of the module's source, since we cannot know what weights it opens."""
        module = inspect.getmodule(self._function)
        source = inspect.getsourcefile(module) if module is not None else None
        package = self._target.partition(".")[0].partition(":")[0]
        return ModelLabel(
            kind=self._target,
            model=self._target,
            sha256=sha256_of(Path(source)) if source else None,
            package=package_version(package),
        )

    def transcribe(self, wav: Path) -> str:
        """Raises HarnessFailure when the function raises or gives something else than text."""
        try:
            heard = self._function(wav)
        except Exception as error:
            raise HarnessFailure(f"{self._target} failed on {wav}: {brief(error)}") from error
        if not isinstance(heard, str):
            raise HarnessFailure(f"{self._target} on {wav}: found {type(heard).__name__}; allowed: str")
        return heard.strip()


def open_recogniser(
    recogniser: str, model: str | None = None, *, beam: int = 5, device: str = "cpu", language: str = "en"
) -> Recogniser:
    """The recogniser a scenario's `wer` block names; raises as `Whisper` and `Plugin` do.

    Parameters:
        recogniser: `whisper` or `module:function`.
        model: for `whisper` a path or name; a plug-in chooses its own.
    """
    if ":" in recogniser:
        return Plugin(recogniser)
    if recogniser != "whisper":
        raise UsageError(f"wer.recogniser: found {recogniser!r}; allowed: whisper, or module:function")
    if not model:
        raise UsageError("wer.model: found none; allowed: the path of a Whisper checkpoint, or a name that is cached")
    return Whisper(model, beam=beam, device=device, language=language)


def find_whisper(model: str) -> Path:
    """The checkpoint that a path or a name of openai-whisper means; raises as `Whisper` does."""
    path = Path(model).expanduser()
    if path.is_file():
        return path
    # The public way to the names is available_models(); their addresses, which carry the digests, have none.
    addresses: dict[str, str] = getattr(_whisper(), "_MODELS", {})
    if model not in addresses:
        raise UsageError(
            f"wer.model: found {model!r}, which is neither a file nor a name of openai-whisper; allowed: the path of a "
            f"checkpoint, or one of {', '.join(addresses)}"
        )
    digest, name = addresses[model].split("/")[-2:]
    cached = _cache_folder() / name
    if not cached.is_file():
        raise UsageError(
            f"wer.model: found {model!r}, but {cached} does not exist and nothing is downloaded; allowed: put the "
            f"file there yourself ({addresses[model]}), or give the path of a checkpoint"
        )
    if (found := sha256_of(cached)) != digest:
        raise UsageError(f"wer.model: found {cached} with sha256 {found}; allowed: {digest}, or the file by its path")
    return cached


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "whisper"


def _whisper() -> Any:
    return load_package("whisper", "recogniser whisper")
