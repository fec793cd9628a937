import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deepfishing.errors import StoreError
from deepfishing.search.collection import Collection
from deepfishing.store.contents import Contents
from deepfishing.store.manifest import INDEX, SCHEMA


@pytest.mark.parametrize("name", ["id", "path", "factors"])
def test_an_index_without_what_every_row_has_is_damaged(make_store, name):
    """Found by `make fuzz`, store-index: a filter by path was a traceback."""
    store = make_store(10)
    contents = Contents.of(store, ["x7"])
    assert len(Collection.of(store, contents, ["x7"])) == 10
    table = pq.read_table(store.folder / INDEX)
    values = [None, *table.column(name).to_pylist()[1:]]
    field = SCHEMA.field(name)
    table = table.set_column(
        SCHEMA.names.index(name), field, pa.array(values, field.type)
    )
    pq.write_table(table, store.folder / INDEX)
    with pytest.raises(StoreError, match=f"index is damaged.*{name}"):
        Collection.of(store, contents, ["x7"])
