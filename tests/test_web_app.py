"""What holds for every request: problem documents, ids, guards, times, cursors, entity tags."""

import pytest

from calibrator.service.access import Role
from calibrator.service.web.etags import check_match, etag_of, still_holds
from calibrator.service.web.pagination import cut, decode_cursor, encode_cursor
from calibrator.service.web.problems import Invalid, PreconditionFailed
from calibrator.service.web.times import LATEST, format_time, parse_time, time_range
from calibrator.store.errors import StoreUnavailableError

NOW = 1_700_000_000.0


def assert_problem(answer, status):
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == status
    assert set(body) >= {"type", "title", "status", "detail", "instance"}
    return body


def test_what_is_not_there_is_a_problem_document(service):
    body = assert_problem(service.get("/v1/deployments/nobody"), 404)
    assert body["instance"] == "/v1/deployments/nobody"
    assert "nobody" in body["detail"]


def test_a_wrong_method_names_the_right_ones(service):
    answer = service.post("/v1/me", {})
    assert_problem(answer, 405)
    assert answer.headers["allow"] == "GET"


def test_invalid_input_names_the_field(service):
    body = assert_problem(service.get("/v1/deployments?limit=0"), 422)
    assert body["errors"][0]["pointer"] == "query/limit"


def test_a_body_that_is_no_json_is_a_problem(service):
    headers = {"content-type": "application/json"}
    assert_problem(service._ask("POST", "/v1/deployments", Role.OPERATOR, content=b"{", headers=headers), 422)
    assert_problem(
        service._ask("POST", "/v1/deployments", Role.OPERATOR, content=b"\xff", headers=headers), 400
    )


def test_a_body_that_is_too_large_is_refused_however_its_length_is_told(service):
    large = b'{"name": "' + b"x" * (1024 * 1024) + b'"}'
    headers = {"content-type": "application/json"}
    for content in (large, iter([large[:700_000], large[700_000:]])):
        answer = service._ask("POST", "/v1/deployments", Role.OPERATOR, content=content, headers=headers)
        assert_problem(answer, 413)


def test_a_body_of_another_type_is_refused(service):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        answer = service._ask(
            "POST", "/v1/deployments", Role.OPERATOR, content=b"name=chat", headers={"content-type": kind}
        )
        assert_problem(answer, 415)


def test_a_store_that_is_away_is_a_503_that_says_when_to_try_again(service, monkeypatch):
    def away():
        raise StoreUnavailableError("connection refused")

    monkeypatch.setattr(service.context.store, "read", away)
    answer = service.get("/v1/deployments")
    assert_problem(answer, 503)
    assert answer.headers["retry-after"] == "1"


def test_an_error_of_ours_tells_nothing_of_the_inside(service, monkeypatch, caplog):
    def broken():
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr(service.context.clock, "now", broken)
    answer = service.client.get("/v1/deployments", headers={"X-Request-ID": "abc-1", **service.headers()})
    body = assert_problem(answer, 500)
    assert "hunter2" not in str(body)
    assert answer.headers["x-request-id"] == "abc-1"
    assert "request_crashed" in caplog.text


def test_a_request_id_is_kept_when_it_is_harmless_and_made_otherwise(service):
    assert service.get("/v1/me", headers={"X-Request-ID": "run-42"}).headers["x-request-id"] == "run-42"
    for hostile in ("a b", "x" * 65, 'a"b', "é"):
        made = service.get("/v1/me", headers={"X-Request-ID": hostile.encode()}).headers["x-request-id"]
        assert len(made) == 32


def test_browsers_are_told_to_run_only_what_comes_from_here(service):
    for path in ("/", "/v1/me", "/openapi.json", "/nowhere"):
        headers = service.client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "http" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
    assert service.get("/v1/me").headers["cache-control"] == "no-store"


def test_other_sites_pages_may_change_nothing(service):
    given = {"name": "chat", "gamma": 7, "fingerprint": "f"}
    for foreign in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        assert_problem(service.post("/v1/deployments", given, headers=foreign), 403)
    own = {"Origin": "http://127.0.0.1:8080", "Sec-Fetch-Site": "same-origin"}
    assert service.post("/v1/deployments", given, headers=own).status_code == 201


def test_header_injection_stays_text(service):
    answer = service.get("/v1/deployments/a%0d%0aSet-Cookie:%20x=1")
    assert_problem(answer, 404)
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "name",
    ["'; DROP TABLE deployments; --", '" OR 1=1 --', "%00", "a%00b", "%ed%a0%80", "ﬀ\U0001f600", "x" * 300],
)
def test_sql_in_a_name_is_a_name(service, name):
    from urllib.parse import quote

    path = name if name.startswith("%") or "%00" in name else quote(name, safe="")
    assert service.get(f"/v1/deployments/{path}").status_code in (404, 422)
    assert service.get("/v1/deployments").status_code == 200


def test_a_name_with_a_slash_is_written_with_an_escaped_one(service):
    given = {"name": "team/chat", "gamma": 7, "fingerprint": "f"}
    made = service.post("/v1/deployments", given)
    assert made.status_code == 201, made.text
    assert made.headers["location"] == "/v1/deployments/team%2Fchat"
    assert service.get(made.headers["location"]).json()["name"] == "team/chat"
    assert_problem(service.get("/v1/deployments/team/chat"), 404)


def test_every_operation_is_described_with_its_problems(service):
    document = service.client.get("/openapi.json").json()
    ids = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            ids.append(operation["operationId"])
            assert operation.get("tags"), path
            assert operation.get("summary"), path
            if path.startswith("/v1/"):
                assert {"401", "403", "422", "503"} <= set(operation["responses"]), (method, path)
                assert operation["security"] == [{"token": []}], path
            for status, answer in operation["responses"].items():
                for kind, described in answer.get("content", {}).items():
                    if kind == "application/json" and status < "300":
                        example = described.get("example", described.get("examples"))
                        assert isinstance(example, (dict, list)), (method, path)
            if method in ("post", "put", "patch"):
                assert {"400", "404", "409", "413", "415"} <= set(operation["responses"]), (method, path)
                assert "Idempotency-Key" in [p["name"] for p in operation["parameters"]]
    assert len(ids) == len(set(ids))
    assert "HTTPValidationError" not in str(document)


def test_the_reference_shows_every_operation_without_a_script(service):
    page = service.client.get("/docs")
    assert page.status_code == 200
    assert "<script" not in page.text
    assert "https://" not in page.text
    for path, operations in service.client.get("/openapi.json").json()["paths"].items():
        assert path in page.text
        for operation in operations.values():
            assert f'id="{operation["operationId"]}"' in page.text
    assert service.client.get("/static/css/reference.css").status_code == 200


# --- times


def test_times_are_read_as_rfc_3339_or_seconds():
    assert parse_time("2023-11-14T22:13:20.250Z") == 1_700_000_000.25
    assert parse_time("2023-11-14T23:13:20+01:00") == NOW
    assert parse_time("2023-11-14T23:13:20 01:00") == NOW  # a plus sign that was not escaped
    assert parse_time("1700000000") == NOW
    assert parse_time(NOW) == NOW
    assert format_time(NOW + 0.25) == "2023-11-14T22:13:20.250Z"


@pytest.mark.parametrize(
    "value",
    [
        "", "yesterday", "2023-11-14", "2023-11-14T22:13:20", "9999999999999", "-1", "nan", "inf", "1e400",
        "0001-01-01T00:00:00+23:00", "9999-12-31T23:59:59-23:00", True, None, [], 10**400, -1, float("nan"),
    ],
)  # fmt: skip
def test_what_is_no_time_or_too_far_away_is_refused(value):
    with pytest.raises(ValueError, match="expected"):
        parse_time(value)


def test_a_range_has_sensible_defaults():
    given = time_range(None, None, None, NOW)
    assert (given.start, given.end) == (NOW - 3600.0, NOW)
    given = time_range(None, str(NOW - 1000), None, NOW)
    assert given.start == NOW - 4600.0
    assert time_range("0", None, None, NOW).end == NOW
    assert time_range(None, "10", None, NOW).start == 0.0


def test_a_range_in_the_future_has_an_end():
    given = time_range(str(NOW + 100), None, None, NOW)
    assert (given.start, given.end) == (NOW + 100, NOW + 3700)
    assert time_range(str(LATEST - 1), None, None, NOW).end == LATEST


def test_a_range_that_is_reversed_or_empty_is_refused():
    for start, end in ((NOW, NOW - 1), (NOW, NOW)):
        with pytest.raises(Invalid, match="before to"):
            time_range(str(start), str(end), None, NOW)


def test_a_range_is_cut_into_whole_windows_of_a_bounded_number():
    assert time_range(str(NOW - 12_000), str(NOW), None, NOW).stepped(60.0) == 60.0
    assert time_range(str(NOW - 12_001), str(NOW), None, NOW).stepped(60.0) == 120.0
    assert time_range(None, None, 90.0, NOW).stepped(60.0) == 120.0
    with pytest.raises(Invalid, match="step"):
        time_range("0", None, 1.0, NOW)


# --- cursors and entity tags


def test_a_cursor_comes_back_as_it_was():
    cursor = encode_cursor("a/b", 3, 0.5)
    assert decode_cursor(cursor, str, int, float) == ("a/b", 3, 0.5)
    assert decode_cursor(None, int) is None


@pytest.mark.parametrize("cursor", ["", "abc", "////", "é", encode_cursor("x"), encode_cursor(2**70), "e30"])
def test_what_is_no_cursor_of_this_list_is_refused(cursor):
    with pytest.raises(Invalid, match="cursor"):
        decode_cursor(cursor, int)


def test_a_page_is_cut_from_one_row_more():
    assert cut([1, 2], 2, lambda row: (row,)) == ([1, 2], None)
    kept, cursor = cut([1, 2, 3], 2, lambda row: (row,))
    assert kept == [1, 2]
    assert decode_cursor(cursor, int) == (2,)


def test_an_entity_tag_is_of_the_content():
    tag = etag_of({"a": 1, "b": 2})
    assert tag == etag_of({"b": 2, "a": 1})
    assert tag != etag_of({"a": 1, "b": 3})
    check_match(None, tag)
    check_match(f'"other", {tag}', tag)
    check_match("*", tag)
    for other in ('"other"', f"W/{tag}", ""):
        with pytest.raises(PreconditionFailed):
            check_match(other, tag)
    assert still_holds(f"W/{tag}", tag)
    assert not still_holds('"other"', tag)
