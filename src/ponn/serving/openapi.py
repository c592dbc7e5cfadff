"""The server's routes in the words of OpenAPI 3.1, with the fields of a policy."""

from collections.abc import Mapping
from typing import Any

from ponn.log.profile import BOOLEAN, CATEGORY, DATE

Schema = dict[str, Any]
TYPES = {BOOLEAN: "boolean", CATEGORY: "string", DATE: "string"}
ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {"type": "string"},
        "row": {"type": ["integer", "null"], "description": "counted from 1"},
        "field": {"type": ["string", "null"]},
        "reason": {"type": "string"},
        "expected": {"type": "string"},
    },
}
WHY = {
    400: "The body is not JSON.",
    401: "The token is wrong or absent.",
    404: "There is no such thing.",
    408: "The body took too long to arrive.",
    413: "The body is too large, or has too many rows.",
    415: "The Content-Type is another.",
    421: "The server does not answer to this name.",
    422: "A value is not what was expected; row, field and reason say which and why.",
    503: "There is no policy, the decision log cannot be written, or too many large requests or files are waiting.",
}


def described_paths(about: Mapping[str, Any] | None, locked: bool) -> dict[str, Any]:
    """Every route; `about` is what GET /policy says, None where there is no policy."""
    labels = label_schema(about)
    routes = {
        ("post", "/recommend"): route(
            "Recommend an action for one row or for many",
            answers({200: content(advice_schema(labels))}, 400, 408, 413, 415, 422, 503),
            body=content(ask_schema(about, labels), ask_example(about)),
        ),
        ("post", "/outcome"): route(
            "Say how a decision turned out; only where the server keeps a decision log",
            answers({200: content(OUTCOME_ANSWER)}, 400, 404, 408, 413, 415, 422, 503),
            body=content(OUTCOME),
        ),
        ("post", "/score"): route(
            "A CSV file of rows in, the same rows with recommendations out",
            answers({200: CSV}, 400, 408, 413, 415, 422, 503),
            body=CSV,
        ),
        ("get", "/policy"): route("What the policy is and what it looks at", answers({200: content(OBJECT)}, 503)),
        ("get", "/healthz"): route("Is the process alive?", answers({200: content(OBJECT)})),
        ("get", "/readyz"): route(
            "Is a policy loaded, and can decisions be written?", answers({200: content(OBJECT), 503: content(OBJECT)})
        ),
        ("get", "/metrics"): route("Counters for Prometheus", answers({200: TEXT})),
        ("get", "/report"): route("The report, where one was given", answers({200: HTML}, 404)),
    }
    found: dict[str, Any] = {}
    for (method, path), one in routes.items():
        open_to_all = path in ("/healthz", "/readyz")
        if locked and not open_to_all:
            one = one | {"security": [{"token": []}], "responses": one["responses"] | answers({}, 401)}
        found.setdefault(path, {})[method] = one | {"responses": one["responses"] | answers({}, 421)}
    return found


def route(summary: str, responses: dict[str, Any], body: Any = None) -> dict[str, Any]:
    """One route."""
    found: dict[str, Any] = {"summary": summary, "responses": responses}
    return found if body is None else found | {"requestBody": {"required": True, "content": body}}


def answers(good: Mapping[int, Any], *bad: int) -> dict[str, Any]:
    """Answers by status."""
    found = {str(status): {"description": "as asked", "content": one} for status, one in good.items()}
    return found | {str(status): {"description": WHY[status], "content": content(ERROR)} for status in bad}


def content(schema: Schema, example: Any = None) -> dict[str, Any]:
    """JSON of a schema."""
    found: dict[str, Any] = {"schema": schema}
    return {"application/json": found if example is None else found | {"example": example}}


OBJECT: Schema = {"type": "object"}
TEXT = {"text/plain": {"schema": {"type": "string"}}}
HTML = {"text/html": {"schema": {"type": "string"}}}
CSV = {"text/csv": {"schema": {"type": "string"}}}
OUTCOME: Schema = {
    "type": "object",
    "required": ["id", "reward"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string", "description": "the id of a recommendation"},
        "reward": {"type": ["number", "boolean"]},
    },
}
OUTCOME_ANSWER: Schema = {
    "type": "object",
    "required": ["id", "reward", "notes"],
    "properties": {
        "id": {"type": "string"},
        "reward": {"type": "number"},
        "notes": {"type": "array", "items": {"type": "string"}},
    },
}


def label_schema(about: Mapping[str, Any] | None) -> Schema:
    """The labels of the actions."""
    return {"enum": list(about["actions"])} if about else {}


def row_schema(about: Mapping[str, Any] | None) -> Schema:
    """A row: every feature may be left out, which counts as missing."""
    if about is None:
        return OBJECT
    eligibility = about["eligibility"] or {"fields": [], "column": None}
    fields = {one["name"]: feature_schema(one) for one in (*about["features"], *eligibility["fields"])}
    if eligibility["column"] is not None:
        fields[eligibility["column"]] = fields[eligibility["column"]] | ACTIONS_THERE
    return {"type": "object", "additionalProperties": False, "properties": fields}


ACTIONS_THERE: Schema = {
    "type": ["string", "array", "null"],
    "description": "the actions that are available: their labels with | between them, or a list; null: all",
}


def feature_schema(feature: Mapping[str, Any]) -> Schema:
    """A feature; values beyond those of training are allowed, and noted in the answer."""
    found: Schema = {"type": [TYPES.get(feature["kind"], "number"), "null"]}
    if feature["kind"] == DATE:
        found["format"] = "date"
    told = feature["levels"] or (None if feature["low"] is None else [feature["low"], feature["high"]])
    return found | {"examples": told} if told else found


def ask_schema(about: Mapping[str, Any] | None, labels: Schema) -> Schema:
    """The body of POST /recommend."""
    row, some = row_schema(about), {"type": "array", "minItems": 1, "items": labels}
    eligible: Schema = {"anyOf": [{"type": "null"}, some, {"type": "array", "minItems": 1, "items": some}]}
    properties = {
        "row": row,
        "rows": {"type": "array", "minItems": 1, "items": row},
        "eligible": eligible | {"description": "actions that may be served: one list for all rows, or one per row"},
        "reasons": {"type": "boolean", "default": False},
        "probabilities": {"type": "boolean", "default": True},
    }
    one_of = [
        {"required": ["row"], "not": {"required": ["rows"]}},
        {"required": ["rows"], "not": {"required": ["row"]}},
    ]
    return {"type": "object", "additionalProperties": False, "properties": properties, "oneOf": one_of}


def ask_example(about: Mapping[str, Any] | None) -> Any:
    """A body to try."""
    return {"row": about["examples"][0]} if about and about["examples"] else None


def advice_schema(labels: Schema) -> Schema:
    """The answer of POST /recommend."""
    number, maybe = {"type": "number"}, {"type": ["number", "null"]}
    one = {
        "id": {"type": "string"},
        "action": labels,
        "probability": number | {"description": "h(a | x) among the eligible actions"},
        "runner_up": {"anyOf": [labels, {"type": "null"}]},
        "expected_reward": maybe,
        "expected_low": maybe,
        "expected_high": maybe,
        "supported": {"type": ["boolean", "null"]},
        "served": number | {"description": "the probability with which this action was drawn; 1 for the most probable"},
        "probabilities": {"type": "object", "additionalProperties": number},
        "reasons": {"type": ["object", "null"]},
        "notes": {"type": "array", "items": {"type": "string"}},
    }
    needed = [name for name in one if name != "probabilities"]
    items = {"type": "object", "properties": one, "required": needed}
    properties = {
        "policy": {"type": "string"},
        "id": {"type": "string"},
        "recommendations": {"type": "array", "items": items},
    }
    return {"type": "object", "required": list(properties), "properties": properties}
