"""vLLM-Omni's stages on a CPU, from outside: a platform plug-in, its workers, and what a build without CUDA lacks."""


def register() -> str:
    """The platform's class, for the entry point group `vllm_omni.platform_plugins`."""
    return "vllm_omni_cpu_platform.platform.CpuOmniPlatform"
