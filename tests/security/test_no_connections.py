"""Photos stay on the computer: the commands for a collection open no connection."""

import shutil
import socket

import pytest


@pytest.fixture
def connections(monkeypatch):
    """Addresses that something connects to, or looks up, from here on."""
    found = []

    def refuse(*arguments, **options):
        found.append(arguments)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return found


def test_the_commands_for_a_collection_connect_to_nothing(
    deepfish, shapes, tmp_path, connections
):
    shutil.copytree(shapes / "train", tmp_path / "photos")
    query = min((shapes / "test").rglob("*.jpg"))
    for command in (
        ("extract", "photos", "store", "--features", "x7,dW8"),
        ("search", "store", query),
        ("curate", "choose", "store", "-n", "3"),
        ("curate", "twins", "store"),
        ("curate", "odd", "store", "-n", "3"),
        ("label", "store", "--out", "labels.csv"),
        ("train", "store", "model", "--features", "x7"),
        ("predict", "model", query),
    ):
        ran = deepfish(*command)
        assert ran.code == 0, (command, ran.err)
    assert connections == []
