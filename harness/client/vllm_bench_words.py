"""The command line of `vllm bench serve` for a bench: what our own client does, said in its words."""

from __future__ import annotations

import json
from pathlib import Path

from harness.client.payload import PATHS
from harness.errors import UsageError
from harness.scenario import Bench

_AROUND_S = 600.0
"""What it may take before and after the load: imports, and prompts of 16,384 tokens on a busy machine."""


def needs_omni(bench: Bench, kind: str) -> bool:
    """Whether a bench takes vLLM-Omni's client: every one on its server, elsewhere those of speech."""
    return kind == "vllm-omni" or "audio" in bench.modalities or bench.dataset == "seed_tts"


def serve_words(
    bench: Bench,
    *,
    omni: bool,
    base_url: str,
    model: str,
    tokenizer: Path,
    result: Path,
    timeout_s: float,
    trust_remote_code: bool = False,
) -> tuple[str, ...]:
    """The arguments of `vllm bench serve` for a bench.

    Greedy decoding and the modalities are stated, which it leaves to the server; nothing is sent ahead of the load.
    Constant gaps of an open loop are an infinite burstiness there. Paths are absolute: it runs in a folder of its own.

    Parameters:
        omni: vLLM-Omni's client, with `--omni`.
        model: the name to send; the one `/v1/models` answers.
        tokenizer: folder of the tokenizer.
        result: the file to write.
        timeout_s: bound on each request, which only vLLM-Omni's client can be given.

    Raises:
        UsageError: a bench that this client cannot run.
    """
    body = dict(bench.extra_body)
    if bench.endpoint == "chat":
        body = {"modalities": list(bench.modalities), **body}
    if not bench.ignore_eos:
        # It sets ignore_eos itself for random prompts; the body is merged last and wins.
        body.setdefault("ignore_eos", False)
    metrics = "ttft,tpot,itl,e2el"
    if "audio" in bench.modalities:
        metrics += ",audio_ttfp,audio_rtf,audio_duration"
    words = [
        *("--backend", _backend(bench, omni), "--endpoint", PATHS[bench.endpoint], "--base-url", base_url),
        *("--model", model, "--tokenizer", str(tokenizer.absolute())),
        *dataset_words(bench),
        *("--num-prompts", str(bench.prompts), "--seed", str(bench.seed)),
    ]
    if bench.request_rate is None:
        words += ["--request-rate", "inf", "--max-concurrency", str(bench.concurrency)]
    else:
        burstiness = "inf" if bench.burstiness is None else repr(bench.burstiness)
        words += ["--request-rate", repr(bench.request_rate), "--burstiness", burstiness]
    if bench.ignore_eos:
        words.append("--ignore-eos")
    words += ["--temperature", "0", "--extra-body", json.dumps(body)]
    words += ["--num-warmups", "0", "--ready-check-timeout-sec", "0"]
    words += ["--percentile-metrics", metrics, "--metric-percentiles", "90,99"]
    words += [
        "--save-result",
        "--save-detailed",
        "--result-dir",
        str(result.parent.absolute()),
        "--result-filename",
        result.name,
    ]
    if omni:
        words += ["--omni-request-timeout-s", repr(timeout_s)]
    if trust_remote_code:
        words.append("--trust-remote-code")
    return tuple(words)


def dataset_words(bench: Bench) -> tuple[str, ...]:
    """The arguments that make the bench's own prompts.

    Raises:
        UsageError: prompts that this client cannot make.
    """
    if bench.dataset == "random":
        return (
            *("--dataset-name", "random", "--random-prefix-len", str(bench.shared_prefix)),
            *("--random-input-len", str(bench.random_len), "--random-output-len", str(bench.output)),
            *("--random-range-ratio", str(bench.range_ratio)),
        )
    if bench.dataset == "prefix_repetition":
        return (
            *("--dataset-name", "prefix_repetition", "--prefix-repetition-prefix-len", str(bench.prefix_len)),
            *("--prefix-repetition-suffix-len", str(bench.suffix_len)),
            *("--prefix-repetition-num-prefixes", str(bench.num_prefixes)),
            *("--prefix-repetition-output-len", str(bench.output)),
        )
    named = {"clone": "seed-tts", "speak": "seed-tts-text"}.get(bench.task or "")
    if named is None or bench.first != 1:
        raise UsageError(
            f"bench {bench.name!r}: client: found vllm-bench with task {bench.task}, first {bench.first}; "
            "allowed: task clone or speak from line 1, or client: bench"
        )
    return (
        *("--dataset-name", named, "--dataset-path", str(bench.path), "--no-oversample", "--disable-shuffle"),
        *("--seed-tts-locale", str(bench.locale), "--output-len", str(bench.output)),
    )


def _backend(bench: Bench, omni: bool) -> str:
    if bench.endpoint == "completions":
        return "openai"
    if bench.endpoint == "speech":
        return "openai-audio-speech"
    return "openai-chat-omni" if omni else "openai-chat"


def time_limit(bench: Bench, timeout_s: float) -> float:
    """Bound on the whole command in seconds: every request as slow as it may be, and the time around them."""
    if bench.request_rate is not None:
        return _AROUND_S + bench.prompts / bench.request_rate + timeout_s
    return _AROUND_S + -(-bench.prompts // bench.concurrency) * timeout_s
