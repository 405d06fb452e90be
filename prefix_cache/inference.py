"""torch's inference mode, entered only by whoever is not in it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def inference(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Runs `function` in inference mode. An engine's thread is in it already, and entering it again takes 20 us there
    (after a forward nothing of it is in the core's caches), a tenth of what the cache costs a step.
    """
    entered = torch.inference_mode()(function)

    @wraps(function)
    def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        if torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        return entered(*args, **kwargs)

    return call
