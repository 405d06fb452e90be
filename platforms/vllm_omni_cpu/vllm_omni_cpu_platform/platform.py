"""The platform: which workers a stage gets, and what there is instead of a device."""

from __future__ import annotations

import os
from typing import Any

import psutil
import torch
from vllm.platforms.cpu import CpuPlatform
from vllm_omni.platforms.interface import OmniPlatform, OmniPlatformEnum


class CpuOmniPlatform(OmniPlatform, CpuPlatform):  # type: ignore[misc]  # untyped where checked
    """vLLM's CPU platform with what vLLM-Omni asks of one. Diffusion stages are not its business."""

    _omni_enum = OmniPlatformEnum.OOT
    # The base writes a stage's `devices:` into CPU_VISIBLE_MEMORY_NODES, where "0" would mean a NUMA node.
    device_control_env_var = "VLLM_OMNI_CPU_DEVICES"

    @classmethod
    def get_omni_ar_worker_cls(cls) -> str:
        return "vllm_omni_cpu_platform.worker.CpuARWorker"

    @classmethod
    def get_omni_generation_worker_cls(cls) -> str:
        return "vllm_omni_cpu_platform.worker.CpuGenerationWorker"

    @classmethod
    def get_default_stage_config_path(cls) -> str:
        return "vllm_omni/deploy"

    @classmethod
    def get_diffusion_attn_backend_cls(
        cls,
        selected_backend: str | None,  # noqa: ARG003 - the interface's; there is one backend
        head_size: int,  # noqa: ARG003 - the interface's
        allow_trtllm_default: bool = False,  # noqa: ARG003 - the interface's
    ) -> str:
        from vllm_omni.diffusion.attention.backends.registry import DiffusionAttentionBackendEnum

        path: str = DiffusionAttentionBackendEnum.TORCH_SDPA.get_path()
        return path

    @classmethod
    def supports_torch_inductor(cls) -> bool:
        return False

    @classmethod
    def supports_talker_mtp_graph_capture(cls) -> bool:
        return False

    @classmethod
    def get_torch_device(cls, local_rank: int | None = None) -> torch.device:  # noqa: ARG003 - the interface's
        return torch.device("cpu")

    @classmethod
    def get_device_count(cls) -> int:
        return 1

    @classmethod
    def get_device_version(cls) -> str | None:
        return None

    @classmethod
    def synchronize(cls) -> None:
        """Work on a CPU is done when its call returns."""

    @classmethod
    def get_free_memory(cls, device: Any = None) -> int:  # noqa: ARG003 - the interface's
        free: int = psutil.virtual_memory().available
        return free

    @classmethod
    def get_device_memory(cls, device: Any = None) -> tuple[int, int]:  # noqa: ARG003 - the interface's
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    @classmethod
    def get_current_memory_usage(cls, device: Any = None) -> float:  # noqa: ARG003 - the interface's
        return float(psutil.Process(os.getpid()).memory_info().rss)
