"""All benchmarks: `make bench`. Prints each ratio and writes benchmarks/results.json."""

from __future__ import annotations

import json
import os
import platform
import sys
from dataclasses import asdict
from pathlib import Path

import gradient_cost
import torch


def main() -> None:
    quick = "--quick" in sys.argv
    machine = f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}"
    print(machine)
    rows = gradient_cost.run(quick)
    for row in rows:
        print(row)
    out = Path(__file__).parent / "results.json"
    out.write_text(json.dumps({"machine": machine, "rows": [asdict(r) for r in rows]}, indent=1))


if __name__ == "__main__":
    main()
