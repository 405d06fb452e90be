"""Make a tiny Qwen3-Omni: `python scripts/make_tiny_qwen3_omni.py FOLDER [--seed N]`.

The real architecture (Thinker, Talker with its code predictor, Code2Wav) at a few dozen million parameters of random
weights, with tokenizer, processor and configuration, so that vLLM-Omni serves it like the released model. It says
nothing sensible and says it the same way every time, which is what a comparison of caches needs.

Needs torch, transformers >= 5.13 and safetensors: run it with the Python that scripts/setup_vllm_omni_cpu.sh makes.
The folder appears complete or not at all.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import string
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TEXT_IDS = 151_643
"""Ids below the special ones, as in the released tokenizer: code in vllm-omni compares with the ids below by number."""

# These open a turn of the chat template, directly after <|im_start|>; their ids stand in the configuration.
ROLES = {"user": 872, "system": 8948, "assistant": 77_091}

# In the released tokenizer's order, ids from TEXT_IDS on.
SPECIAL_TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
    *("<tool_call>", "</tool_call>"),
    *("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
    *("<tool_response>", "</tool_response>", "<think>", "</think>"),
    *("<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>"),
    "<|audio_pad|>",
)
IDS = {token: TEXT_IDS + index for index, token in enumerate(SPECIAL_TOKENS)}

# Attributes that the processor reads off its tokenizer.
NAMED_TOKENS = {
    "image_token": "<|image_pad|>",
    "audio_token": "<|audio_pad|>",
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
}

CHAT_TEMPLATE = """\
{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}
{%- else %}{% for part in message.content %}
{%- if part.type == 'text' %}{{ part.text }}
{%- elif 'audio' in part.type %}<|audio_start|><|audio_pad|><|audio_end|>
{%- elif 'image' in part.type %}<|vision_start|><|image_pad|><|vision_end|>
{%- elif 'video' in part.type %}<|vision_start|><|video_pad|><|vision_end|>
{%- endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def make(folder: Path, seed: int) -> None:
    """Writes the model to `folder`, whole or not at all."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write_tokenizer(partial)
    write_json(partial / "preprocessor_config.json", processor_config())
    write_json(partial / "config.json", model_config())
    write_json(
        partial / "generation_config.json",
        {
            "bos_token_id": IDS["<|endoftext|>"],
            "eos_token_id": [IDS["<|im_end|>"], IDS["<|endoftext|>"]],
            "pad_token_id": IDS["<|endoftext|>"],
            "do_sample": False,
        },
    )
    write_weights(partial, seed)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")


def byte_symbols() -> list[str]:
    """The printable character that byte-level BPE writes for each byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = itertools.count(0x100)
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def words() -> Iterator[str]:
    """Three- and four-letter words: runs of letters, which the pre-tokenizer keeps whole."""
    for length in (3, 4):
        for letters in itertools.product(string.ascii_lowercase, repeat=length):
            yield "".join(letters)


def vocabulary() -> dict[str, int]:
    """Every byte, the roles, and a word with its leading space for every other id: each id decodes to text that encodes
    to that id again."""
    vocab = {symbol: byte for byte, symbol in enumerate(sorted(byte_symbols()))}
    vocab |= ROLES
    taken = set(vocab.values())
    free = (index for index in range(TEXT_IDS) if index not in taken)
    vocab |= {f"\u0120{word}": index for index, word in zip(free, words(), strict=False)}
    assert sorted(vocab.values()) == list(range(TEXT_IDS))
    return vocab


def write_tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    # Whole words are looked up before merges are tried, so no merges are needed.
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary(), merges=[], fuse_unk=False, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    found = {token: tokenizer.token_to_id(token) for token in SPECIAL_TOKENS}
    if found != IDS:
        raise SystemExit(f"make_tiny_qwen3_omni: the tokenizer gave special tokens other ids: {found}")
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": 131_072,
            "pad_token": "<|endoftext|>",
            "eos_token": "<|im_end|>",
            "bos_token": None,
            "unk_token": None,
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "extra_special_tokens": NAMED_TOKENS,
            "chat_template": CHAT_TEMPLATE,
            **NAMED_TOKENS,
        },
    )
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def processor_config() -> dict[str, Any]:
    return {
        "processor_class": "Qwen3OmniMoeProcessor",
        "feature_extractor_type": "WhisperFeatureExtractor",
        "image_processor_type": "Qwen2VLImageProcessor",
        "video_processor_type": "Qwen2VLVideoProcessor",
        # Sound: the released model's numbers.
        "feature_size": 128,
        "sampling_rate": 16_000,
        "hop_length": 160,
        "chunk_length": 300,
        "n_fft": 400,
        "n_samples": 4_800_000,
        "nb_max_frames": 30_000,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": True,
        "dither": 0.0,
        # Pictures.
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "min_pixels": 3136,
        "max_pixels": 12_845_056,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }


def language_config(*, vocab_size: int, layers: int, **others: Any) -> dict[str, Any]:
    """A small mixture-of-experts language model, as both the Thinker and the Talker have one."""
    theta = 1_000_000.0
    return {
        "vocab_size": vocab_size,
        "hidden_size": 128,
        "intermediate_size": 128,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "moe_intermediate_size": 64,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 32_768,
        "rope_scaling": {
            "rope_type": "default",
            "rope_theta": theta,
            "mrope_section": [6, 5, 5],
            "interleaved": True,
            "mrope_interleaved": True,
        },
        "rope_theta": theta,
        "rms_norm_eps": 1e-6,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "tie_word_embeddings": False,
        **others,
    }


def thinker_config() -> dict[str, Any]:
    text = language_config(vocab_size=152_064, layers=3, torch_dtype="bfloat16", initializer_range=0.5)
    return {
        "model_type": "qwen3_omni_moe_thinker",
        "dtype": "bfloat16",
        "audio_token_id": IDS["<|audio_pad|>"],
        "image_token_id": IDS["<|image_pad|>"],
        "video_token_id": IDS["<|video_pad|>"],
        "audio_start_token_id": IDS["<|audio_start|>"],
        "audio_end_token_id": IDS["<|audio_end|>"],
        "vision_start_token_id": IDS["<|vision_start|>"],
        "vision_end_token_id": IDS["<|vision_end|>"],
        "user_token_id": ROLES["user"],
        "position_id_per_seconds": 13,
        "seconds_per_chunk": 2,
        "text_config": text,
        "audio_config": {
            "model_type": "qwen3_omni_moe_audio_encoder",
            "num_mel_bins": 128,
            "encoder_layers": 1,
            "num_hidden_layers": 1,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 128,
            "d_model": 64,
            "output_dim": text["hidden_size"],
            "downsample_hidden_size": 32,
            "n_window": 50,
            "n_window_infer": 800,
            "conv_chunksize": 500,
            "max_source_positions": 1500,
        },
        "vision_config": {
            "model_type": "qwen3_omni_moe_vision_encoder",
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 2,
            "patch_size": 16,
            "spatial_patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": text["hidden_size"],
            "num_position_embeddings": 2304,
            "deepstack_visual_indexes": [0],
            "fullatt_block_indexes": [0],
            "in_channels": 3,
            "image_size": 768,
            "window_size": 112,
            "tokens_per_second": 2,
            "apply_vit_abs_pos_embed": True,
            "hidden_act": "gelu_pytorch_tanh",
            "initializer_range": 0.02,
        },
    }


def talker_config(thinker: dict[str, Any]) -> dict[str, Any]:
    groups = 16
    return {
        "model_type": "qwen3_omni_moe_talker",
        "dtype": "bfloat16",
        "num_code_groups": groups,
        "thinker_hidden_size": thinker["text_config"]["hidden_size"],
        "accept_hidden_layer": 1,
        "codec_pad_id": 2148,
        "codec_bos_id": 2149,
        "codec_eos_token_id": 2150,
        "codec_nothink_id": 2155,
        "codec_think_bos_id": 2156,
        "codec_think_eos_id": 2157,
        "speaker_id": {"chelsie": 2301, "ethan": 2302, "aiden": 2303},
        "audio_start_token_id": IDS["<|audio_start|>"],
        "audio_token_id": IDS["<|audio_pad|>"],
        "image_token_id": IDS["<|image_pad|>"],
        "video_token_id": IDS["<|video_pad|>"],
        "vision_start_token_id": IDS["<|vision_start|>"],
        "position_id_per_seconds": 13,
        "seconds_per_chunk": 2,
        "spatial_merge_size": 2,
        "text_config": language_config(
            vocab_size=3072, layers=2, shared_expert_intermediate_size=64, initializer_range=0.5
        ),
        "code_predictor_config": {
            "vocab_size": 2048,
            "hidden_size": 128,
            "intermediate_size": 128,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "num_code_groups": groups,
            "max_position_embeddings": 32_768,
            "rope_theta": 1_000_000.0,
        },
    }


def code2wav_config() -> dict[str, Any]:
    return {
        "codebook_size": 2048,
        "codebook_dim": 64,
        "num_quantizers": 16,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "decoder_dim": 64,
        "sliding_window": 72,
        # The product of both is the samples of one frame, 1920 at 24 kHz, as in the released model.
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "max_position_embeddings": 8000,
        "rope_theta": 10_000,
        "layer_scale_initial_scale": 0.01,
        "rms_norm_eps": 1e-5,
    }


def model_config() -> dict[str, Any]:
    thinker = thinker_config()
    return {
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
        "model_type": "qwen3_omni_moe",
        "enable_audio_output": True,
        "dtype": "bfloat16",
        "im_start_token_id": IDS["<|im_start|>"],
        "im_end_token_id": IDS["<|im_end|>"],
        "tts_pad_token_id": IDS["<tts_pad>"],
        "tts_bos_token_id": IDS["<tts_text_bos>"],
        "tts_eos_token_id": IDS["<tts_text_eod>"],
        "system_token_id": ROLES["system"],
        "user_token_id": ROLES["user"],
        "assistant_token_id": ROLES["assistant"],
        "thinker_config": thinker,
        "talker_config": talker_config(thinker),
        "code2wav_config": code2wav_config(),
    }


def write_weights(folder: Path, seed: int) -> None:
    """Random weights, scaled so that activations neither vanish nor explode, under the released checkpoint's names."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, Qwen3OmniMoeForConditionalGeneration

    torch.manual_seed(seed)
    model = Qwen3OmniMoeForConditionalGeneration(AutoConfig.from_pretrained(folder)).to(torch.bfloat16)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2:
                scale = 1.0 if "embed" in name else parameter.shape[-1] ** -0.5
                parameter.copy_((torch.randn(parameter.shape) * scale).to(parameter.dtype))
    weights = dict(released_names(model.state_dict()))
    file = folder / "model.safetensors"
    save_file(weights, file, metadata={"format": "pt"})
    file.chmod(0o644)  # it is written for its owner only
    print(f"{sum(weight.numel() for weight in weights.values()) / 1e6:.1f} million parameters", file=sys.stderr)


def released_names(state: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """transformers 5 keeps a layer's experts in one tensor; a released checkpoint has each on its own."""
    for name, weight in state.items():
        if name.endswith("experts.gate_up_proj"):
            gates, ups = weight.chunk(2, dim=1)
            for expert in range(len(weight)):
                yield name.replace("gate_up_proj", f"{expert}.gate_proj.weight"), gates[expert].contiguous().clone()
                yield name.replace("gate_up_proj", f"{expert}.up_proj.weight"), ups[expert].contiguous().clone()
        elif name.endswith("experts.down_proj"):
            for expert in range(len(weight)):
                yield name.replace("down_proj", f"{expert}.down_proj.weight"), weight[expert].contiguous().clone()
        else:
            yield name, weight.contiguous().clone()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    make(options.folder.resolve(), options.seed)
    print(options.folder)


if __name__ == "__main__":
    main()
