import subprocess
import sys
import tomllib
from pathlib import Path

import deepfishing


def test_importing_the_package_does_not_import_torch():
    code = (
        "import sys, deepfishing; print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["False", "False"]


def test_stages_after_extraction_do_not_import_torch():
    code = (
        "import sys, deepfishing as df;"
        "df.RankOne, df.gram, df.train_svm, df.evaluate, df.read_voc, df.write_report;"
        "print('torch' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "False"


def test_every_public_name_exists_and_is_listed():
    for name in deepfishing.__all__:
        assert getattr(deepfishing, name).__doc__
        assert name in dir(deepfishing)


def test_every_extra_installs_something():
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    assert [name for name, packages in extras.items() if not packages] == []
