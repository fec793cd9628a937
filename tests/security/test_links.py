"""Links in a store that somebody else has made."""

import json

import pytest

from deepfishing.errors import StoreError
from deepfishing.store import Store


@pytest.mark.parametrize("todo", ["remove", "rename"])
def test_a_journal_does_not_go_through_a_link_out_of_the_store(tmp_path, todo):
    """Else `deepfish extract` into such a store would delete or replace any file of its user."""
    store = Store(tmp_path / "store", {"network": "toy"})
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "precious").write_text("keep")
    (store.folder / "new").write_text("other")
    (store.folder / "x7").symlink_to(tmp_path / "home")
    facts = {"rename": {}, "remove": ["x7/precious"]}
    if todo == "rename":
        facts = {"rename": {"new": "x7/precious"}, "remove": []}
    (store.folder / ".journal-1").write_text(json.dumps(facts))
    with pytest.raises(StoreError, match="journal is damaged"), store.writing():
        pass
    assert (tmp_path / "home" / "precious").read_text() == "keep"
