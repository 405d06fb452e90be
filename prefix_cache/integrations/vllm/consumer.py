"""Who receives a prompt's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Protocol, cast

from torch import Tensor

from prefix_cache.errors import ConfigError

VARIABLE = "PREFIX_CACHE_CONSUMER"


class Consumer(Protocol):
    """Called once for each prompt whose every row has been computed or hit, in the order in which they complete.

    It runs on a thread of its own beside the engine. An exception of it is final: the next step raises it, as the
    cause of a CacheFailed.
    """

    def __call__(self, request_id: str, prompt_token_ids: Sequence[int], hit_tokens: int, rows: Tensor, /) -> None:
        """
        Parameters:
            request_id: vLLM's internal id, which begins with the one of the client.
            prompt_token_ids: [P].
            hit_tokens: how many of the first rows come from the cache; the others this request computed.
            rows: [P, hidden_size], in host memory and the model's dtype: the last layer's normalised hidden states,
                from which vLLM computes logits. They stay valid as long as they are held; they must not be written to.
        """


def load_consumer(environ: Mapping[str, str]) -> Consumer | None:
    """The consumer that `PREFIX_CACHE_CONSUMER=module:function` names; None where it is not set or empty.

    Raises:
        ConfigError: it names nothing that can be called.
    """
    found = environ.get(VARIABLE, "")
    if not found:
        return None
    module, _, name = found.partition(":")
    if not (module and name):
        raise ConfigError(f"{VARIABLE}: found {found!r}; allowed: module:function")
    try:
        consumer = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{VARIABLE}: found {found!r}, which cannot be imported: {error}") from error
    if not callable(consumer):
        raise ConfigError(f"{VARIABLE}: found {found!r}, a {type(consumer).__name__}; allowed: a function")
    return cast("Consumer", consumer)
