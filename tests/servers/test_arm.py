import json
from typing import Any, get_args

import pytest
from server_scenario import scenario

from harness.errors import UsageError
from harness.scenario import ServerKind
from harness.servers.arm import ResolvedArm, resolve_arm
from harness.servers.kinds import server_kind


def test_arguments_and_environment_merge_by_key() -> None:
    """An arm changes the arguments and variables it names, however their words are joined, and keeps the others."""
    file = scenario(
        {"args": {"block_size": 16, "num-blocks": 64}, "env": {"A": "1", "B": "1"}},
        {"args": {"block-size": 32, "max_num_seqs": 4}, "env": {"B": "2", "C": "2"}},
    )
    on = resolve_arm(file, "on")
    assert on.args == {"block-size": 32, "num-blocks": 64, "max-num-seqs": 4}
    assert on.env == {"A": "1", "B": "2", "C": "2"}
    assert resolve_arm(file, "off").args == {"block-size": 16, "num-blocks": 64}


def test_interpreter_and_source_are_replaced() -> None:
    """`python` and `source` are the arm's where it has them, the server's otherwise."""
    file = scenario({"python": "/a/python", "source": "/a"}, {"python": "/b/python"})
    assert (resolve_arm(file, "on").python, resolve_arm(file, "on").source) == ("/b/python", "/a")
    assert (resolve_arm(file, "off").python, resolve_arm(file, "off").source) == ("/a/python", "/a")


def test_deploy_stages_merge_by_id_and_the_rest_is_replaced() -> None:
    """Stages merge by `stage_id` and key, a new stage is appended, other top-level keys are the arm's whole."""
    file = scenario(
        {
            "deploy": {
                "stages": [{"stage_id": 0, "block_size": 16, "devices": [0, 1]}, {"stage_id": 1, "block_size": 8}],
                "connectors": {"a": 1, "b": 2},
                "base_config": "x.yaml",
            }
        },
        {
            "deploy": {
                "stages": [{"stage_id": 2}, {"stage_id": 0, "enable_prefix_caching": True, "devices": [2]}],
                "connectors": {"a": 3},
            }
        },
    )
    assert resolve_arm(file, "on").deploy == {
        "stages": [
            {"stage_id": 0, "block_size": 16, "devices": [2], "enable_prefix_caching": True},
            {"stage_id": 1, "block_size": 8},
            {"stage_id": 2},
        ],
        "connectors": {"a": 3},
        "base_config": "x.yaml",
    }
    assert resolve_arm(scenario({}, {}), "on").deploy is None


def test_hash_depends_on_content_only() -> None:
    """The hash ignores the order of keys, changes with any value, and is that of a JSON-able dict."""
    one = resolve_arm(scenario({"args": {"a": 1, "b": True}}, {}), "on")
    same = resolve_arm(scenario({"args": {"b": True}}, {"args": {"a": 1}}), "on")
    other = resolve_arm(scenario({"args": {"a": 1, "b": False}}, {}), "on")
    assert one.sha256 == same.sha256
    assert one.sha256 != other.sha256
    assert json.loads(json.dumps(one.as_dict())) == one.as_dict()


def test_secrets_stay_out_of_the_record() -> None:
    """Variables and arguments whose names say secret are used and not recorded; lookalikes are recorded."""
    on = resolve_arm(
        scenario(
            {},
            {
                "env": {"HF_TOKEN": "x", "OMP_NUM_THREADS": "2"},
                "args": {"api-key": "x", "hf_token": "x", "tokenizer": "t", "max-num-batched-tokens": 8},
            },
        ),
        "on",
    )
    assert on.env["HF_TOKEN"] == "x"
    assert on.args["api-key"] == "x"
    assert on.as_dict()["env"] == {"HF_TOKEN": "...", "OMP_NUM_THREADS": "2"}
    assert on.as_dict()["args"] == {"api-key": "...", "hf-token": "...", "tokenizer": "t", "max-num-batched-tokens": 8}


def test_secrets_inside_values_stay_out_of_the_record() -> None:
    """User information of an address and a bearer's token are hidden wherever they stand; two such arms hash alike."""

    def arm(secret: str) -> ResolvedArm:
        url, bearer = f"https://me:{secret}@host/x", f"Authorization: Bearer {secret}"
        settings = {"env": {"PROXY": url}, "args": {"header": bearer}, "deploy": {"stages": [], "urls": [url]}}
        return resolve_arm(scenario({}, settings), "on")

    recorded = arm("hush").as_dict()
    assert recorded["env"] == {"PROXY": "https://...@host/x"}
    assert recorded["args"] == {"header": "Authorization: Bearer ..."}
    assert recorded["deploy"]["urls"] == ["https://...@host/x"]
    assert "hush" not in json.dumps(recorded)
    assert arm("hush").sha256 == arm("other").sha256


@pytest.mark.parametrize(
    ("server", "arm", "message"),
    [
        ({}, {"prefix_cache": "builtin"}, r"arms\.on\.prefix_cache: found 'builtin'; allowed .*bundled"),
        ({}, {"args": {"port": 1}}, r"arms\.on\.args: found port; allowed: .*free port"),
        ({"args": {"served_model_name": "x"}}, {}, r"server\.args: found served_model_name; .*scenario's `model`"),
        ({"args": {"a-b": 1, "a_b": 2}}, {}, r"server\.args: found a_b twice"),
        ({}, {"args": {"port=9": True}}, r"arms\.on\.args: found the name 'port=9'; allowed"),
        ({}, {"args": {"--": 1}}, r"arms\.on\.args: found the name '--'; allowed"),
        ({"args": {"a b": 1}}, {}, r"server\.args: found the name 'a b'; allowed"),
        ({"env": {"A=B": "1"}}, {}, r"server\.env: found the name 'A=B'; allowed: a name without ="),
        ({}, {"env": {"": "1"}}, r"arms\.on\.env: found the name ''; allowed"),
        ({}, {"deploy": {"stages": [{"block_size": 1}]}}, r"arms\.on\.deploy\.stages\[0\]: .*integer stage_id"),
        ({"deploy": {"stages": {"0": {}}}}, {}, r"server\.deploy\.stages: found dict; allowed: a list"),
        ({"deploy": {"stages": [{"stage_id": 0}, {"stage_id": 0}]}}, {}, r"stages\[1\]: found stage_id 0 twice"),
    ],
)
def test_bad_settings(server: dict[str, Any], arm: dict[str, Any], message: str) -> None:
    """Each unusable setting is one message with the key, what was found and what is allowed."""
    with pytest.raises(UsageError, match=message):
        resolve_arm(scenario(server, arm), "on")


def test_unknown_arm() -> None:
    """An arm that the scenario does not have is named, with those it has."""
    with pytest.raises(UsageError, match=r"no arm 'of'.*off, on"):
        resolve_arm(scenario({}, {}), "of")


def test_bundled_cache_and_other_kinds_choice() -> None:
    """tiny-omni takes the bundled cache; the choice of other kinds is theirs."""
    assert resolve_arm(scenario({}, {"prefix_cache": "bundled"}), "on").prefix_cache == "bundled"
    assert resolve_arm(scenario({}, {"prefix_cache": "builtin"}, "vllm-omni"), "on").prefix_cache == "builtin"


@pytest.mark.parametrize("name", get_args(ServerKind))
def test_every_kind_that_a_scenario_may_name_is_there(name: ServerKind) -> None:
    kind = server_kind(name)
    assert kind is not server_kind(name)
    assert kind.proves_cache is (name in ("vllm", "vllm-omni"))
