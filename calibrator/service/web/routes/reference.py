"""``/docs``: the API's description for people, from its OpenAPI document; needs no script and no internet."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

router = APIRouter(include_in_schema=False)


@router.get("/docs", response_class=HTMLResponse)
def reference(request: Request) -> HTMLResponse:
    """Show every operation with its parameters, an example of its body, and its answers."""
    document: dict[str, Any] = request.app.openapi()
    return HTMLResponse(render(document))


def render(document: dict[str, Any]) -> str:
    """HTML of an OpenAPI document."""
    by_tag: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            tag = (operation.get("tags") or ["other"])[0]
            by_tag.setdefault(tag, []).append(_operation(method, path, operation, document))
    described = {tag["name"]: tag.get("description", "") for tag in document.get("tags", [])}
    order = [tag for tag in described if tag in by_tag] + [tag for tag in by_tag if tag not in described]
    sections = "".join(
        f'<h2 id="{escape(tag)}">{escape(tag)}</h2><p>{escape(described.get(tag, ""))}</p>'
        + "".join(by_tag[tag])
        for tag in order
    )
    links = " ".join(f'<a href="#{escape(tag)}">{escape(tag)}</a>' for tag in order)
    title = escape(document["info"]["title"])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{title}: API</title>'
        '<link rel="icon" href="/static/icon.svg" type="image/svg+xml">'
        '<link rel="stylesheet" href="/static/css/reference.css"></head><body><main>'
        f'<h1>{title}: API</h1><p>For programs: <a href="/openapi.json">/openapi.json</a>. '
        f'The <a href="/">dashboard</a> uses nothing else.</p><nav aria-label="Parts">{links}</nav>'
        f"{sections}</main></body></html>"
    )


def _operation(method: str, path: str, operation: dict[str, Any], document: dict[str, Any]) -> str:
    parts = [f"<p>{escape(operation['description'])}</p>" if operation.get("description") else ""]
    rows = [
        f"<tr><td><code>{escape(p['name'])}</code></td><td>{escape(p['in'])}</td>"
        f"<td>{escape(_kind(p.get('schema', {})))}{', required' if p.get('required') else ''}</td>"
        f"<td>{escape(p.get('description', ''))}</td></tr>"
        for p in operation.get("parameters", [])
    ]
    if rows:
        head = "<tr><th>parameter</th><th>in</th><th>type</th><th>meaning</th></tr>"
        parts.append(f"<table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>")
    bodies = (operation.get("requestBody") or {}).get("content", {}).values()
    parts += [_example("Body", _example_of(media, document)) for media in bodies]
    for status, response in operation.get("responses", {}).items():
        text = f"<p><code>{escape(status)}</code> {escape(response.get('description', ''))}</p>"
        if status.startswith("2"):
            for media in response.get("content", {}).values():
                text += _example("Answer", _example_of(media, document))
        parts.append(text)
    summary = (
        f'<code class="{escape(method)}">{escape(method.upper())}</code> <code>{escape(path)}</code> '
        f"{escape(operation.get('summary', ''))}"
    )
    name = escape(operation.get("operationId", ""))
    return f'<details id="{name}"><summary>{summary}</summary>{"".join(parts)}</details>'


def _example(title: str, example: Any) -> str:
    if example is None:
        return ""
    return (
        f"<p>{title}, for example:</p><pre>{escape(json.dumps(example, indent=1, ensure_ascii=False))}</pre>"
    )


def _example_of(media: dict[str, Any], document: dict[str, Any]) -> Any:
    if "example" in media:
        return media["example"]
    return _schema_example(media.get("schema", {}), document, 0)


def _schema_example(schema: dict[str, Any], document: dict[str, Any], depth: int) -> Any:
    """Find the example of a schema, or put one together from those of its fields; None when there is none."""
    if depth > 5:
        return None
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return _schema_example(document["components"]["schemas"].get(name, {}), document, depth + 1)
    if "example" in schema:
        return schema["example"]
    if schema.get("examples"):
        return schema["examples"][0]
    if schema.get("type") == "array":
        item = _schema_example(schema.get("items", {}), document, depth + 1)
        return None if item is None else [item]
    fields = {
        name: _schema_example(inner, document, depth + 1)
        for name, inner in schema.get("properties", {}).items()
    }
    known = {name: value for name, value in fields.items() if value is not None}
    return known or None


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rsplit("/", 1)[-1])
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            kinds = [_kind(inner) for inner in schema[choice]]
            return " or ".join(kind for kind in kinds if kind != "null")
    if "enum" in schema:
        return " | ".join(str(value) for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("format") or schema.get("type") or "any")
