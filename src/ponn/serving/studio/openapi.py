"""The studio's routes in the words of OpenAPI 3.1: which answers each of them gives."""

from typing import Any

from ponn.serving.openapi import CSV, ERROR, HTML, OBJECT, Schema, advice_schema, answers, ask_schema, content, route

LIST: Schema = {"type": "array", "items": OBJECT}
BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
WHY = {
    400: "The client left, or the body is not JSON.",
    403: "A page of another site asked.",
    404: "There is no such file, job, or result of a job.",
    408: "The body took too long to arrive.",
    409: "This job is in a state in which that cannot be done, or its policy is damaged.",
    413: "The body, or what it takes to read the file, is more than is allowed.",
    415: "The Content-Type is another.",
    422: "A value or a file is not what was expected.",
    503: "Too much is being read; Retry-After says when to come again.",
    507: "There is no room on the disk.",
}
READ = (400, 404, 413, 422, 503)
ANSWERS: dict[tuple[str, str], tuple[dict[str, Any], tuple[int, ...]]] = {
    ("get", "/studio/options"): (content(OBJECT), ()),
    ("get", "/studio/files"): (content(LIST), ()),
    ("post", "/studio/files"): (content(OBJECT), (400, 408, 413, 422, 507)),
    ("get", "/studio/files/{name}"): (content(OBJECT), READ),
    ("post", "/studio/check"): (content(OBJECT), (*READ, 408)),
    ("post", "/studio/jobs"): (content(OBJECT), (400, 404, 408, 413, 422, 507)),
    ("get", "/studio/jobs"): (content(LIST), ()),
    ("get", "/studio/jobs/{id}"): (content(OBJECT), (404,)),
    ("post", "/studio/jobs/{id}/restart"): (content(OBJECT), (404, 409)),
    ("post", "/studio/jobs/{id}/cancel"): (content(OBJECT), (404, 409)),
    ("get", "/studio/jobs/{id}/report"): (HTML, (404,)),
    ("get", "/studio/jobs/{id}/policy"): (BYTES, (404,)),
    ("get", "/studio/jobs/{id}/about"): (content(OBJECT), (404, 409)),
    ("post", "/studio/jobs/{id}/recommend"): (content(advice_schema({})), (400, 404, 408, 409, 413, 415, 422)),
    ("post", "/studio/jobs/{id}/score"): (CSV, (400, 404, 408, 409, 413, 415, 422, 503)),
}
BODIES = {
    "/studio/files": BYTES,
    "/studio/jobs/{id}/recommend": content(ask_schema(None, {})),
    "/studio/jobs/{id}/score": CSV,
}
ID = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}


def with_studio(found: dict[str, Any]) -> dict[str, Any]:
    """A description of all routes, in which those of the studio are complete."""
    for (method, path), (good, bad) in ANSWERS.items():
        operation = found["paths"].setdefault(path, {}).setdefault(method, route(path, {}) | {"parameters": [ID]})
        always = (421,) if method == "get" else (403, 421)
        operation["responses"] = told({200: good}, *sorted({*bad, *always}))
        if method == "post" and path in BODIES:
            operation["requestBody"] = {"required": True, "content": BODIES[path]}
    return found


def told(good: dict[int, Any], *bad: int) -> dict[str, Any]:
    """Answers by status, in the studio's words."""
    found = answers(good)
    for status in bad:
        why = WHY.get(status, "The studio does not answer to this name.")
        found[str(status)] = {"description": why, "content": content(ERROR)}
    return found
