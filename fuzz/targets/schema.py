"""Target: requests that schemathesis draws from the page's own OpenAPI description.

The description lacks the bodies, which the page reads itself: they are added from its models.
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir

from deepfishing.web.app import make_routes
from deepfishing.web.gallery import Example, Question
from fuzz.target import Run, Target
from fuzz.targets.pages import open_gallery, opened

_BODIES = {"/api/search": Question, "/api/scatter": Question, "/api/predict": Example}
_SEEDS, _BYTES = 40, 400


def description(folder: Path) -> dict[str, Any]:
    """The page as OpenAPI."""
    app = FastAPI()
    app.include_router(make_routes(open_gallery(folder)))
    found = app.openapi()
    for path, model in _BODIES.items():
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        found.setdefault("components", {}).setdefault("schemas", {}).update(
            schema.pop("$defs", {})
        )
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        found["paths"][path]["post"]["requestBody"] = body
    photo = {"schema": {"type": "string", "format": "binary"}}
    found["paths"]["/api/uploads"]["post"]["requestBody"] = {
        "content": {"application/octet-stream": photo}
    }
    return found


def _schema(folder: Path) -> Run:
    set_hypothesis_home_dir(folder)
    ask = opened(folder)
    with tempfile.TemporaryDirectory() as other:
        api = schemathesis.openapi.from_dict(description(Path(other)))
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    cases = st.one_of(*(api.as_strategy(generation_mode=mode) for mode in modes))

    @settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cases)
    def draw(case: Any) -> None:
        query = urlencode(case.query or {}, doseq=True, errors="surrogatepass").encode()
        body, headers = b"", [(b"host", b"127.0.0.1:8765")]
        for name, value in (case.headers or {}).items():
            headers.append(
                (name.lower().encode("latin-1", "replace"), str(value).encode())
            )
        if case.media_type == "application/json":
            headers.append((b"content-type", b"application/json"))
            body = json.dumps(case.body, default=str).encode()
        elif isinstance(case.body, bytes):
            body = case.body
        path = case.formatted_path.encode("utf-8", "surrogatepass")
        ask(case.method.upper(), path, query, headers, body)

    def run(data: bytes) -> None:
        draw.hypothesis.fuzz_one_input(data)

    return run


def _random() -> list[bytes]:
    rng = random.Random(0)
    return [rng.randbytes(_BYTES) for _ in range(_SEEDS)]


TARGETS = {
    "web-schema": Target(
        "requests drawn from the page's OpenAPI description", _schema, _random
    )
}
