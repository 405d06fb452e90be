"""What trials recorded of weights, GPUs and limits, in the table of provenance."""

from synthetic_run import SyntheticRun

from harness.records import Container, Gpu, Model
from harness.report.setting import setting_rows


def trials(tmp_path, **changes):
    """Two trials with the recorded facts; a change is one value for both, or a list of one each."""
    run = SyntheticRun(tmp_path / "run", rounds=1)
    found = [run.trial(planned) for planned in run.plan]
    for key, values in changes.items():
        each = values if isinstance(values, list) else [values] * len(found)
        found = [one.model_copy(update={key: value}) for one, value in zip(found, each, strict=True)]
    return found


def gpu(**changes):
    facts = dict.fromkeys(Gpu.model_fields) | {"name": "H200", "driver": "570", "power_limit": 700.0}
    return Gpu.model_validate(facts | changes)


def model(**changes):
    return Model.model_validate(dict.fromkeys(Model.model_fields) | {"id": "m"} | changes)


def test_a_run_from_before_they_were_recorded_has_no_rows(tmp_path):
    """Nothing is said of what is not known."""
    assert setting_rows(trials(tmp_path)) == []


def test_weights_are_told_once_or_for_each_that_differs(tmp_path):
    """Equal in all trials: one row; arms with models of their own: one each."""
    known = model(path="/m", revision="a" * 40, config_sha256="c" * 64, weights_sha256="d" * 64, weights_bytes=7)
    (row,) = setting_rows(trials(tmp_path, model=known))
    assert row == [
        "weights",
        f"`/m`, revision {'a' * 40}, 7 bytes, config.json sha256 `cccccccccccc`, index and sizes sha256 `dddddddddddd`",
    ]
    rows = setting_rows(trials(tmp_path / "two", model=[known, model()]))
    assert [text for _, text in rows] == [row[1], "m: not to be seen from here"]


def test_gpus_are_told_with_their_range_over_the_trials(tmp_path):
    """What is fixed once, what varies from smallest to largest; what the driver did not tell is left out."""
    cool, warm = gpu(sm_clock=345, temperature=30), gpu(sm_clock=1980, temperature=45, processes=())
    (row,) = setting_rows(trials(tmp_path, gpus=[(cool,), (warm,)]))
    assert row == [
        "GPU 0 before each server",
        "H200, driver 570, power cap 700 W; SM clock 345 .. 1980 MHz; temperature 30 .. 45 °C; processes 0",
    ]


def test_limits_of_a_container(tmp_path):
    """A limit that is not there is said to be none."""
    run = SyntheticRun(tmp_path / "host", rounds=1)
    host = run.manifest().host.model_copy(update={"container": Container(cpus=1.5, memory_bytes=None)})
    assert setting_rows(trials(tmp_path, host=host)) == [["limits of the container", "1.5 processors, all memory"]]
