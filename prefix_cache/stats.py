"""What the cache has done and holds: counters, timers and gauges."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Monotone totals. Each field has one writing thread, or is written under the cache's lock."""

    steps_total: int = 0
    buffered_steps_total: int = 0
    flushes_total: int = 0
    writes_total: int = 0
    rows_written_total: int = 0
    reads_total: int = 0
    hits_total: int = 0
    hit_tokens_total: int = 0
    same_step_hits_total: int = 0
    continuations_total: int = 0
    optional_rows_zeroed_total: int = 0
    materialized_total: int = 0
    discarded_total: int = 0
    copied_out_bytes_total: int = 0
    written_bytes_total: int = 0
    gathered_bytes_total: int = 0
    merged_bytes_total: int = 0
    copy_out_seconds_total: float = 0.0
    write_seconds_total: float = 0.0
    gather_seconds_total: float = 0.0
    merge_seconds_total: float = 0.0


@dataclass(slots=True)
class CacheStats(Counters):
    """A snapshot: the counters, and what is true now. Names are those of the `prefix_cache:*` series."""

    waits_total: int = 0
    wait_seconds_total: float = 0.0
    log_depth: int = 0
    log_age_seconds: float = 0.0
    open_handles: int = 0
    staged_bytes: int = 0
    idle_bytes: int = 0
    resident_bytes: dict[str, int] = field(default_factory=dict)
