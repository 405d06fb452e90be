"""A model's tokenizer, read from a folder: text to ids and back, and a chat to the ids the server sees.

It agrees with what transformers loads from the same folder as long as that uses `tokenizer.json` as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

import harness
from harness.errors import UsageError
from harness.scenario import Scenario

Message = Mapping[str, Any]
"""One message of a chat: `role` and `content`."""


class Tokenizer:
    """Text and token ids of one model.

    Parameters:
        path: a folder that holds `tokenizer.json`, `tokenizer_config.json` and perhaps `chat_template.jinja`, or that
            `tokenizer.json` itself.

    Raises:
        UsageError: a file is missing or cannot be read.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.folder = self.path.parent if self.path.is_file() else self.path
        self._file = self.path if self.path.is_file() else self.folder / "tokenizer.json"
        if not self._file.is_file():
            raise UsageError(f"tokenizer: found no {self._file}; allowed: a folder that holds a tokenizer.json")
        try:
            self._core = tokenizers.Tokenizer.from_file(str(self._file))
        except Exception as error:  # the library raises nothing narrower
            raise UsageError(f"tokenizer: found {self._file}, which cannot be read: {error}") from error
        # A file may ask for truncation or padding; a prompt's ids are all of its ids.
        self._core.no_truncation()
        self._core.no_padding()
        self._config = _read_json(self.folder / "tokenizer_config.json")

    @property
    def vocab_size(self) -> int:
        """Size of the model's vocabulary, without tokens added beside it (as transformers counts it)."""
        return int(self._core.get_vocab_size(with_added_tokens=False))

    @cached_property
    def special_tokens(self) -> Mapping[str, str]:
        """The named special tokens by name: `eos_token`, ..."""
        named = {name: _content(value) for name, value in self._named() if name.endswith("_token")}
        return {name: token for name, token in named.items() if token is not None}

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of the named and extra special tokens."""
        extra: list[Any] = []
        for name, value in self._named():
            if name in ("additional_special_tokens", "extra_special_tokens") and value:
                extra.extend(value.values() if isinstance(value, Mapping) else value)
        tokens = [*self.special_tokens.values(), *(_content(value) for value in extra)]
        ids = (self._core.token_to_id(token) for token in tokens if token is not None)
        return frozenset(found for found in ids if found is not None)

    @property
    def num_special_tokens_to_add(self) -> int:
        """How many tokens `encode(..., specials=True)` puts around a text."""
        return int(self._core.num_special_tokens_to_add(False))

    @cached_property
    def sha256(self) -> str:
        """Hex digest of `tokenizer.json`."""
        return hashlib.sha256(self._file.read_bytes()).hexdigest()

    def encode(self, text: str, *, specials: bool = False) -> list[int]:
        """Ids of a text; `specials` adds what the tokenizer puts around it (a beginning-of-text token, ...)."""
        return list(self._core.encode(text, add_special_tokens=specials).ids)

    def encode_all(self, texts: Sequence[str], *, specials: bool = False) -> list[list[int]]:
        """`encode` of each text, on all cores."""
        return [list(found.ids) for found in self._core.encode_batch(list(texts), add_special_tokens=specials)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included."""
        return str(self._core.decode(list(ids), skip_special_tokens=False))

    @property
    def has_chat_template(self) -> bool:
        return self._template_text is not None

    def render_chat(self, messages: Sequence[Message], /, **variables: Any) -> str:
        """A chat as the one text the model reads, ready for the assistant's turn.

        Parameters:
            variables: further variables of the template (`chat_template_kwargs` of a request).

        Raises:
            UsageError: there is no template, or it refuses these messages.
        """
        fixed = {"tools": None, "documents": None, "add_generation_prompt": True}
        try:
            return self._template.render(
                {**self.special_tokens, **fixed, **variables, "messages": [dict(message) for message in messages]}
            )
        except UsageError:
            raise
        except Exception as error:  # a template is a program of its own, and may trip over any variable
            raise UsageError(f"tokenizer: the chat template of {self.folder} refuses: {error}") from error

    def chat_ids(self, messages: Sequence[Message], /, **variables: Any) -> list[int]:
        """Ids of a rendered chat; the template already holds every special token."""
        return self.encode(self.render_chat(messages, **variables))

    def _named(self) -> Iterator[tuple[str, Any]]:
        """Entries of the configuration, and of the older map beside it where the configuration lists no tokens."""
        if "added_tokens_decoder" not in self._config:
            older = _read_json(self.folder / "special_tokens_map.json")
            yield from ((name, value) for name, value in older.items() if name not in self._config)
        yield from self._config.items()

    @cached_property
    def _template(self) -> Template:
        if self._template_text is None:
            raise UsageError(f"tokenizer: found no chat template in {self.folder}; allowed: endpoint completions")
        return _chat_environment().from_string(self._template_text)

    @cached_property
    def _template_text(self) -> str | None:
        file = self.folder / "chat_template.jinja"
        if file.is_file():
            return file.read_text(encoding="utf-8")
        template = self._config.get("chat_template")
        if isinstance(template, list):
            template = next((entry["template"] for entry in template if entry.get("name") == "default"), None)
        return template if isinstance(template, str) else None


def find_tokenizer(scenario: Scenario, base: Path) -> Path | None:
    """Where the scenario's tokenizer lies on this machine: its own key, else the server kind's, else the model folder.

    Of a model named as on the Hugging Face hub that is its folder in the hub's cache, where a server put it.

    Parameters:
        base: folder of the scenario file; relative paths start there.

    Returns:
        A path to open with `Tokenizer`, or None where the tokenizer is not on this machine.

    Raises:
        UsageError: the scenario names a tokenizer that is not there.
    """
    try:
        return _find(scenario, base)
    except (OSError, RuntimeError) as error:  # a name too long for a path, a home of nobody
        named = scenario.tokenizer or scenario.model
        raise UsageError(f"tokenizer: found {named[:100]!r} ({error}); allowed: a folder on this machine") from None


def _find(scenario: Scenario, base: Path) -> Path | None:
    if scenario.tokenizer is not None:
        named = base / Path(scenario.tokenizer).expanduser()
        if not (named.is_file() or (named / "tokenizer.json").is_file()):
            raise UsageError(
                f"tokenizer: found {scenario.tokenizer!r}, which is not at {named}; "
                "allowed: a tokenizer.json or a folder that holds one"
            )
        return named
    if scenario.server.kind == "tiny-omni":
        return Path(harness.__file__).parent / "tiny_omni" / "assets"
    named = Path(scenario.server.model_path or scenario.model).expanduser()
    for folder in (base / named, named):
        if (folder / "tokenizer.json").is_file():
            return folder
    return None if scenario.server.model_path else _cached(scenario.model)


def _cached(model: str) -> Path | None:
    """The hub cache's newest copy of a model's main branch, where it holds a tokenizer.json."""
    home = os.environ.get("HF_HOME") or Path("~/.cache/huggingface").expanduser()
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub") / f"models--{model.replace('/', '--')}"
    try:
        folder = cache / "snapshots" / (cache / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return folder if (folder / "tokenizer.json").is_file() else None


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words in some templates; the text itself is unchanged."""

    tags = {"generation"}  # noqa: RUF012  jinja2 declares the attribute as an instance's own

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _chat_environment() -> ImmutableSandboxedEnvironment:
    """Jinja2 as transformers sets it up for chat templates, which are written for it."""

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, **options: Any) -> str:
        return json.dumps(value, **{"ensure_ascii": False, **options})

    def strftime_now(form: str) -> str:
        return datetime.now().strftime(form)  # noqa: DTZ005  the server's template uses its local time too

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"tokenizer: found {path}, which cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise UsageError(f"tokenizer: found {path}, which is not a JSON object")
    return data


def _content(token: Any) -> str | None:
    """Text of a token entry, which is a string or an object with `content`."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None
