"""How the files of the dashboard are served."""

import gzip
import re

import pytest

from calibrator.service.web.routes.dashboard import assets
from tests.web_support import Service


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/jobs",
        "/rollouts",
        "/rollouts/7",
        "/deployments/chat",
        "/deployments/chat/rollouts",
        "/deployments/a%2Fb/throughput",
    ],
)
def test_every_deep_link_answers_the_page(service: Service, path: str) -> None:
    answer = service.client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert '<main id="page"' in answer.text
    assert service.client.head(path).status_code == 200


def test_the_page_and_its_files_need_no_token(service: Service) -> None:
    assert service.client.get("/static/js/main.js").status_code == 200
    assert service.client.get("/v1/deployments").status_code == 401


def test_everything_the_page_names_is_there(service: Service) -> None:
    page = service.client.get("/").text
    named = re.findall(r'(?:src|href)="(/static/[^"]+)"', page)
    assert len(named) >= 6
    for path in named:
        assert service.client.get(path).status_code == 200, path


def test_every_module_imports_what_exists() -> None:
    modules = {path: asset for path, asset in assets().items() if path.startswith("js/")}
    for path, asset in modules.items():
        folder = path.rpartition("/")[0].split("/")
        for named in re.findall(r'(?:from|import\()\s*"(\.[^"]+)"', asset.body.decode()):
            parts = list(folder)
            for step in named.split("/"):
                if step == "..":
                    parts.pop()
                elif step != ".":
                    parts.append(step)
            assert "/".join(parts) in modules, f"{path} imports {named}"


def test_nothing_is_fetched_from_elsewhere() -> None:
    for path, asset in assets().items():
        if path.startswith("vendor/"):
            continue
        addresses = set(re.findall(r"https?://[^\s\"'`)<]+", asset.body.decode()))
        assert addresses <= {"http://www.w3.org/2000/svg"}, path


def test_nothing_needs_inline_scripts_or_styles() -> None:
    page = assets()["index.html"].body.decode()
    assert not re.search(r"<script(?![^>]*src=)", page)
    assert not re.search(r"<style|\sstyle=|\son\w+=", page)
    for path, asset in assets().items():
        if path.startswith("js/"):
            assert "innerHTML" not in asset.body.decode(), path


def test_a_known_file_is_not_sent_again(service: Service) -> None:
    first = service.client.get("/static/css/theme.css")
    assert first.headers["cache-control"] == "no-cache"
    again = service.client.get("/static/css/theme.css", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = service.client.get("/static/css/theme.css", headers={"If-None-Match": '"other"'})
    assert other.status_code == 200


def test_the_chart_library_is_kept_by_the_browser_and_comes_with_its_licence(service: Service) -> None:
    library = service.client.get("/static/vendor/echarts/echarts.min.js")
    assert "max-age" in library.headers["cache-control"]
    assert library.headers["content-type"].startswith("text/javascript")
    assert "Apache License" in service.client.get("/static/vendor/echarts/LICENSE").text


@pytest.mark.parametrize(
    ("accepts", "compressed"),
    [("gzip, deflate", True), ("*", True), ("identity", False), ("gzip;q=0", False), ("br", False)],
)
def test_files_are_compressed_for_those_who_take_it(service: Service, accepts: str, compressed: bool) -> None:
    with service.client.stream("GET", "/static/js/api.js", headers={"Accept-Encoding": accepts}) as answer:
        assert (answer.headers.get("content-encoding") == "gzip") is compressed
        body = b"".join(answer.iter_raw())
    assert (gzip.decompress(body) if compressed else body) == assets()["js/api.js"].body


@pytest.mark.parametrize(
    "path", ["/static/nothing.js", "/static/../app.py", "/static/%2e%2e/app.py", "/static/", "/nowhere"]
)
def test_what_is_not_a_file_of_the_dashboard_is_a_problem_document(service: Service, path: str) -> None:
    answer = service.client.get(path)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_browser_at_an_unknown_address_gets_a_page_and_a_program_a_problem(service: Service) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    answer = service.client.get("/nowhere", headers=browser)
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")
    assert '<main id="page"' in answer.text
    for path in ("/v1/nowhere", "/static/nothing.js"):
        assert (
            service.client.get(path, headers=browser).headers["content-type"]
            != answer.headers["content-type"]
        )
