#!/usr/bin/env python3
"""Sets up and runs, from a fresh clone, with nothing but Python 3.11 or newer:

    python3 dev.py quickstart     the reference server with the prefix cache off and on, and a report
    python3 dev.py speech         what it says and in which voice, cache off and on, scored with Whisper and Resemblyzer
    python3 dev.py test           lint, types and the fast tests (--all: the slow ones and those that drive the real
                                  vLLM and vLLM-Omni too, from environments made for them; more words go to pytest)
    python3 dev.py setup          the environment alone, in .venv

Everything lands in .venv beside this file. The one thing pip cannot bring is `flite`, the speech synthesiser of the
reference server: it is installed where the package manager lets us, and asked for where it does not.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
CPU_TORCH = "https://download.pytorch.org/whl/cpu"
REAL = ("scripts/setup_vllm_cpu.sh", "scripts/setup_vllm_omni_cpu.sh")
WHISPER = "openai-whisper==20250625"
MODELS = ("whisper-tiny.en", "resemblyzer")
# A file's tests share their fixtures, which are whole runs.
ABREAST = ("--numprocesses", "logical", "--maxprocesses", "4", "--dist", "loadfile")
EXTRAS = {"quickstart": "tiny,figures", "speech": "tiny,figures,accuracy", "test": "dev", "setup": "dev"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=EXTRAS)
    options, rest = parser.parse_known_args()
    if sys.version_info < (3, 11):  # noqa: UP036 - the message is for those who run an older one
        print(f"dev.py: found Python {sys.version.split()[0]}; allowed: 3.11 or newer", file=sys.stderr)
        return 2
    install(EXTRAS[options.what])
    if not ensure_flite():
        return 2
    if options.what == "quickstart":
        return run("bench", "run", "scenarios/quickstart.yaml", *rest)
    if options.what == "speech":
        return get_models() or run("bench", "run", "scenarios/speech_cpu.yaml", *rest)
    if options.what == "test":
        return test(rest)
    print(f"ready: source {BIN.relative_to(ROOT) / 'activate'}")
    return 0


def test(rest: list[str]) -> int:
    everything = "--all" in rest
    rest = [word for word in rest if word != "--all"]
    checks = [
        ("ruff", "check", "."),
        ("ruff", "format", "--check", "."),
        ("mypy",),
        ("pytest", *ABREAST, *(("-m", "not gpu and not real") if everything else ()), *rest),
    ]
    if everything:
        # The slow tests recognise speech.
        if code := get_models():
            return code
        checks += [*((ROOT / script,) for script in REAL), ("pytest", "-m", "real", *rest)]
    return next((code for check in checks if (code := run(*check))), 0)


def get_models() -> int:
    return run("python", "scripts/get_speech_models.py", *MODELS)


def run(program: str | Path, *arguments: str) -> int:
    """Runs a program of .venv, or one of this repository by its path."""
    print(f"$ {program} {' '.join(arguments)}", flush=True)
    return subprocess.call([str(BIN / program), *arguments], cwd=ROOT)


def install(extras: str) -> None:
    """Creates .venv and installs the project with `extras`, unless that has been done for this pyproject.toml."""
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + extras.encode()).hexdigest()
    stamp = VENV / f".installed-{extras.replace(',', '-')}"
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    if not (BIN / "python").exists():
        print(f"creating {VENV.relative_to(ROOT)}", flush=True)
        venv.create(VENV, with_pip=True)
    print(f"installing omni-prefix-bench[{extras}]", flush=True)
    command = [str(BIN / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.check_call([*command, *cpu_index(), "--editable", f"{ROOT}[{extras}]"])
    if extras == "dev" or "accuracy" in extras:
        subprocess.check_call([*command, "--no-deps", WHISPER])
    stamp.write_text(wanted)


def cpu_index() -> list[str]:
    """On Linux the default torch brings gigabytes of CUDA: prefer the CPU build's own index where it can be reached."""
    if not sys.platform.startswith("linux"):
        return []
    try:
        urllib.request.urlopen(f"{CPU_TORCH}/torch/", timeout=3).close()
    except (urllib.error.URLError, TimeoutError, OSError):
        return []
    return ["--extra-index-url", CPU_TORCH]


def ensure_flite() -> bool:
    if shutil.which("flite"):
        return True
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    sudo = [] if root else ["sudo"]
    if shutil.which("apt-get") and (root or (shutil.which("sudo") and sys.stdin.isatty())):
        print("installing flite", flush=True)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for words in (("update", "-qq"), ("install", "-y", "-qq", "flite")):
            subprocess.call([*sudo, "apt-get", *words], env=environment, stdout=subprocess.DEVNULL)
        if shutil.which("flite"):
            return True
    print(
        "dev.py: found no flite, the speech synthesiser of the reference server; "
        "install it (apt install flite, brew install flite) and run this again",
        file=sys.stderr,
    )
    return False


if __name__ == "__main__":
    sys.exit(main())
