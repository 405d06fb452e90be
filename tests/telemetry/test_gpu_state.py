"""The state of GPUs through NVML, and what a trial must say of who else used them."""

import time

import pytest
from fake_nvml import Card, FakeNvml

from harness.records import GpuProcess
from harness.telemetry.gpu_state import Nvml
from harness.telemetry.gpu_watch import GpuWatch, Seen, gpu_caveats

THERMAL, POWER, IDLE = 0x20, 0x4, 0x1
MIB = 2**20


def test_the_fake_has_the_names_and_bits_of_the_real_one():
    """Every name that is used exists in pynvml, and the constants are its own."""
    pynvml = pytest.importorskip("pynvml")
    for name in (
        "nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetTemperature", "nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlSystemGetDriverVersion",
        "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetProcessUtilization", "nvmlShutdown",
    ):  # fmt: skip
        assert callable(getattr(pynvml, name))
    for name, value in vars(FakeNvml).items():
        if name.startswith(("NVML_", "nvmlClocks")):
            assert getattr(pynvml, name) == value, name


def test_a_gpu_is_recorded_with_its_clocks_power_cap_and_processes():
    """Every number is the driver's; the idle bit is no reason to name."""
    nvml = Nvml(FakeNvml(Card(processes={20: None, 7: 512 * MIB}, throttle=IDLE | POWER, utilisation=3)))
    (gpu,) = nvml.read()
    assert (gpu.name, gpu.driver, gpu.memory_bytes) == ("NVIDIA H200", "570.1", 141 * 2**30)
    assert (gpu.sm_clock, gpu.sm_clock_max, gpu.memory_clock, gpu.power_limit) == (1755, 1980, 3201, 700.0)
    assert (gpu.utilisation, gpu.temperature, gpu.throttle) == (3, 41, ("power cap",))
    assert gpu.processes == (GpuProcess(pid=7, bytes=512 * MIB), GpuProcess(pid=20, bytes=None))


def test_what_the_driver_refuses_is_null():
    """A card that does not tell its power or throttling, as virtual ones do, is recorded without them."""
    silent = ("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetCurrentClocksThrottleReasons")
    (gpu,) = Nvml(FakeNvml(Card(silent=(*silent, "nvmlDeviceGetComputeRunningProcesses")))).read()
    assert (gpu.power_limit, gpu.throttle, gpu.processes) == (None, None, None)
    assert gpu.sm_clock == 1755


def test_without_a_driver_there_is_nothing(monkeypatch):
    """An NVML that does not start means no GPU, not an error."""
    fake = FakeNvml()
    monkeypatch.setitem(__import__("sys").modules, "pynvml", fake)
    assert Nvml.open() is None
    assert fake.closed


def watched(card, ours, steps, before=None):
    """Caveats of a trial whose GPU is read once after each step."""
    fake = FakeNvml(card)
    nvml = Nvml(fake)
    start = nvml.read() if before is None else before
    seen = [Seen(start[0].name)]
    for step in steps:
        step(card)
        held = {one.pid for one in start[0].processes or ()}
        seen[0].add(nvml.read()[0], ours, held, nvml.busy(0))
    return {caveat.kind: caveat.message for caveat in gpu_caveats(start, seen)}


def arrives(pid, held=100 * MIB, busy=0):
    def step(card):
        card.processes[pid] = held
        card.busy[pid] = busy

    return step


def test_a_gpu_of_our_own_says_nothing():
    """The server's processes, an idle card before it, a power cap: no caveat."""
    assert watched(Card(throttle=POWER | IDLE), {10, 11}, [arrives(10), arrives(11)]) == {}


def test_a_foreign_process_is_named_with_what_it_used():
    """One that comes while the server runs, by its id, its memory and its share of the processors."""
    found = watched(Card(), {10}, [arrives(10), arrives(99, 300 * MIB, busy=37)])
    assert found == {
        "foreign GPU process": "process 99, not the server's, held up to 300 MiB and up to 37 % of its processors "
        "on GPU 0 (NVIDIA H200)"
    }


def test_a_process_from_before_is_foreign_even_where_ids_are_hidden():
    """In a container our own id may be unknown to the driver: then only who was there before is surely foreign."""
    card = Card(processes={99: None}, utilisation=55)
    found = watched(card, {10}, [arrives(4711)])
    assert found.keys() == {"foreign GPU use", "foreign GPU process"}
    assert "process 99" in found["foreign GPU process"]
    assert "unknown memory" in found["foreign GPU process"]
    assert "55 % busy before the server was started" in found["foreign GPU use"]
    assert watched(Card(), {10}, [arrives(4711)]) == {}


def test_a_card_that_the_server_does_not_use_says_nothing():
    """On a machine of two cards, what others do on the other one is their business."""
    fake = FakeNvml(Card(), Card(processes={99: MIB}, throttle=THERMAL, utilisation=100))
    nvml = Nvml(fake)
    before = nvml.read()
    seen = [Seen(gpu.name) for gpu in before]
    fake.cards[0].processes[10] = MIB
    for index, gpu in enumerate(nvml.read()):
        seen[index].add(gpu, {10}, {99}, {})
    assert gpu_caveats(before, seen) == ()


def test_thermal_throttling_is_counted():
    """The reason, and in how many readings it was seen."""

    def hot(card):
        card.throttle = THERMAL | POWER

    def cool(card):
        card.throttle = POWER

    found = watched(Card(), {10}, [arrives(10), hot, hot, cool])
    assert found == {"GPU throttled": "software thermal slowdown of GPU 0 (NVIDIA H200) in 2 of 4 readings"}


def test_the_watch_reads_on_its_own_thread_and_closes_its_session():
    """It sees what happens between two calls of ours, and the session ends with it."""
    card = Card()
    fake = FakeNvml(card)
    nvml = Nvml(fake)
    with GpuWatch(nvml, nvml.read(), lambda: {10}, interval_s=0.001) as watch:
        card.processes = {10: MIB, 99: MIB}
        until = fake.asked + 3
        deadline = time.monotonic() + 10
        while fake.asked < until and time.monotonic() < deadline:
            time.sleep(0.001)
    assert [caveat.kind for caveat in watch.caveats()] == ["foreign GPU process"]
    assert fake.closed


def test_without_nvml_the_watch_is_quiet():
    """No session, no thread, no caveat."""
    with GpuWatch(None, (), lambda: {1}) as watch:
        pass
    assert watch.caveats() == ()
