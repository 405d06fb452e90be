"""Which weights were served, from folders in the form of the hub and of a download."""

import hashlib

import pytest

from harness.weights import model_facts

COMMIT = "0123456789abcdef" * 2 + "01234567"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def fill(folder, index=b'{"weight_map": {}}'):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_bytes(b'{"model_type": "x"}')
    (folder / "model-1.safetensors").write_bytes(b"x" * 100)
    (folder / "model-2.safetensors").write_bytes(b"y" * 50)
    if index is not None:
        (folder / "model.safetensors.index.json").write_bytes(index)
    return folder


def test_a_folder_is_known_by_its_config_index_and_sizes(tmp_path):
    """Digests are those that sha256sum prints; the second one is over the index's digest and each name and size."""
    folder = fill(tmp_path / "model")
    found = model_facts("name", str(folder), {}, home=tmp_path)
    assert (found.id, found.path, found.revision) == ("name", str(folder), None)
    assert found.config_sha256 == sha256(b'{"model_type": "x"}')
    lines = [sha256(b'{"weight_map": {}}'), "model-1.safetensors 100", "model-2.safetensors 50"]
    assert found.weights_sha256 == sha256("\n".join(lines).encode())
    assert found.weights_bytes == 150


@pytest.mark.parametrize("change", ["config", "index", "size", "file"])
def test_other_weights_have_other_digests(tmp_path, change):
    """Another configuration, index, size or file is another model."""
    one, two = fill(tmp_path / "one"), fill(tmp_path / "two")
    first = model_facts("m", str(one), {}, home=tmp_path)
    same = model_facts("m", str(two), {}, home=tmp_path)
    assert (first.config_sha256, first.weights_sha256) == (same.config_sha256, same.weights_sha256)
    file = {"config": "config.json", "index": "model.safetensors.index.json", "size": "model-2.safetensors"}
    (two / file.get(change, "more.safetensors")).write_bytes(b"{}")
    other = model_facts("m", str(two), {}, home=tmp_path)
    assert (first.config_sha256, first.weights_sha256) != (other.config_sha256, other.weights_sha256)


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME", None])
def test_a_snapshot_of_the_hub_has_its_revision(tmp_path, variable):
    """The cache is where the server's environment says; its branch leads to the commit, its links to the sizes."""
    hub = {"HF_HUB_CACHE": tmp_path, "HF_HOME": tmp_path / "hub", None: tmp_path / ".cache/huggingface/hub"}[variable]
    place = hub / "models--org--name"
    fill(place / "snapshots" / COMMIT)
    blob = place / "blobs" / "b"
    blob.parent.mkdir()
    blob.write_bytes(b"z" * 70)
    (place / "snapshots" / COMMIT / "linked.safetensors").symlink_to(blob)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(COMMIT)
    environment = {} if variable is None else {variable: str(tmp_path)}
    found = model_facts("org/name", None, environment, home=tmp_path)
    assert (found.revision, found.weights_bytes) == (COMMIT, 220)
    assert model_facts("org/name", None, environment, COMMIT, home=tmp_path).revision == COMMIT
    assert model_facts("org/name", None, environment, "other", home=tmp_path).revision is None


def test_a_model_that_is_not_here_is_only_a_name(tmp_path):
    """What cannot be looked at is null, not guessed."""
    found = model_facts("org/absent", None, {"HF_HOME": str(tmp_path)}, home=tmp_path)
    assert found.model_dump(exclude={"id"}) == dict.fromkeys(
        ("path", "revision", "config_sha256", "weights_sha256", "weights_bytes")
    )


def test_a_folder_without_weights_has_no_digest_of_them(tmp_path):
    """An empty digest would be equal everywhere."""
    (tmp_path / "config.json").write_text("{}")
    found = model_facts("m", str(tmp_path), {}, home=tmp_path)
    assert (found.weights_sha256, found.weights_bytes) == (None, None)
    assert found.config_sha256 == sha256(b"{}")
