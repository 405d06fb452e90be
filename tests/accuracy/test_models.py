"""Which models a scoring uses: a scenario's, a variable's, or those a command line names."""

from __future__ import annotations

import pytest

from harness.accuracy.models import Instead, Models, expanded
from harness.errors import UsageError
from harness.scenario import Sim, Wer


def test_a_variable_comes_before_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked up when scores are made; one that is not set and has no default is named."""
    monkeypatch.delenv("SOME_MODEL", raising=False)
    assert expanded("${SOME_MODEL:-/models/a.pt}", "wer.model") == "/models/a.pt"
    with pytest.raises(UsageError, match=r"wer\.model: found \$\{SOME_MODEL\}, which is not set"):
        expanded("${SOME_MODEL}", "wer.model")
    monkeypatch.setenv("SOME_MODEL", "/models/b.pt")
    assert expanded("${SOME_MODEL:-/models/a.pt}", "wer.model") == "/models/b.pt"
    assert expanded("/models/${SOME_MODEL}", "wer.model") == "/models//models/b.pt"


def test_another_kind_does_not_inherit_the_model() -> None:
    """A checkpoint of Whisper means nothing to a function, nor Resemblyzer's weights to WavLM."""
    wer, sim = Wer(model="a.pt"), Sim(model="r.pt")
    assert Instead().wer(wer) == wer
    assert Instead(recogniser="m:f").wer(wer).model is None
    assert Instead(wer_model="b.pt").wer(wer).model == "b.pt"
    assert Instead(normaliser="seed-tts").wer(wer).normaliser == "seed-tts"
    assert Instead(encoder="wavlm").sim(sim).model is None
    assert Instead(encoder="wavlm", sim_model="w").sim(sim).model == "w"


def test_checks_share_what_they_name_alike() -> None:
    """A model is opened once, however many checks ask for it."""
    models = Models()
    wer = Wer(recogniser="json:dumps", normaliser="seed-tts")
    assert models.ear(wer, "en") is models.ear(wer.model_copy(), "en")
    assert models.ear(wer, "en") is not models.ear(wer, "zh")
