"""Makes a small Qwen3 with random weights, to run the real vLLM without a model hub and without a GPU.

    python scripts/make_tiny_qwen3.py models/tiny-qwen3

A byte-level BPE tokenizer with a chat template, learned from the sources of Python's standard library, which are on
every machine; weights drawn with a fixed seed, scaled so that attention looks at the whole prompt and the next token
depends on it. The same Python makes the same files, byte for byte. Needs torch, safetensors and tokenizers: run it
with the Python of the environment that `scripts/setup_vllm_cpu.sh` makes (which does so by itself).
"""

from __future__ import annotations

import argparse
import json
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SOURCES = 160
"""Files of the standard library, in alphabetical order, that the merges are learned from."""
MODEL_MAX_LENGTH = 8192
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model, in Qwen3's words."""

    vocab: int = 4096
    hidden: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    intermediate: int = 768


def train_tokenizer(vocab: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    found = tokenizer.get_vocab_size()
    if found != vocab:
        raise SystemExit(f"the tokenizer: found {found} tokens in the standard library's sources; allowed: {vocab}")
    return tokenizer


def corpus() -> Iterator[str]:
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(folder.glob("*.py"))[:SOURCES]
    if not files:
        raise SystemExit(f"the standard library: found no sources in {folder}")
    for file in files:
        yield file.read_text(encoding="utf-8", errors="ignore")


def weights(shape: Shape, seed: int) -> dict[str, torch.Tensor]:
    """The state dict, float32. Projections are scaled to keep variances, norms are ones."""
    source = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=source) / columns**0.5

    hidden, queries, keys = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    state = {
        "model.embed_tokens.weight": torch.randn(shape.vocab, hidden, generator=source),
        "model.norm.weight": torch.ones(hidden),
        # Rows as long as the logits' spread asks for: near-ties of two tokens are rare at any batch size.
        "lm_head.weight": torch.randn(shape.vocab, hidden, generator=source),
    }
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        state |= {
            f"{prefix}self_attn.q_proj.weight": matrix(queries, hidden),
            f"{prefix}self_attn.k_proj.weight": matrix(keys, hidden),
            f"{prefix}self_attn.v_proj.weight": matrix(keys, hidden),
            f"{prefix}self_attn.o_proj.weight": matrix(hidden, queries),
            f"{prefix}self_attn.q_norm.weight": torch.ones(shape.head_dim),
            f"{prefix}self_attn.k_norm.weight": torch.ones(shape.head_dim),
            f"{prefix}mlp.gate_proj.weight": matrix(shape.intermediate, hidden),
            f"{prefix}mlp.up_proj.weight": matrix(shape.intermediate, hidden),
            f"{prefix}mlp.down_proj.weight": matrix(hidden, shape.intermediate),
            f"{prefix}input_layernorm.weight": torch.ones(hidden),
            f"{prefix}post_attention_layernorm.weight": torch.ones(hidden),
        }
    return state


def model_config(shape: Shape, end: int) -> dict[str, object]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dtype": "float32",
        "eos_token_id": end,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": MODEL_MAX_LENGTH,
        "max_window_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": shape.vocab,
    }


def tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "add_bos_token": False,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": MODEL_MAX_LENGTH,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def make(folder: Path, shape: Shape, seed: int) -> None:
    """Writes the model; `config.json` comes last, so that a folder that has it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(shape.vocab)
    end = tokenizer.token_to_id("<|im_end|>")
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file(weights(shape, seed), folder / "model.safetensors", metadata={"format": "pt"})
    write(folder / "tokenizer_config.json", tokenizer_config())
    write(folder / "generation_config.json", {"eos_token_id": end, "do_sample": False})
    write(folder / "config.json", model_config(shape, end))


def write(file: Path, content: dict[str, object]) -> None:
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    make(options.folder, Shape(), options.seed)


if __name__ == "__main__":
    main()
