"""Downloads: which addresses may be plain http, and what an error tells of the environment."""

import re

import pytest

from deepfishing.errors import FetchError
from deepfishing.fetch.download import DroppedError, ask
from deepfishing.fetch.place import CATALOGUE

REMOTES = [remote for item in CATALOGUE.values() for remote in item.files]


@pytest.mark.parametrize("remote", REMOTES, ids=lambda remote: remote.file)
def test_what_comes_unencrypted_has_a_checksum_of_full_length(remote):
    """Some publishers have no https. Nobody can change such a file on its way unnoticed."""
    whole = re.fullmatch(r"sha256:[0-9a-f]{64}|sha1:[0-9a-f]{40}", remote.digest)
    assert whole or remote.url.startswith("https://")


@pytest.mark.parametrize(
    "proxy",
    [
        "http:/user:hunter2@proxy.example:3128",
        "http://user:hunter2",
        "http://proxy.example:3128:hunter2",
        "http://user:hunter2@[proxy",
        "http://user:hunter2@127.0.0.1:9\x01",
        "socks5://user:hunter2@127.0.0.1:9",
        "http://user:hunter2@127.0.0.1:9",
    ],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_password_of_a_proxy_is_in_no_error(monkeypatch, proxy, scheme):
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, proxy)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    address = f"{scheme}://weights.invalid/f.bin"
    with pytest.raises((FetchError, DroppedError)) as told, ask(address, 0, timeout=5):
        pass
    assert "hunter2" not in str(told.value)
    assert "\n" not in str(told.value)
