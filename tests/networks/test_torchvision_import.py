"""torchvision and timm in a fresh interpreter, as a notebook of the environment imports them."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import deepfishing_torchvision as hook

SOURCE = Path(hook.__file__).parent
ROOT = Path(__file__).parents[2]


def python(code):
    """Run code in an interpreter that has not imported deepfishing."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_torchvision_and_timm_are_imported_in_a_fresh_interpreter(tmp_path):
    for name in ("deepfishing_torchvision.py", "deepfishing_torchvision.pth"):
        shutil.copy(SOURCE / name, tmp_path)
    # as Python reads site-packages
    start = f"import site; site.addsitedir({str(tmp_path)!r})"
    ran = python(f"{start}; import torchvision, timm; torchvision.models.resnet18()")
    assert ran.returncode == 0, ran.stderr


def test_python_starts_without_torch_and_finding_torchvision_does_not_load_it(tmp_path):
    ran = python(
        f"import sys; sys.path.insert(0, {str(SOURCE)!r}); import deepfishing_torchvision; "
        "from importlib.util import find_spec; assert find_spec('torchvision'); "
        "assert not find_spec('no_such_package'); assert 'torch' not in sys.modules"
    )
    assert ran.returncode == 0, ran.stderr


def test_both_files_are_part_of_the_installation():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    for source, target in included.items():
        assert (ROOT / source).is_file()
        # beside the package, where Python looks for .pth files
        assert "/" not in target
    assert {Path(target).suffix for target in included.values()} == {".py", ".pth"}
