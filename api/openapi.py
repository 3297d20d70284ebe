"""What the OpenAPI description needs beyond what FastAPI finds: the problem documents of every route."""

from typing import Any

from fastapi import FastAPI

from api.errors import PROBLEMS
from api.schemas.problems import PROBLEM_MEDIA_TYPE, Problem

_REFERENCE = {"$ref": "#/components/schemas/Problem"}
JSON_SPEC_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/JobSpec"}}},
    }
}


def problems(*codes: str) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` of a route that may answer with these codes; a key is needed everywhere, so 401 is added."""
    found: dict[int | str, dict[str, Any]] = {}
    for code in ("unauthorized", *codes):
        kind = PROBLEMS[code]
        text = f"{kind.title} (`{code}`)"
        if kind.status in found:
            text = f"{found[kind.status]['description']}; {text}"
        found[kind.status] = {"description": text, "content": {PROBLEM_MEDIA_TYPE: {"schema": _REFERENCE}}}
    return found


def install_schema(app: FastAPI) -> None:
    """Describe every error as the problem document that it is, also those that FastAPI describes in its own form."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        schema = describe()
        schemas = schema["components"]["schemas"]
        if "Problem" not in schemas:
            own = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(own.pop("$defs", {}))
            schemas["Problem"] = own
            _drop_foreign_errors(schema)
        return schema

    app.openapi = openapi  # type: ignore[method-assign]


def _drop_foreign_errors(schema: dict[str, Any]) -> None:
    """FastAPI adds its own 422 to each route with a parameter, even where no text is refused."""
    for methods in schema["paths"].values():
        for operation in methods.values():
            if "HTTPValidationError" in str(operation["responses"].get("422", "")):
                del operation["responses"]["422"]
    for name in ("HTTPValidationError", "ValidationError"):
        schema["components"]["schemas"].pop(name, None)
