"""Examples of answers and of bodies, put together from those of the fields."""

from __future__ import annotations

from typing import Any

_JSON = "application/json"
_MOST_DEPTH = 8
_SAMPLES: dict[str, Any] = {"boolean": True, "integer": 1, "number": 0.5, "null": None}


def add_examples(document: dict[str, Any]) -> None:
    """Give every JSON answer and body of an OpenAPI ``document`` an example, where it has none."""
    schemas = document.get("components", {}).get("schemas", {})
    for operations in document["paths"].values():
        for operation in operations.values():
            if not isinstance(operation, dict):
                continue
            contents = [answer.get("content", {}) for answer in operation.get("responses", {}).values()]
            contents.append(operation.get("requestBody", {}).get("content", {}))
            for content in contents:
                described = content.get(_JSON)
                if described and "schema" in described and not {"example", "examples"} & described.keys():
                    described["example"] = example_of(described["schema"], schemas)


def example_of(schema: dict[str, Any], schemas: dict[str, Any], depth: int = 0) -> Any:
    """Build a value of a JSON schema: its own example, else one of its parts.

    >>> example_of({"type": "object", "properties": {"ece": {"examples": [0.02]}}}, {})
    {'ece': 0.02}
    >>> example_of({"anyOf": [{"type": "null"}, {"$ref": "#/components/schemas/N"}]}, {"N": {"const": 3}})
    3
    """
    if depth > _MOST_DEPTH:
        return None
    for key in ("example", "const", "default"):
        if schema.get(key) is not None:
            return schema[key]
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    if "$ref" in schema:
        return example_of(schemas.get(schema["$ref"].rpartition("/")[2], {}), schemas, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            told = [each for each in schema[key] if each.get("type") != "null"] or schema[key]
            return example_of(told[0], schemas, depth + 1)
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        return {
            name: example_of(each, schemas, depth + 1) for name, each in schema.get("properties", {}).items()
        }
    if kind == "array":
        return [example_of(schema["items"], schemas, depth + 1)] if "items" in schema else []
    if kind == "string":
        return "2026-11-29T22:34:49.123Z" if schema.get("format") == "date-time" else "text"
    sample = _SAMPLES.get(str(kind))
    if kind in ("integer", "number") and sample is not None:
        return max(sample, schema.get("minimum", sample))
    return sample
