import pytest
from cell_factory import make_cell, make_hit

from harness.lag import Lag
from harness.records import RequestRecord
from harness.scenario import Validity
from harness.validity import cell_caveats, cell_invalid, pair_invalid

OFF = make_hit(0, 0, 0.0)
ON = make_hit(1000, 926, 0.9375)


def reasons(cell, expects_caching=True, hit=ON, **limits):
    return cell_invalid(cell, expects_caching=expects_caching, hit=hit, validity=Validity(**limits))


def test_a_good_cell_has_no_reason_against_it():
    """All prompts answered and a hit rate near the ideal: valid with the cache on; no look-up: valid with it off."""
    assert reasons(make_cell()) == ()
    assert reasons(make_cell(), expects_caching=False, hit=OFF) == ()


def test_prompts_that_vanish_are_a_reason():
    """completed + failed must be the number of prompts."""
    assert reasons(make_cell(completed=15)) == ("completed 15 + failed 0 is not the 16 prompts sent",)


def test_failures_are_a_reason_unless_allowed():
    """One failed request too many makes the cell invalid."""
    cell = make_cell(completed=14, failed=2)
    assert reasons(cell, allow_failures=1) == ("2 requests failed; allowed: 1",)
    assert reasons(cell, allow_failures=2) == ()


def test_nothing_completed_is_a_reason_even_where_failures_are_allowed():
    """A cell without one completed request has nothing to say."""
    assert reasons(make_cell(completed=0, failed=16), allow_failures=16) == ("no request completed",)


@pytest.mark.parametrize("hit", [make_hit(64, 0, 0.0), make_hit(64, 64, 0.0)])
def test_off_arm_with_a_query_is_not_off(hit):
    """Any look-up with the cache off shows that it was on."""
    (reason,) = reasons(make_cell(), expects_caching=False, hit=hit)
    assert reason.startswith("the cache is off, yet 64 tokens were looked up")


def test_on_arm_without_a_query_is_not_on():
    """With the cache on, no look-up shows that it was off."""
    (reason,) = reasons(make_cell(), hit=OFF)
    assert reason == "the cache is on, yet no token was looked up in the prefix cache"


@pytest.mark.parametrize(("hits", "valid"), [(918, True), (917, False), (958, False), (957, True), (917.5, True)])
def test_hit_rate_must_be_near_the_ideal(hits, valid):
    """The band is absolute and includes its edges: 93.75% give or take two points."""
    assert (reasons(make_cell(), hit=make_hit(1000, hits, 0.9375)) == ()) is valid


def test_an_unknown_ideal_claims_no_band_but_still_that_the_cache_is_on():
    """Where only the server knows the prompts, any rate will do; none looked up, or more hit than that, will not."""
    for hits in (0, 500, 1000):
        assert reasons(make_cell(), hit=make_hit(1000, hits, None)) == ()
    assert reasons(make_cell(), hit=make_hit(0, 0, None)) != ()
    assert reasons(make_cell(), hit=make_hit(1000, 1001, None)) != ()
    assert reasons(make_cell(), expects_caching=False, hit=make_hit(1, 0, None)) != ()


def test_absent_counters_are_a_reason_where_the_arm_makes_a_claim():
    """Absent is an error, never 0; only an arm without a claim may lack the counters."""
    assert reasons(make_cell(), expects_caching=False, hit=None) == (
        "the prefix-cache counters are absent from the server's metrics",
    )
    assert reasons(make_cell(), expects_caching=None, hit=None) == ()
    assert reasons(make_cell(), expects_caching=None, hit=make_hit(10, 3, 0.9)) == ()


@pytest.mark.parametrize("expects_caching", [True, False, None])
def test_counters_that_make_no_sense_are_a_reason(expects_caching):
    """A counter that went backwards, and more hits than queries, are errors whatever the arm claims."""
    (backwards,) = reasons(make_cell(), expects_caching, make_hit(-10, 0, 0.0))
    assert "went backwards" in backwards
    (more,) = reasons(make_cell(), expects_caching, make_hit(10, 11, 0.0))
    assert more == "more tokens hit than were looked up: 11 of 10"


def test_arms_must_read_equally_many_tokens():
    """The prompts are the same: a server that counts them otherwise was asked something else. Where fewer requests
    were answered, fewer prompts are counted."""
    base, other = make_cell("cache_off"), make_cell("cache_on", total_input_tokens=7)
    reason = f"arms disagree on prompt tokens: cache_off {base.total_input_tokens}, cache_on 7"
    assert pair_invalid(base, other, Validity()) == (reason,)
    fewer = make_cell("cache_on", total_input_tokens=7, completed=base.completed - 1)
    assert pair_invalid(base, fewer, Validity()) == ()
    one_each = [make_cell(arm, failed=1, total_input_tokens=size) for arm, size in (("cache_off", 9), ("cache_on", 7))]
    assert pair_invalid(*one_each, Validity()) == (), "each may have failed on another prompt"


def test_arms_must_write_equally_many_tokens():
    """With ignore_eos the arms' output tokens agree exactly; without it they may differ."""
    base, other = make_cell("cache_off"), make_cell("cache_on", total_output_tokens=127)
    assert pair_invalid(base, other, Validity()) == ("arms disagree on output tokens: cache_off 128, cache_on 127",)
    assert pair_invalid(base, other, Validity(), ignore_eos=False) == ()


@pytest.mark.parametrize(("seconds", "valid"), [(95.0, True), (105.0, True), (94.9, False), (105.1, False)])
def test_arms_must_speak_equally_long(seconds, valid):
    """Audio seconds agree within the tolerance, edges included."""
    spoken = {"modalities": ("text", "audio")}
    base = make_cell("cache_off", total_audio_duration_s=100.0, **spoken)
    other = make_cell("cache_on", total_audio_duration_s=seconds, **spoken)
    found = pair_invalid(base, other, Validity(audio_tolerance=0.05))
    assert (found == ()) is valid
    assert all("audio seconds" in reason for reason in found)


@pytest.mark.parametrize("absent", [None, 0.0])
def test_silence_where_audio_was_asked_for_is_a_reason(absent):
    """A bench that asks for audio and measures none in one arm cannot be compared."""
    spoken = {"modalities": ("text", "audio")}
    base = make_cell("cache_off", total_audio_duration_s=100.0, **spoken)
    other = make_cell("cache_on", total_audio_duration_s=absent, **spoken)
    assert pair_invalid(base, other, Validity()) == ("no audio was measured in cache_on",)


@pytest.mark.parametrize(
    ("duration", "lag", "valid"),
    [(2.0, 250.0, True), (2.0, 251.0, False), (100.0, 2000.0, True), (100.0, 2001.0, False)],
)
def test_a_starved_client_measures_itself(duration, lag, valid):
    """A lag of the client's loop over 250 ms and over 2% of the bench makes the cell invalid, and says so."""
    cell = make_cell(duration=duration)
    found = cell_invalid(cell, expects_caching=True, hit=ON, validity=Validity(), client_lag=Lag(lag))
    assert (found == ()) is valid
    assert all("the client was starved" in reason and f"{lag:.0f} ms" in reason for reason in found)


def test_a_server_s_words_are_quoted_as_code_without_secrets():
    """What a server says of a failed request is no markup, no line and no password of the report."""
    error = "500 <img src=x>\n## Verdict: `PASS`\x1b[2J Authorization: Bearer sk-hush" + "x" * 500
    cell = make_cell(completed=0, failed=1, num_prompts=1)
    told = " ".join(cell_invalid(cell, expects_caching=True, hit=ON, validity=Validity(), first_error=error))
    quoted = told.split("`")
    assert len(quoted) == 3, "one code span"
    assert quoted[1].startswith("500 <img src=x> ## Verdict: 'PASS' [2J Authorization: Bearer ")
    assert "hush" not in told
    assert len(quoted[1]) <= 200


@pytest.mark.parametrize(
    ("status", "tokens_from", "told"),
    [("ok", "tokenizer", True), ("ok", "usage", False), ("failed", "tokenizer", False)],
)
def test_usage_is_missed_only_where_a_request_succeeded(status, tokens_from, told):
    """A request that broke off cannot report usage: that says nothing of the server."""
    requests = [RequestRecord(index=0, status=status, tokens_from=tokens_from, sent=0.0, queued=0.0)]
    assert any("no usage" in text for text in cell_caveats(requests, None)) is told


@pytest.mark.parametrize(("lag", "told"), [(None, False), (50.0, False), (51.0, True)])
def test_a_late_client_is_told(lag, told):
    """From 50 ms on the reader is told, long before the cell stops counting."""
    assert (
        cell_caveats([], None if lag is None else Lag(lag)) == ("the client's own event loop was late by up to 51 ms",)
    ) is told
