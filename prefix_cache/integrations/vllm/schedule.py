"""From a vLLM SchedulerOutput to what the cache is told of a step."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from prefix_cache.errors import UnalignedMatching
from prefix_cache.step import NewRequest


class NewRequestData(Protocol):
    """A request's first step, as `vllm.v1.core.sched.output` has it; one list of block ids per KV group."""

    req_id: str
    prompt_token_ids: Any
    block_ids: Any
    num_computed_tokens: int


class CachedRequestData(Protocol):
    """The requests of a step that were scheduled before. `new_block_ids` of a resumed one are all its blocks."""

    req_ids: list[str]
    resumed_req_ids: set[str]
    new_block_ids: list[Any]
    num_computed_tokens: list[int]


class SchedulerOutput(Protocol):
    """What this package reads of `vllm.v1.core.sched.output.SchedulerOutput`."""

    scheduled_new_reqs: Any
    scheduled_cached_reqs: Any
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    finished_req_ids: set[str]
    preempted_req_ids: set[str] | None
    kv_cache_block_copies: Any


@dataclass(frozen=True, slots=True)
class Step:
    """The arguments of `PrefixCache.begin_step`."""

    scheduled: Mapping[str, int]
    new: Sequence[NewRequest]
    finished: Collection[str]
    resumed: Collection[str]


def translate(step: SchedulerOutput, owed: Collection[str]) -> Step:
    """What the cache is told before the step's forward.

    A preempted request comes back *resumed*: its blocks are replaced by others, some of which may hold what it, or
    another request, computed before. If somebody is still owed its prompt's rows, it starts anew for the cache, and
    hits; else only its new slots matter.

    Parameters:
        owed: requests whose prompt rows somebody waits for.

    Raises:
        UnalignedMatching: blocks are copied before the forward, which vLLM does for hits of less than whole blocks.
    """
    if step.kv_cache_block_copies:
        raise UnalignedMatching(
            f"the step copies {len(step.kv_cache_block_copies)} KV blocks, whose rows are computed by nobody; "
            "turn sub-block matching off (prefix_match_unit)"
        )
    new = [
        NewRequest(request.req_id, request.num_computed_tokens, request.block_ids[0])
        for request in step.scheduled_new_reqs
    ]
    cached: CachedRequestData = step.scheduled_cached_reqs
    if not cached.resumed_req_ids:
        return Step(step.num_scheduled_tokens, new, step.finished_req_ids, ())
    again = cached.resumed_req_ids & set(owed)
    for request, computed, blocks in zip(cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True):
        if request in again:
            new.append(NewRequest(request, computed, blocks[0]))
    return Step(step.num_scheduled_tokens, new, step.finished_req_ids | again, cached.resumed_req_ids - again)
