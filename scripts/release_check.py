"""Is what was built usable where there is no source? Called by `make release-check`.

Comes in: the pinned torch, and a folder with a wheel and an sdist. Both are looked into; the wheel
is installed into a fresh environment outside the tree, and the demo and the docs' commands run
there from another folder. Goes out: 0, or the first command that failed.
"""

import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
# beside those of the docs that are marked to run, without those that need timm or torchvision
TOUR = """
deepfish --version
deepfish doctor
deepfish extract photos store
deepfish store info store
deepfish search store QUERY -n 3
deepfish predict model QUERY
deepfish export-model model model.onnx
deepfish report demo
"""


def check_contents(wheel: Path, sdist: Path) -> None:
    """The licences, the page and the photographs are inside, and nothing of a machine's own."""
    names = zipfile.ZipFile(wheel).namelist()
    for part in (
        "py.typed",
        "web/static/index.html",
        "images/groceries",
        ".dist-info/licenses/LICENSE",
        "deepfishing_torchvision.pth",
    ):
        if not any(part in name for name in names):
            sys.exit(f"release-check: {wheel.name} has no {part}")
    with tarfile.open(sdist) as archive:
        inside = archive.getnames()
    strange = [
        name
        for name in (*names, *inside)
        if re.search(r"\.venv|__pycache__|\.git/", name)
    ]
    if strange:
        sys.exit(f"release-check: {strange[0]} must not be in a release")


def docs_commands() -> list[str]:
    """Those that are marked to run."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    blocks = (
        b
        for p in pages
        for b in re.findall(r"<!-- run -->\n```\n(.*?)```", p.read_text(), re.S)
    )
    lines = [line for block in blocks for line in block.splitlines()]
    return [
        line for line in lines if "timm:" not in line and "torchvision:" not in line
    ]


def main(torch: str, dist: Path) -> None:
    """Check what is in a folder."""
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    check_contents(wheel, sdist)
    with tempfile.TemporaryDirectory(prefix="release-") as name:
        place = Path(name)
        venv.create(place / "env", with_pip=True)
        bin_ = place / "env" / "bin"
        work = place / "elsewhere"
        work.mkdir()
        environment = {
            k: v
            for k, v in os.environ.items()
            if k not in ("PYTHONPATH", "VIRTUAL_ENV")
        }
        environment |= {
            "DEEPFISHING_HOME": str(place / "home"),
            "PATH": f"{bin_}:{os.environ['PATH']}",
        }

        def run(command: str) -> None:
            print(f"$ {command}", flush=True)
            done = subprocess.run(shlex.split(command), cwd=work, env=environment)  # noqa: S603
            if done.returncode:
                sys.exit(f"release-check: {command} ended with {done.returncode}")

        pip = "python -m pip --disable-pip-version-check install --quiet"
        run(f"{pip} {torch}")
        run(f"{pip} '{wheel.resolve()}[onnxruntime]'")
        run("python -m pip check")
        code = "import deepfishing, sys; sys.exit('site-packages' not in deepfishing.__file__)"
        run(f"python -c {shlex.quote(code)}")
        run("deepfish reproduce groceries --out demo")
        code = "import deepfishing; deepfishing.load_groceries('.', 28, 14)"
        run(f"python -c {shlex.quote(code)}")
        (work / "groceries" / "train").rename(work / "photos")
        query = str(next((work / "photos").rglob("*.jpg")).relative_to(work))
        for command in [*docs_commands(), *TOUR.strip().splitlines()]:
            run(command.replace("QUERY", shlex.quote(query)))
    print("release-check: all commands passed outside the tree")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
