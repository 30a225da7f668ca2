"""`microrl push`: a run's export arrives at the hub as a whole, with a card that names no path of this machine."""

import json

import pytest
from uploads import Uploads, taking

from microrl.commands.export import push
from microrl.config import resolve
from microrl.errors import UserError
from microrl.models import hub
from microrl.run.folder import RunFolder


@pytest.fixture
def run(wares):
    """A run on a base in a local folder."""
    return wares / "done"


@pytest.fixture
def at_hub(monkeypatch):
    """Has this process push to the hub at an address, with a token."""
    monkeypatch.setattr(hub, "reachable", hub.reachable.__wrapped__)  # asked anew each time

    def use(address, token):
        for name, value in {"ENDPOINT": address, "HF_HUB_OFFLINE": False}.items():
            monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
        for name, value in {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0", "HF_TOKEN": token, "HF_HOME": "/nonexistent"}.items():
            monkeypatch.setenv(name, value)

    return use


@pytest.mark.slow(minutes=0.4)
@pytest.mark.one_of_each
def test_a_run_arrives_whole_with_a_card_without_paths(microrl, inside, at_hub, run, tmp_path):
    uploads = Uploads("hf_secret")
    with taking(uploads) as address:
        environment = {
            "HF_ENDPOINT": address,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_OFFLINE": "0",
            "HF_HOME": str(tmp_path / "none"),
        }
        words = ["push", "me/adapter", run, "--as", "full", "--json"]
        done = microrl(*words, "--private", HF_TOKEN="hf_secret", **environment)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert f"uploading {found['bytes'] / 1e6:,.1f} MB to me/adapter" in done.stderr
        assert found["hub_id"] == "me/adapter" and found["url"].endswith("/commit/" + "1" * 40)
        assert uploads.private == {"me/adapter": True} and {*found["files"]} == uploads.files.keys()
        assert sum(map(len, uploads.files.values())) == found["bytes"]
        card = uploads.files["README.md"].decode()
        assert 'from_pretrained("me/adapter")' in card and "vllm serve me/adapter" in card and "# adapter\n" in card
        assert str(tmp_path.parents[1]) not in card and "/tmp" not in card and str(run) not in card
        at_hub(address, "hf_other")
        refused = inside(*words)
        assert (
            refused.returncode == 2
            and "the hub refused me/adapter: status 401, " in refused.stderr
            and "hf auth login" in refused.stderr
        )
        at_hub(address, "")
        without = inside(*words)
        assert without.returncode == 2 and "there is no token" in without.stderr
        at_hub(address, "hf_secret")
        local = inside("push", "me/adapter", run)
        assert local.returncode == 2 and "others could not load it" in local.stderr and "--as full" in local.stderr


@pytest.mark.parametrize(
    ("private", "said"),
    [
        ({}, "has no trained adapter yet"),  # looked for after the repository was
        ({"me/adapter": True}, "has no trained adapter yet"),
        ({"me/adapter": False}, "me/adapter exists already and is public"),
    ],
)
def test_private_is_refused_where_the_repository_is_public(private, said, run_folder, at_hub):
    uploads = Uploads("hf_secret", private)
    (run_folder / "best").mkdir()
    run = RunFolder.open(run_folder)
    with taking(uploads) as address:
        at_hub(address, "hf_secret")
        with pytest.raises(UserError, match=said) as refused:
            push(resolve(["quickstart"]), run, None, "me/adapter", form="lora", dtype=None, private=True)
    assert not uploads.created and not uploads.files
    assert "public" not in said or f"{address}/me/adapter/settings, or push to another name" in refused.value.hint


@pytest.mark.parametrize(
    "name", ["adapter", "me/", "me/a b", "me/../x", "me/a--b", "me/x..y", "me/x.git", "https://huggingface.co/me/x"]
)
def test_a_name_that_no_repository_has_is_refused(inside, name):
    done = inside("push", name)
    assert done.returncode == 2 and "for example: microrl push me/my-adapter" in done.stderr


def test_without_a_network_it_says_so(inside, run_folder, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = inside("push", "me/adapter", run_folder)
    assert done.returncode == 2 and "the hub cannot be reached" in done.stderr


@pytest.fixture
def run_folder(tmp_path):
    import made_run

    path = tmp_path / "runs" / "mine"
    made_run.make(path, steps=1)
    return path
