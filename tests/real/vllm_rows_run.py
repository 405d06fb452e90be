"""Run by the Python of the vLLM environment: many requests through one engine in this process, and what came of them.

    python vllm_rows_run.py MODEL RESULT.json

The reference is another implementation of the model: the rows that `transformers` computes for each prompt alone,
without paging, batching, chunks or a cache. Phase `sound` runs the worker as it is, phase `shifted` the same engine
with every step's slots rolled by one: a test that cannot tell the two apart tests nothing.
"""

from __future__ import annotations

import json
import os
import random
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process, where its worker can be asked
    "PREFIX_CACHE_CONSUMER": "vllm_rows_probe:receive",
}

import torch
import vllm_rows_probe as probe
from transformers import AutoModelForCausalLM
from vllm import LLM, SamplingParams

BLOCK = 32
BLOCKS = 330
REQUESTS = 224
CONCURRENCY = 112
CHUNK = 256
FAMILIES = 8
OUTPUT = 48
TOLERANCE = 1e-4  # of rows whose mean square is 1: float32, summed in another order


@dataclass
class Phase:
    """Counters of the engine and the worker over one phase, and how the rows compare with the reference."""

    prompts: int = 0
    delivered: int = 0
    distinct_prompts: int = 0
    hit_prompts: int = 0
    engine_hit_tokens: int = 0
    cache_hit_tokens: int = 0
    restarted_hit_tokens: int = 0
    same_step_hits: int = 0
    max_requests_in_step: int = 0
    chunked_prompts: int = 0
    resumed: int = 0
    preemptions: int = 0
    evictions: int = 0
    wrong_shape: list[str] = field(default_factory=list)
    wrong_hits: int = 0
    wrong_without_hit: int = 0
    max_difference: float = 0.0


def main() -> None:
    model, result = sys.argv[1], Path(sys.argv[2])
    llm = LLM(
        model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=512,
        block_size=BLOCK,
        num_gpu_blocks_override=BLOCKS,
        kv_cache_memory_bytes=64 << 20,
        max_num_seqs=CONCURRENCY,
        max_num_batched_tokens=CHUNK,
        worker_cls="vllm_rows_probe.ProbeWorker",
        disable_log_stats=False,
        kv_cache_metrics=True,
        kv_cache_metrics_sample=1.0,
    )
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).model
    phases = {"sound": phase(llm, reference, seed=2, shift=0), "shifted": phase(llm, reference, seed=1, shift=1)}
    llm.llm_engine.engine_core.shutdown()
    result.write_text(json.dumps({name: asdict(found) for name, found in phases.items()}))


def phase(llm: LLM, reference: torch.nn.Module, seed: int, shift: int) -> Phase:
    worker = probe.ProbeWorker.running
    llm.reset_prefix_cache()
    probe.received.clear()
    worker.begin_phase(shift)
    before, cache_before = engine_counters(llm), worker.cache_stats()
    given = prompts(seed)
    sampling = SamplingParams(max_tokens=OUTPUT, temperature=0.0, ignore_eos=True)
    llm.generate([{"prompt_token_ids": list(prompt)} for prompt in given], sampling, use_tqdm=False)
    probe.wait_for(len(given))
    after, cache_after = engine_counters(llm), worker.cache_stats()
    found = Phase(
        prompts=len(given),
        delivered=len(probe.received),
        distinct_prompts=len({each.token_ids for each in probe.received} & set(given)),
        engine_hit_tokens=after["vllm:prefix_cache_hits"] - before["vllm:prefix_cache_hits"],
        preemptions=after["vllm:num_preemptions"] - before["vllm:num_preemptions"],
        evictions=after["vllm:kv_block_lifetime_seconds"] - before["vllm:kv_block_lifetime_seconds"],
        cache_hit_tokens=cache_after.hit_tokens_total - cache_before.hit_tokens_total,
        restarted_hit_tokens=worker.restarted_hit_tokens,
        same_step_hits=cache_after.same_step_hits_total - cache_before.same_step_hits_total,
        max_requests_in_step=worker.max_requests_in_step,
        chunked_prompts=len(worker.chunked),
        resumed=worker.resumed,
    )
    compare(found, reference)
    return found


def prompts(seed: int) -> list[tuple[int, ...]]:
    """Shuffled requests of a few families; a family shares its first blocks, no two prompts are equal."""
    source = random.Random(seed)
    families = [[source.randrange(300, 4000) for _ in range(BLOCK * (2 + each % 4))] for each in range(FAMILIES)]
    made = [
        (*families[at % FAMILIES], *(source.randrange(300, 4000) for _ in range(source.randrange(8, 90))))
        for at in range(REQUESTS)
    ]
    source.shuffle(made)
    return made


def engine_counters(llm: LLM) -> dict[str, int]:
    """Counters by name, histograms by how often they were observed."""
    return {
        metric.name: int(metric.value if hasattr(metric, "value") else metric.count)
        for metric in llm.get_metrics()
        if hasattr(metric, "value") or hasattr(metric, "count")
    }


@torch.inference_mode()
def compare(found: Phase, reference: torch.nn.Module) -> None:
    for each in probe.received:
        expected = reference(torch.tensor([each.token_ids])).last_hidden_state[0]
        if each.rows.shape != expected.shape:
            found.wrong_shape.append(f"{each.request_id}: {tuple(each.rows.shape)}, not {tuple(expected.shape)}")
            continue
        difference = float((each.rows - expected).abs().max())
        found.max_difference = max(found.max_difference, difference)
        found.hit_prompts += each.hit_tokens > 0
        if difference > TOLERANCE:
            found.wrong_hits += each.hit_tokens > 0
            found.wrong_without_hit += each.hit_tokens == 0


if __name__ == "__main__":
    main()
