import numpy as np

from deepfishing import curate
from deepfishing.curate.neighbours import open_searcher
from deepfishing.store import Store


def test_every_command_is_a_function_of_a_store(picture, store_of, tmp_path):
    folder = tmp_path / "photos"
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
    paths = [
        folder / name / f"{name}{n}.png" for name in ("cat", "dog") for n in range(3)
    ]
    for n, path in enumerate(paths):
        picture(n).save(path)
    store = store_of(paths, list(range(6)))
    for opened in (store, str(store), Store.open(store), open_searcher(store)):
        assert curate.twins(opened).groups == ()
        assert len(curate.odd(opened)) == 6
        assert len(curate.choose(opened, 2)) == 2
        assert curate.map(opened, 2).places.shape == (6, 2)
        labels = [one.given for one in curate.labels(opened, _table(tmp_path, paths))]
        assert set(labels) <= {("cat",), ("dog",)}
    assert curate.twins(store, store).groups == ()
    assert np.isfinite([one.score for one in curate.odd(store, features="x7")]).all()


def test_a_store_has_a_length_and_its_features_by_name(picture, store_of, tmp_path):
    path = tmp_path / "a.png"
    picture(1).save(path)
    store = Store(str(store_of([path], [1])))
    assert len(store) == 1
    assert "x7" in store
    assert "x7" in list(store)
    assert store["x7"].shape[0] == len(store)


def _table(folder, paths):
    table = folder / "labels.csv"
    rows = [f"{path},{path.parent.name}" for path in paths]
    table.write_text("\n".join(["path,label", *rows]))
    return table
