"""The tokenizer wrapper: what it reads from a folder, and what it says where a folder is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers

import harness
from harness.errors import UsageError
from harness.scenario import Arm, Bench, Scenario, Server, ServerKind
from harness.workloads import Tokenizer, find_tokenizer

ASSETS = Path(harness.__file__).parent / "tiny_omni" / "assets"


def folder_with(tmp_path: Path, **config: Any) -> Path:
    """The committed vocabulary under another configuration."""
    shutil.copy(ASSETS / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return tmp_path


def test_text_survives_a_round_trip() -> None:
    """Every character comes back, one by one and in batches."""
    tokenizer = Tokenizer(ASSETS)
    texts = ["The licence, as is.", "zwölf Boxkämpfer", "語", "\t\n  spaces"]
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts
    assert tokenizer.encode_all(texts) == [tokenizer.encode(text) for text in texts]


def test_special_tokens_are_found_in_each_place_they_may_stand(tmp_path: Path) -> None:
    """Named tokens as text or objects, extra ones as a list or by name; flags and unknown tokens are no tokens."""
    named = folder_with(
        tmp_path,
        eos_token={"content": "<|im_end|>"},
        pad_token=None,
        bos_token="<|not in the vocabulary|>",
        add_bos_token=False,
        extra_special_tokens={"image_token": "<|im_start|>"},
        additional_special_tokens=["<|endoftext|>"],
    )
    core = tokenizers.Tokenizer.from_file(str(ASSETS / "tokenizer.json"))
    expected = {core.token_to_id(token) for token in ("<|im_end|>", "<|im_start|>", "<|endoftext|>")}
    assert Tokenizer(named).special_ids == expected
    assert Tokenizer(named).special_tokens == {
        "eos_token": "<|im_end|>",
        "bos_token": "<|not in the vocabulary|>",
    }


def test_the_older_map_of_special_tokens_counts_where_the_configuration_lists_none(tmp_path: Path) -> None:
    """`special_tokens_map.json` fills in, unless the configuration carries `added_tokens_decoder`."""
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": "<|im_end|>"}', encoding="utf-8")
    assert Tokenizer(folder_with(tmp_path)).special_tokens == {"eos_token": "<|im_end|>"}
    assert Tokenizer(folder_with(tmp_path, added_tokens_decoder={})).special_tokens == {}


def test_a_text_is_never_cut_by_the_tokenizers_own_limit(tmp_path: Path) -> None:
    """Truncation or padding set in the file does not reach prompts."""
    core = tokenizers.Tokenizer.from_file(str(ASSETS / "tokenizer.json"))
    core.enable_truncation(max_length=2)
    core.enable_padding(length=50)
    core.save(str(tmp_path / "tokenizer.json"))
    text = "one two three four five six"
    assert Tokenizer(tmp_path).encode(text) == Tokenizer(ASSETS).encode(text)


def test_a_chat_template_sees_what_transformers_gives_it(tmp_path: Path) -> None:
    """Blocks are trimmed, special tokens and a request's own variables are there, JSON stays unescaped."""
    template = (
        "{% for m in messages %}\n"
        "    {% if loop.first %}\n{{ eos_token }}{% endif %}\n"
        "{% generation %}{{ m.content | tojson }}{% endgeneration %}\n"
        "{% if think %}yes{% endif %}{% break %}{% endfor %}\n"
        "{% if add_generation_prompt %}:{% endif %}"
    )
    tokenizer = Tokenizer(folder_with(tmp_path, eos_token="<|im_end|>", chat_template=template))
    chat = [{"role": "user", "content": "a < ä"}, {"role": "user", "content": "unseen"}]
    assert tokenizer.render_chat(chat, think=True) == '<|im_end|>"a < ä"yes:'
    assert tokenizer.render_chat(chat) == '<|im_end|>"a < ä":'
    assert tokenizer.chat_ids(chat) == tokenizer.encode('<|im_end|>"a < ä":')


def test_a_template_may_lie_in_its_own_file_or_in_a_list(tmp_path: Path) -> None:
    """`chat_template.jinja` comes first; of a list, the default counts."""
    named = [{"name": "tool", "template": "tool"}, {"name": "default", "template": "listed"}]
    folder = folder_with(tmp_path, chat_template=named)
    assert Tokenizer(folder).render_chat([]) == "listed"
    (folder / "chat_template.jinja").write_text("filed", encoding="utf-8")
    assert Tokenizer(folder).render_chat([]) == "filed"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (None, "found no chat template in"),
        ("{{ raise_exception('only pairs') }}", "refuses: only pairs"),
        ("{% if %}", "refuses: "),
        ("{{ ''.__class__.__mro__ }}", "refuses: "),
    ],
)
def test_a_template_that_cannot_render_is_a_usage_error(tmp_path: Path, template: str | None, expected: str) -> None:
    """Absent, refusing, broken and unsafe templates each say so."""
    tokenizer = Tokenizer(folder_with(tmp_path, chat_template=template))
    assert tokenizer.has_chat_template == (template is not None)
    with pytest.raises(UsageError, match=expected):
        tokenizer.render_chat([{"role": "user", "content": "x"}])


def test_a_folder_that_holds_no_tokenizer_is_a_usage_error(tmp_path: Path) -> None:
    """The message names the file that is missing or broken."""
    with pytest.raises(UsageError, match=r"found no .*tokenizer\.json"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UsageError, match=r"tokenizer\.json, which cannot be read"):
        Tokenizer(tmp_path)
    folder_with(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[]", encoding="utf-8")
    with pytest.raises(UsageError, match=r"tokenizer_config\.json, which is not a JSON object"):
        Tokenizer(tmp_path)


def scenario(kind: ServerKind, model: str, tokenizer: str | None = None) -> Scenario:
    only = Bench(
        name="P8",
        dataset="random",
        concurrency=1,
        prompts=1,
        seed=0,
        output=1,
        shared_prefix=0,
        random_len=8,
        range_ratio=0.0,
    )
    return Scenario(
        schema=1,
        name="found",
        model=model,
        tokenizer=tokenizer,
        server=Server(kind=kind),
        arms={"off": Arm(baseline=True)},
        rounds=1,
        benches=(only,),
    )


def test_the_tokenizer_is_looked_for_in_three_places(tmp_path: Path) -> None:
    """The scenario's own key beside its file, then the server kind's, then the model folder, else nowhere."""
    (tmp_path / "local").mkdir()
    local = folder_with(tmp_path / "local")
    assert find_tokenizer(scenario("tiny-omni", "tiny-omni", "local"), tmp_path) == local
    file = find_tokenizer(scenario("vllm", "x", "local/tokenizer.json"), tmp_path)
    assert file is not None
    assert Tokenizer(file).sha256 == Tokenizer(local).sha256
    assert find_tokenizer(scenario("tiny-omni", "tiny-omni"), tmp_path) == ASSETS
    assert find_tokenizer(scenario("vllm", "local"), tmp_path) == local
    assert find_tokenizer(scenario("vllm", "Qwen/Qwen3"), tmp_path) is None
    with pytest.raises(UsageError, match="tokenizer: found 'nowhere'"):
        find_tokenizer(scenario("vllm", "local", "nowhere"), tmp_path)


@pytest.mark.parametrize("variable", ["HF_HOME", "HF_HUB_CACHE"])
def test_a_model_of_the_hub_is_found_in_the_hubs_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """What a server has downloaded is used: the snapshot that the main branch points at, if it has a tokenizer.json."""
    for name in ("HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path / "cache"))
    hub = tmp_path / "cache" / ("hub" if variable == "HF_HOME" else "")
    model = hub / "models--Some--Model-1B"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("0123abc", encoding="utf-8")
    snapshot = model / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    assert find_tokenizer(scenario("vllm", "Some/Model-1B"), tmp_path) is None
    folder_with(snapshot)
    assert find_tokenizer(scenario("vllm", "Some/Model-1B"), tmp_path) == snapshot
    assert find_tokenizer(scenario("vllm", "Some/Other"), tmp_path) is None
