"""When a cell counts, and when two cells may be compared (docs/design.md, section 5).

Pure rules over records. Each returns the reasons against, one sentence each; an empty tuple means valid.
A slowdown is a result, never a reason.
"""

from __future__ import annotations

from collections.abc import Iterable

from harness._scenario_secrets import redacted
from harness.host_cpu import HostCpu
from harness.lag import Lag
from harness.records import BenchSummary, CellRecord, HitRate, RequestRecord
from harness.scenario import Validity

# Hit rates are quotients of token counts: an exact limit must not fall to the last bit of a float.
_ROUNDING = 1e-9

CAVEAT_LAG_MS = 50.0
"""Lag of the client's event loop from which on a reader is told."""
LAG_MS = 250.0
"""Lag of the client's event loop that any bench bears."""
_LONGEST_ERROR = 200
"""Characters of a server's answer that a reason quotes."""
LAG_SHARE = 0.02
"""Share of its duration that a long bench bears."""


def cell_invalid(
    summary: BenchSummary,
    *,
    expects_caching: bool | None,
    hit: HitRate | None,
    validity: Validity,
    client_lag: Lag | None = None,
    allow_failures: int | None = None,
    first_error: str | None = None,
) -> tuple[str, ...]:
    """Why one cell does not count.

    Parameters:
        expects_caching: what the arm claims of stage 0; None where it makes no claim (an external server).
        hit: prefix-cache tokens around the bench; None where the server publishes none.
        validity: the scenario's limits.
        client_lag: worst delay of the client's own event loop; None where it was not measured.
        allow_failures: in place of the scenario's.
        first_error: of the requests that failed, what the first was told.
    """
    reasons: list[str] = []
    failures = validity.allow_failures if allow_failures is None else allow_failures
    allowed_ms = max(LAG_MS, LAG_SHARE * summary.duration * 1000.0)
    if client_lag is not None and client_lag.late_ms > allowed_ms:
        reasons.append(f"the client was starved: its own event loop was {client_lag}; allowed: {allowed_ms:.0f} ms")
    if summary.completed + summary.failed != summary.num_prompts:
        reasons.append(
            f"completed {summary.completed} + failed {summary.failed} is not the {summary.num_prompts} prompts sent"
        )
    if summary.failed > failures:
        told = "" if first_error is None else f"; the first: {_quoted(first_error)}"
        requests = "1 request" if summary.failed == 1 else f"{summary.failed} requests"
        reasons.append(f"{requests} failed; allowed: {failures}{told}")
    if summary.completed == 0:
        reasons.append("no request completed")
    if hit is None:
        if expects_caching is not None:
            reasons.append("the prefix-cache counters are absent from the server's metrics")
    else:
        reasons += _hit_invalid(hit, expects_caching, validity)
    return tuple(reasons)


def cell_caveats(
    requests: Iterable[RequestRecord], client_lag: Lag | None, host_cpu: HostCpu | None = None
) -> tuple[str, ...]:
    """What to know of one cell that counts all the same.

    Parameters:
        requests: all of its bench.
        client_lag: worst delay of the client's own event loop; None where it was not measured.
        host_cpu: who kept the host's cores busy; None where it was not measured.
    """
    caveats = []
    if host_cpu is not None and host_cpu.crowded:
        caveats.append(f"the host was busy with other things: {host_cpu}")
    if client_lag is not None and client_lag.late_ms > CAVEAT_LAG_MS:
        caveats.append(f"the client's own event loop was {client_lag}")
    if any(request.status == "ok" and request.tokens_from == "tokenizer" for request in requests):
        caveats.append("the server reported no usage for some requests: their tokens were counted here")
    return tuple(caveats)


def _quoted(error: str) -> str:
    """A server's words on one line, as code: they are no markup of a report that quotes them."""
    words = "".join(one if one.isprintable() else " " for one in redacted(error)).replace("`", "'")
    return f"`{' '.join(words.split())[:_LONGEST_ERROR]}`"


def _hit_invalid(hit: HitRate, expects_caching: bool | None, validity: Validity) -> list[str]:
    if hit.queries < 0 or hit.hits < 0:
        return [f"a prefix-cache counter went backwards: {hit.queries:g} queries, {hit.hits:g} hits"]
    if hit.hits > hit.queries:
        return [f"more tokens hit than were looked up: {hit.hits:g} of {hit.queries:g}"]
    if expects_caching is False:
        if hit.queries or hit.hits:
            return [
                f"the cache is off, yet {hit.queries:g} tokens were looked up and {hit.hits:g} hit in the prefix cache"
            ]
        return []
    if expects_caching is None:
        return []
    if hit.queries == 0 or hit.rate is None:
        return ["the cache is on, yet no token was looked up in the prefix cache"]
    if hit.ideal is None:
        return []
    if abs(hit.rate - hit.ideal) > validity.hit_rate_band + _ROUNDING:
        return [f"stage-0 hit rate {hit.rate:.1%} is outside the ideal {hit.ideal:.1%} ± {validity.hit_rate_band:.1%}"]
    return []


def pair_invalid(
    base: CellRecord, other: CellRecord, validity: Validity, *, ignore_eos: bool = True
) -> tuple[str, ...]:
    """Why two cells of one round and bench may not be compared: their servers did different work.

    Parameters:
        base: the baseline arm's cell.
        other: the other arm's cell.
        validity: the scenario's limits.
        ignore_eos: whether the bench fixes the number of output tokens. Where it does not, arms may disagree.
    """
    reasons: list[str] = []
    base_arm, other_arm = base.cell.arm, other.cell.arm
    # The prompts are the same, so that a server that counts them otherwise was asked something else. Where requests
    # failed, the sums are of other prompts.
    whole = base.completed == other.completed and not base.failed and not other.failed
    if whole and base.total_input_tokens != other.total_input_tokens:
        reasons.append(
            f"arms disagree on prompt tokens: {base_arm} {base.total_input_tokens}, "
            f"{other_arm} {other.total_input_tokens}"
        )
    if ignore_eos and base.total_output_tokens != other.total_output_tokens:
        reasons.append(
            f"arms disagree on output tokens: {base_arm} {base.total_output_tokens}, "
            f"{other_arm} {other.total_output_tokens}"
        )
    if "audio" in base.cell.modalities or "audio" in other.cell.modalities:
        reasons += _audio_invalid(base, other, validity.audio_tolerance)
    return tuple(reasons)


def _audio_invalid(base: CellRecord, other: CellRecord, tolerance: float) -> list[str]:
    absent = [cell.cell.arm for cell in (base, other) if not cell.total_audio_duration_s]
    if absent:
        return [f"no audio was measured in {' and '.join(absent)}"]
    assert base.total_audio_duration_s is not None
    assert other.total_audio_duration_s is not None
    ratio = other.total_audio_duration_s / base.total_audio_duration_s - 1.0
    if abs(ratio) > tolerance + _ROUNDING:
        return [
            f"arms disagree on audio seconds: {base.cell.arm} {base.total_audio_duration_s:.2f}, "
            f"{other.cell.arm} {other.total_audio_duration_s:.2f} ({ratio:+.1%}; allowed: ±{tolerance:.1%})"
        ]
    return []
