import os
import socket
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.servers.launch import Launch, free_port, port_is_free


def launch(env: dict[str, str]) -> Launch:
    return Launch(("x",), env, Path(), Path("t/server.log"), "http://127.0.0.1:1", 1, "m")


def test_child_environment_is_inherited_with_ours_over_it() -> None:
    """The server inherits everything; our variables win."""
    environment = launch({"HOME": "/elsewhere", "NEW": "1"}).child_env()
    assert environment == {**os.environ, "HOME": "/elsewhere", "NEW": "1"}


def test_recorded_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record holds our variables and the inherited ones that matter, never a secret or a password in an address."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("VLLM_USE_V1", "1")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    monkeypatch.setenv("EDITOR", "vi")
    recorded = launch(
        {
            "MINE": "1",
            "VLLM_USE_V1": "0",
            "MY_PASSWORD": "secret",
            "aws_secret_access": "secret",
            "CREDENTIALS": "secret",
            "HF_ENDPOINT": "https://user:secret@host/path",
        }
    ).recorded_env()
    assert recorded["CUDA_VISIBLE_DEVICES"] == "3"
    assert recorded["VLLM_USE_V1"] == "0"
    assert recorded["MINE"] == "1"
    assert recorded["HF_ENDPOINT"] == "https://...@host/path"
    assert "EDITOR" not in recorded
    assert not [name for name, value in recorded.items() if "secret" in value]


def test_free_port() -> None:
    """A free port can be listened on, and is no longer free when it is."""
    port = free_port()
    assert port_is_free(port)
    with socket.create_server(("127.0.0.1", port)):
        assert not port_is_free(port)
    assert port_is_free(port)


def test_recorded_arguments_hide_secrets() -> None:
    """The value behind `--api-key` reaches no record; `--tokenizer` is none."""
    argv = ("serve", "--api-key", "hush", "--tokenizer", "t", "--flag", "--hf-token", "hush")
    recorded = Launch(argv, {}, Path(), Path("t/server.log"), "http://127.0.0.1:1", 1, "m").recorded_argv()
    assert recorded == ("serve", "--api-key", "...", "--tokenizer", "t", "--flag", "--hf-token", "...")


def test_references_are_looked_up_at_the_start_and_never_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server gets the variable's value; what is recorded shows the reference or nothing."""
    monkeypatch.setenv("MINE", "hush")
    argv = ("serve", "--label", "x-${MINE}", "--api-key", "${MINE}")
    env = {"OMP_LABEL": "${MINE}", "HF_TOKEN": "${MINE}"}
    started = Launch(argv, env, Path(), Path("t/server.log"), "http://127.0.0.1:1", 1, "m")
    assert started.child_argv() == ("serve", "--label", "x-hush", "--api-key", "hush")
    assert (started.child_env()["OMP_LABEL"], started.child_env()["HF_TOKEN"]) == ("hush", "hush")
    assert started.recorded_argv() == ("serve", "--label", "x-${MINE}", "--api-key", "...")
    assert started.recorded_env()["OMP_LABEL"] == "${MINE}"
    assert started.recorded_env()["HF_TOKEN"] == "..."
    monkeypatch.delenv("MINE")
    with pytest.raises(UsageError, match=r"env OMP_LABEL: found \$\{MINE\}, which is not set"):
        started.child_env()


@pytest.mark.parametrize(
    "name", ["DB_PASS", "BASIC_AUTH", "AWS_CREDENTIALS", "SESSION_COOKIE", "my_bearer", "HF_TOKEN"]
)
def test_names_of_secrets(name: str) -> None:
    """A variable with such a name is recorded without its value."""
    assert launch({name: "hush"}).recorded_env()[name] == "..."


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "GIT_AUTHOR_NAME", "BYPASS", "PASSTHROUGH"])
def test_names_that_only_look_like_secrets(name: str) -> None:
    """A variable that changes what is measured keeps its value."""
    assert launch({name: "1"}).recorded_env()[name] == "1"
