"""Run a session with what Windows lacks taken away: `python without_posix.py FOLDER`.

Removed before anything of the package is imported, here and in the processes that the studio
starts: the modules fcntl, resource, pwd and their like; os.fork, os.uname, os.sched_getaffinity,
os.sysconf and others; signals; mmap.MAP_PRIVATE with its relatives; the C library. A file that this
process has open or mapped can neither be renamed nor replaced nor removed, a name that Windows does
not take cannot be opened, and text without an encoding is an error, for it is not UTF-8 there.
"""

import builtins
import ctypes
import io
import json
import mmap
import os
import signal
import socket
import sys
import threading
import time
import urllib.parse
import urllib.request
import warnings
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

# Linux builds of these look at the kernel while they are imported, their Windows builds do not
LIBRARIES = ("faiss", "numpy", "psutil", "pyarrow.parquet", "sklearn.svm", "torch")
MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog")
FUNCTIONS = (
    "fork",
    "forkpty",
    "uname",
    "sched_getaffinity",
    "sysconf",
    "getuid",
    "geteuid",
    "nice",
    "statvfs",
    "getloadavg",
    "killpg",
    "setsid",
    "mkfifo",
    "pread",
    "pwrite",
    "posix_fallocate",
)
SIGNALS = ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "alarm", "setitimer")
RESERVED = {
    "con",
    "prn",
    "aux",
    "nul",
    *(f"{port}{n}" for port in ("com", "lpt") for n in "123"),
}
LONGEST = 180  # characters below the folder; Windows has 260 for the whole


def take_away(folder):
    for name in LIBRARIES:
        import_module(name)
    for name in MODULES:
        sys.modules[name] = None  # `import` then raises ImportError
    for name in FUNCTIONS:
        delattr(os, name)
    for name in SIGNALS:
        delattr(signal, name)
    for name in dir(mmap):
        if name.startswith(("MAP_", "PROT_", "MADV_")):
            delattr(mmap, name)
    ctypes.CDLL = without_c_library(ctypes.CDLL)
    os.rename, os.replace = checked(os.rename, (0, 1)), checked(os.replace, (0, 1))
    os.unlink, os.remove = checked(os.unlink, (0,)), checked(os.remove, (0,))
    builtins.open = io.open = named(io.open, folder)
    os.open, os.mkdir = named(os.open, folder), named(os.mkdir, folder)
    warnings.filterwarnings("error", category=EncodingWarning, module="deepfishing")


def without_c_library(load):
    def run(name, *arguments, **options):
        if name is None:
            raise TypeError("a library must have a name")
        return load(name, *arguments, **options)

    return run


def take_away_in_processes(folder):
    """Have the processes that are started from here lack the same."""
    start = folder / "start"
    start.mkdir()
    here = str(Path(__file__).parent)
    lines = (
        "import sys",
        "from pathlib import Path",
        f"sys.path.insert(0, {here!r})",
        "from without_posix import take_away",
        f"take_away(Path({str(folder)!r}))",
    )
    (start / "sitecustomize.py").write_text("\n".join(lines), "utf-8")
    os.environ["PYTHONPATH"] = str(start)
    os.environ["PYTHONWARNDEFAULTENCODING"] = "1"


def checked(function, places):
    def run(*arguments, **options):
        for place in places:
            if is_in_use(arguments[place]):
                error = PermissionError(
                    13, "The process cannot access the file", arguments[place]
                )
                error.winerror = 32
                raise error
        return function(*arguments, **options)

    return run


def is_in_use(path):
    real = os.path.realpath(path)
    for link in Path("/proc/self/fd").iterdir():
        if link.is_symlink() and str(link.readlink()) == real:
            return True
    maps = Path("/proc/self/maps").read_text("utf-8").splitlines()
    return any(line.endswith(f" {real}") for line in maps)


def named(function, folder):
    def run(path, *arguments, **options):
        if isinstance(path, str | os.PathLike) and Path(path).is_relative_to(folder):
            refuse_name(Path(path).relative_to(folder))
        return function(path, *arguments, **options)

    return run


def refuse_name(path):
    if len(str(path)) > LONGEST:
        raise OSError(22, "The filename is too long", str(path))
    for part in path.parts:
        stem = part.partition(".")[0].lower()
        if set(part) & set('<>:"|?*\\') or stem in RESERVED or part[-1] in ". ":
            raise OSError(22, "The filename or directory name is incorrect", str(path))


def import_everything():
    import deepfishing

    for found in walk_packages(deepfishing.__path__, "deepfishing."):
        import_module(found.name)


def deepfish(*arguments):
    from deepfishing.cli import main

    sys.argv = ["deepfish", *map(str, arguments)]
    try:
        main()
    except SystemExit as stop:
        if stop.code:
            raise AssertionError(f"{arguments} ended with {stop.code}") from None


def label(store):
    from deepfishing.store import Store
    from deepfishing.store.label_log import Change, LabelLog

    log = LabelLog.open(store)
    first, second = Store.open(store).usable()[:2]
    log.append([Change(first.sha256, first.id, ("pear",))], origin="test")
    log.append([Change(second.sha256, second.id, ("apple",))], origin="test")
    log.undo(origin="test")
    assert LabelLog.open(store).current()[first.sha256] == ("pear",)


def studio(photos):
    """Open a folder in the studio, label a photo, look for copies, and end it by Ctrl-C."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    problems = []

    def visit():
        try:
            look_around(f"http://127.0.0.1:{port}")
        except Exception as problem:
            problems.append(problem)
        signal.raise_signal(signal.SIGINT)

    visitor = threading.Thread(target=visit)
    visitor.start()
    deepfish("studio", photos, "--no-open", "--port", port)
    visitor.join(timeout=60)
    if problems:
        raise problems[0]


def look_around(address):
    def ask(path, asked=None):
        body = None if asked is None else json.dumps(asked).encode()
        request = urllib.request.Request(f"{address}/api/{path}", body)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def wait_for(path, is_ready):
        for _ in range(1200):
            try:
                state = ask(path)
            except OSError:  # it has not started
                state = {}
            if is_ready(state):
                return state
            time.sleep(0.1)
        raise AssertionError(f"{path} stays {state}")

    wait_for("store", lambda state: "images" in state)
    photo = ask("images")["images"][0]["id"]
    ask("labels", {"ids": [photo], "labels": ["pear"]})
    assert ask(f"labels/of?id={urllib.parse.quote(photo)}")["labels"] == ["pear"]
    ask("duplicates/find", {})
    wait_for("duplicates", lambda state: state.get("found"))


def session(folder):
    import_everything()
    photos, store, model = folder / "photos", folder / "store", folder / "model"
    deepfish(
        "extract", photos, store, "--features", "x7,dW8,dW:_blocks.15._project_conv@8x8"
    )
    deepfish("search", store, min(photos.rglob("*.jpg")), "--index")
    label(store)
    deepfish("train", store, model, "--features", "x7")
    deepfish("train", store, model, "--features", "dW8")  # replaces the first
    deepfish("predict", model, photos)
    studio(photos)
    for path in sorted(photos.rglob("*.jpg"))[:2]:
        path.unlink()
    # while a search has the shards mapped, as a page does
    from deepfishing.search import Searcher

    searcher = Searcher(store, "x7", "index")
    deepfish("extract", photos, store, "--features", "x7,dW8", "--prune")
    del searcher
    deepfish("extract", photos, store, "--features", "x7,dW8")
    deepfish("search", store, min(photos.rglob("*.jpg")), "--index")
    deepfish("curate", "twins", store)
    deepfish("curate", "map", store, "--out", folder / "map.html")
    deepfish("export", store, folder / "features.parquet")
    deepfish("store", "verify", store)
    deepfish("doctor")
    from deepfishing.util import machine

    assert machine.cores() > 0
    assert machine.memory() > 1 << 20


if __name__ == "__main__":
    place = Path(sys.argv[1]).resolve()
    take_away(place)
    take_away_in_processes(place)
    session(place)
