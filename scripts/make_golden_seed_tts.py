"""Write tests/golden/seed_tts.json: the bodies that vLLM-Omni's own bench sends for a small Seed-TTS set.

Run with the interpreter of an environment that has vLLM-Omni 0.30, from the root of the repository:

    /path/to/vllm-omni/bin/python scripts/make_golden_seed_tts.py

The set is tests/golden/seed_tts, in the layout of seed-tts-eval, with tones for recordings. Each request goes through
that project's data set and client to a stand-in server, which keeps what arrives. Run it again when the committed
tokenizer, the set or the pinned vLLM-Omni changes.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from vllm.benchmarks.lib.endpoint_request_func import RequestFuncInput
from vllm.tokenizers import get_tokenizer
from vllm_omni.benchmarks.data_modules.seed_tts_dataset import SeedTTSDataset, SeedTTSTextDataset
from vllm_omni.benchmarks.patch import patch

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "harness" / "tiny_omni" / "assets"
GOLDEN = ROOT / "tests" / "golden" / "seed_tts.json"
SET = ROOT / "tests" / "golden" / "seed_tts"

OUTPUT = 2048
EXTRA = {"modalities": ["text", "audio"], "chat_template_kwargs": {"enable_thinking": False, "use_tts_template": True}}
CONFIGURATIONS = {
    "clone_chat_en": (SeedTTSDataset, "en", "/v1/chat/completions"),
    "clone_chat_zh": (SeedTTSDataset, "zh", "/v1/chat/completions"),
    "speak_chat_en": (SeedTTSTextDataset, "en", "/v1/chat/completions"),
    "clone_speech_en": (SeedTTSDataset, "en", "/v1/audio/speech"),
    "speak_speech_en": (SeedTTSTextDataset, "en", "/v1/audio/speech"),
}
CLIENTS = {
    "/v1/chat/completions": patch.async_request_openai_chat_omni_completions,
    "/v1/audio/speech": patch.async_request_openai_audio_speech,
}


async def main() -> None:
    tokenizer = get_tokenizer(str(ASSETS))
    bodies: list[dict[str, Any]] = []

    async def keep(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return web.Response(text="data: [DONE]\n\n", content_type="text/event-stream")

    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/{path:.*}", keep)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    found: dict[str, Any] = {}
    async with aiohttp.ClientSession() as session:
        for name, (kind, locale, path) in CONFIGURATIONS.items():
            samples = kind(dataset_path=str(SET), locale=locale, disable_shuffle=True).sample(
                tokenizer, 100, output_len=OUTPUT, no_oversample=True
            )
            bodies.clear()
            for sample in samples:
                request = RequestFuncInput(
                    prompt=sample.prompt,
                    api_url=url + path,
                    prompt_len=sample.prompt_len,
                    output_len=sample.expected_output_len,
                    model="m",
                    extra_body=dict(EXTRA) if path.endswith("completions") else {},
                )
                patch._attach_seed_tts_to_request_func_input(sample, request)
                await CLIENTS[path](request, session)
            found[name] = {
                "kind": kind.__name__,
                "locale": locale,
                "path": path,
                "prompt_len": [sample.prompt_len for sample in samples],
                "bodies": list(bodies),
            }
    await runner.cleanup()
    golden = {"vllm_omni": importlib.metadata.version("vllm-omni"), "output": OUTPUT, "extra_body": EXTRA}
    golden["configurations"] = found
    GOLDEN.write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{GOLDEN}: {sum(len(one['bodies']) for one in found.values())} bodies")


if __name__ == "__main__":
    asyncio.run(main())
