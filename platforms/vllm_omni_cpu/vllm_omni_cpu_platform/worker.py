"""The workers: vLLM's CPU worker around vLLM-Omni's own model runners."""

from __future__ import annotations

from typing import Any

import torch
import vllm.v1.worker.cpu_worker as cpu_worker
from vllm.config import VllmConfig
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm_omni.worker.gpu_ar_model_runner import GPUARModelRunner
from vllm_omni.worker.gpu_generation_model_runner import GPUGenerationModelRunner
from vllm_omni.worker.mixins import OmniWorkerMixin

from vllm_omni_cpu_platform import no_cuda


class _OnCpu:
    """What both runners need where device tensors are the host's."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)  # type: ignore[call-arg]  # a mixin: the next class is a model runner
        # vLLM's CPU runner did so at its own end; the buffers that vLLM-Omni's runners made came later.
        self._postprocess_tensors()  # type: ignore[attr-defined]  # CPUModelRunner's

    def load_model(self, load_dummy_weights: bool = False) -> None:
        compilation: Any = self.compilation_config  # type: ignore[attr-defined]  # the model runner's
        if compilation.max_cudagraph_capture_size is None:
            # The Talker's buffers are sized by max() over this, which None breaks; no graphs are captured here.
            compilation.max_cudagraph_capture_size = 0
        super().load_model(load_dummy_weights=load_dummy_weights)  # type: ignore[misc]  # the model runner's
        self._postprocess_tensors()  # type: ignore[attr-defined]


class CpuARModelRunner(_OnCpu, GPUARModelRunner, CPUModelRunner):  # type: ignore[misc]  # untyped where checked
    """Thinker and Talker stages."""


class CpuGenerationModelRunner(_OnCpu, GPUGenerationModelRunner, CPUModelRunner):  # type: ignore[misc]  # as above
    """Code2Wav stages."""


class _OmniCpuWorker(OmniWorkerMixin, cpu_worker.CPUWorker):  # type: ignore[misc]  # as above
    model_runner_cls: type[CPUModelRunner]

    def init_device(self) -> None:
        if getattr(self.model_config, "use_v2_model_runner", False):
            raise ValueError("model_runner: found v2; allowed on a CPU: v1 (vLLM-Omni's v2 runner needs CUDA)")
        # vLLM's own switch, which chooses the plain v2 runner without any of vLLM-Omni.
        self.use_v2_model_runner = False
        no_cuda.install()
        # The base names its runner's class and has no other seam; it is looked up once, inside this call.
        plain = cpu_worker.CPUModelRunner
        cpu_worker.CPUModelRunner = self.model_runner_cls
        try:
            super().init_device()
        finally:
            cpu_worker.CPUModelRunner = plain


class CpuARWorker(_OmniCpuWorker):
    """Worker of an autoregressive stage."""

    model_runner_cls = CpuARModelRunner


class CpuGenerationWorker(_OmniCpuWorker):
    """Worker of a stage that generates in one pass."""

    model_runner_cls = CpuGenerationModelRunner
