"""vLLM-Omni's manager, or the bundled one, with a stopwatch on each of its calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefix_cache.integrations.timing import Recorder, Shape
from prefix_cache.integrations.vllm_omni.engine import the_runner


def timed(manager: type[Any], folder: Path) -> type[Any]:
    """A subclass of `manager` that records every call in `folder`: the same instrument for every cache.

    What `materialize` hands out is read to its end inside the measurement, all keys of all requests, so that a cache
    that merges when it is read pays for it there.
    """

    class Timed(manager):  # type: ignore[misc]  # the base is a parameter
        def __init__(self, config: Any, view: Any, **others: Any) -> None:
            super().__init__(config, view, **others)
            self.__calls = Recorder(folder, the_runner().vllm_config.model_config.stage_id)

        def new_step_starts(self, scheduler_output: Any) -> None:
            scheduled, new = scheduler_output.num_scheduled_tokens, scheduler_output.scheduled_new_reqs
            shape = Shape(
                sum(scheduled.values()), len(scheduled), len(new), sum(bool(each.num_computed_tokens) for each in new)
            )
            with self.__calls.begin(shape):
                super().new_step_starts(scheduler_output)

        def save_outputs(self, *args: Any, **kwargs: Any) -> int:
            with self.__calls.save() as call:
                step: int = super().save_outputs(*args, **kwargs)
                call.step = step
            return step

        def materialize(self, step_id: int, req_ids: list[str]) -> Any:
            with self.__calls.consume("materialize", step_id):
                outputs = super().materialize(step_id, req_ids)
                for by_request in (outputs.hidden_states or {}, *outputs.mm_outputs.values()):
                    for request in req_ids:
                        by_request.get(request)
            return outputs

        def discard_step(self, step_id: int) -> None:
            with self.__calls.consume("discard", step_id):
                super().discard_step(step_id)

        def shutdown(self) -> None:
            super().shutdown()
            self.__calls.close()

    return Timed
