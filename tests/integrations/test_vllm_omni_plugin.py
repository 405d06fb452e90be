"""What happens when vLLM-Omni loads the plug-in: nothing, a swap of one class, or one message."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from vllm_omni_imitation import OmniPrefixCacheManager, Runner, SchedulerOutput, modules, pretend_installed

from prefix_cache.errors import ConfigError
from prefix_cache.integrations.timing import read_steps
from prefix_cache.integrations.vllm_omni import register
from prefix_cache.integrations.vllm_omni.manager import BundledManager

RUNNER_MIXIN = "vllm_omni.core.prefix_cache.runner_mixin"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PREFIX_CACHE")]:
        monkeypatch.delenv(name)


@pytest.fixture
def omni(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, ModuleType]:
    return pretend_installed(monkeypatch)


def test_the_entry_point_is_the_plug_in() -> None:
    """vLLM-Omni finds it by its group; the name is what an allow-list would name."""
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    named = project["entry-points"]["vllm_omni.general_plugins"]["prefix_cache"]
    assert EntryPoint("prefix_cache", named, "vllm_omni.general_plugins").load() is register


def test_loading_it_imports_no_engine() -> None:
    """An import that fails is only logged, and the server goes on with another cache than was asked for."""
    code = (
        "import sys; from prefix_cache.integrations.vllm_omni import register; register(); "
        "print([m for m in sys.modules if m.split('.')[0] in ('vllm', 'vllm_omni', 'prometheus_client')])"
    )
    env = {**os.environ, "PREFIX_CACHE": "builtin"}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env=env)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize("value", [None, "", "builtin"])
def test_nothing_is_touched_unless_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, omni: Mapping[str, ModuleType], value: str | None
) -> None:
    """Unset, empty and builtin are vLLM-Omni's own cache, of whatever release."""
    if value is not None:
        monkeypatch.setenv("PREFIX_CACHE", value)
    before = dict(vars(omni[RUNNER_MIXIN]))
    register()
    assert vars(omni[RUNNER_MIXIN]) == before


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("PREFIX_CACHE", "ours", "PREFIX_CACHE: found 'ours'; allowed: builtin, bundled"),
        ("PREFIX_CACHE_INLINE", "yes", "PREFIX_CACHE_INLINE: found 'yes'; allowed: 0, 1"),
    ],
)
def test_another_value_stops_the_process(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    """With one message that says what is allowed; a typing error must not measure the wrong cache."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError) as refused:
        register()
    assert str(refused.value) == message


def test_the_bundled_manager_is_what_a_runner_builds(
    monkeypatch: pytest.MonkeyPatch, omni: Mapping[str, ModuleType], caplog: pytest.LogCaptureFixture
) -> None:
    """Through the mixin's own method, which tells the manager whose it is; twice loaded is once installed."""
    monkeypatch.setenv("PREFIX_CACHE", "bundled")
    caplog.set_level(logging.INFO, logger="vllm")
    register()
    register()
    assert len([record for record in caplog.records if "plug-in loaded" in record.getMessage()]) == 1
    mixin: Any = omni[RUNNER_MIXIN]

    class ARRunner(Runner, mixin.PrefixCacheRunnerMixin): ...  # type: ignore[misc]  # made at run time

    runner = ARRunner(stage=1)
    runner._ensure_omni_prefix_cache()
    try:
        assert type(runner.omni_prefix_cache) is BundledManager
        assert runner.omni_prefix_cache._engine.stage == 1
    finally:
        runner.omni_prefix_cache.shutdown()


def test_a_worker_of_the_second_model_runner_does_not_start(
    monkeypatch: pytest.MonkeyPatch, omni: Mapping[str, ModuleType]
) -> None:
    """Before its KV cache exists; the worker of a stage that can be followed starts as before."""
    monkeypatch.setenv("PREFIX_CACHE", "bundled")
    register()
    worker = omni["vllm_omni.worker.mixins"].OmniWorkerMixin()
    worker.vllm_config = Runner(v2=True).vllm_config
    with pytest.raises(ConfigError, match="v2"):
        worker.initialize_from_config("sizes")
    worker.vllm_config = Runner().vllm_config
    worker.initialize_from_config("sizes")
    assert worker.initialized == "sizes"


@pytest.mark.parametrize("release", ["0.29.1", "0.31.0", "1.0.0"])
def test_another_release_is_refused(monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    """Its manager may do what this one does not know."""
    pretend_installed(monkeypatch, release)
    monkeypatch.setenv("PREFIX_CACHE", "bundled")
    with pytest.raises(ConfigError, match=f"found vllm-omni {release}; allowed: 0.30.x"):
        register()


def _without(owner: str, name: str) -> Any:
    def change(omni: Mapping[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
        module, _, attribute = owner.rpartition(".")
        monkeypatch.delattr(getattr(omni[module], attribute), name)

    return change


def _another_parameter(_: Mapping[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    def discard_step(self: Any, step_id: int, request_ids: Any) -> None: ...

    monkeypatch.setattr(OmniPrefixCacheManager, "discard_step", discard_step)


def _another_plug_in(omni: Mapping[str, ModuleType], _: pytest.MonkeyPatch) -> None:
    omni[RUNNER_MIXIN].OmniPrefixCacheManager = object  # type: ignore[attr-defined]  # the imitation's own module


def _another_step(omni: Mapping[str, ModuleType], _: pytest.MonkeyPatch) -> None:
    omni["vllm.v1.core.sched.output"].SchedulerOutput = modules()[  # type: ignore[attr-defined]
        "vllm.v1.core.sched.output"
    ].CachedRequestData


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without(f"{RUNNER_MIXIN}.PrefixCacheRunnerMixin", "_prefix_cache_step_begin"), "_prefix_cache_step_begin is"),
        (
            _without("vllm_omni.core.prefix_cache.manager.OmniPrefixCacheManager", "save_outputs"),
            "save_outputs is gone",
        ),
        (_without("vllm_omni.worker.mixins.OmniWorkerMixin", "initialize_from_config"), "initialize_from_config is"),
        (_another_parameter, "discard_step takes self, step_id, request_ids, not self, step_id"),
        (_another_plug_in, "another plug-in"),
        (_another_step, "SchedulerOutput has no finished_req_ids, kv_cache_block_copies"),
    ],
)
def test_the_right_number_with_other_insides_is_refused(
    monkeypatch: pytest.MonkeyPatch, omni: Mapping[str, ModuleType], change: Any, message: str
) -> None:
    """A name, a parameter or a field that is not what was read, also behind a decorator that hides its signature."""
    change(omni, monkeypatch)
    monkeypatch.setenv("PREFIX_CACHE", "bundled")
    with pytest.raises(ConfigError, match=message):
        register()


def test_the_builtin_cache_is_timed_by_the_same_instrument(
    monkeypatch: pytest.MonkeyPatch, omni: Mapping[str, ModuleType], tmp_path: Path
) -> None:
    """Every call reaches the original, and leaves its cost in the folder."""
    monkeypatch.setenv("PREFIX_CACHE_TIMING", str(tmp_path))
    register()
    mixin: Any = omni[RUNNER_MIXIN]

    class ARRunner(Runner, mixin.PrefixCacheRunnerMixin): ...  # type: ignore[misc]  # made at run time

    runner = ARRunner(stage=0)
    runner._ensure_omni_prefix_cache()
    manager = runner.omni_prefix_cache
    assert isinstance(manager, OmniPrefixCacheManager)
    manager.new_step_starts(SchedulerOutput({"a": 1, "b": 1}))
    step = manager.save_outputs(None, {}, num_tokens_unpadded=2, num_tokens_padded=2)
    manager.materialize(step, ["a", "b"])
    manager.shutdown()
    assert manager.calls == ["new_step_starts", "save_outputs", "materialize", "shutdown"]
    [cost] = read_steps(tmp_path)
    assert cost.kind == "decode 2"
    assert set(cost.wall_us) == {"begin", "save", "consume"}
    assert [path.name for path in tmp_path.iterdir()] == [f"stage0-{os.getpid()}.jsonl"]
