"""Write a golden result of the real `vllm bench serve`, for the tests of `client: vllm-bench`.

    python scripts/make_golden_vllm_bench.py ROW --python PYTHON_WITH_VLLM --url URL --model NAME --tokenizer FOLDER

Runs the row against a server that is already up and keeps the command's file as `tests/golden/vllm_bench/ROW.json`,
as it was written but for the tokenizer's folder, of which only the name is kept. The rows are below;
tests/golden/vllm_bench/README.md says which servers made the committed ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path

from harness.client.vllm_bench import RESULTS_DIR, find_vllm_bench, run_vllm_bench
from harness.scenario import Bench
from harness.workloads import Tokenizer, generate

FOLDER = Path(__file__).parents[1] / "tests" / "golden" / "vllm_bench"

ROWS = {
    row.name: row
    for row in (
        Bench(
            name="chat", dataset="random", shared_prefix=256, random_len=64, range_ratio=0.2, output=8,
            concurrency=4, prompts=16, seed=7,
        ),
        # Some of its prompts do not fit the server, which is to be started with a context of 1024 tokens.
        Bench(
            name="refused", dataset="random", shared_prefix=0, random_len=950, range_ratio=0.2, output=4,
            concurrency=2, prompts=8, seed=8,
        ),
        Bench(
            name="completions", dataset="prefix_repetition", prefix_len=256, suffix_len=32, num_prefixes=2, output=6,
            endpoint="completions", concurrency=4, prompts=8, seed=9, request_rate=20.0, burstiness=1.0,
        ),
        Bench(
            name="speech", dataset="random", modalities=("text", "audio"), shared_prefix=32, random_len=16,
            range_ratio=0.0, output=8, concurrency=2, prompts=4, seed=10,
        ),
    )
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", choices=ROWS)
    for name in ("python", "url", "model", "tokenizer"):
        parser.add_argument(f"--{name}", required=True)
    asked = parser.parse_args()
    bench, tokenizer = ROWS[asked.row], Tokenizer(asked.tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        load = asyncio.run(
            run_vllm_bench(
                find_vllm_bench(asked.python, "external"),
                bench,
                generate(bench, tokenizer),
                base_url=asked.url,
                model=asked.model,
                tokenizer=tokenizer.folder,
                folder=Path(folder),
                timeout_s=120.0,
            )
        )
        if load.failure is not None:
            raise SystemExit(load.failure)
        FOLDER.mkdir(exist_ok=True)
        written = json.loads((Path(folder) / RESULTS_DIR / f"{bench.name}.json").read_text(encoding="utf-8"))
        written["tokenizer_id"] = tokenizer.folder.name
        (FOLDER / f"{bench.name}.json").write_text(json.dumps(written) + "\n", encoding="utf-8")
    print(f"{load.client}: {load.summary.completed} completed, {load.summary.failed} failed")


if __name__ == "__main__":
    main()
