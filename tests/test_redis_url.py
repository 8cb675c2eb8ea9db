"""URLs of the parameter store that will never work are told apart from servers that are away."""

import pytest

from serving_adapter.redis_url import redis_url_problem
from serving_adapter.settings import SettingsError, load_settings


@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "redis:///0",
        "redis://host",
        "redis://host:6379/0",
        "REDISS://user:pass%40word@host:6380/1?ssl_cert_reqs=required",
        "redis://:pass@[::1]:6379",
        "unix:///run/redis.sock?db=1",
        "redis+sentinel://user:secret@a:26379,b,[::1]:26379/main/2?sentinel_username=s",
        "rediss+sentinel://a/main",
        "redis+cluster://a:7000,b:7001",
    ],
)
def test_what_can_work_is_taken(url):
    assert redis_url_problem(url) == ""


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("host:6379", "a URL such as"),
        ("http://host:6379", "a URL such as"),
        ("redis+master://host", "a URL such as"),
        ("redis://host:0", "a port in 1 to 65535, not 0"),
        ("redis://host:65536", "a port in 1 to 65535, not 65536"),
        ("redis://host:six", "not 'six'"),
        ("redis://a:6379,b:6379", "one host:port"),
        ("redis+cluster://", "at least one"),
        ("redis+cluster://a:7000,b:x", "not 'x'"),
        ("redis+sentinel://a:26379", "/service"),
        ("redis+sentinel://a:26379/main/x", "/service"),
        ("unix://", "the path of a socket"),
    ],
)
def test_what_cannot_work_is_told_with_the_reason(url, problem):
    assert problem in redis_url_problem(url)


def test_a_password_is_not_told():
    with pytest.raises(SettingsError, match="DSPARK_REDIS_URL") as refused:
        load_settings({"redis_url": "redis://user:hunter2@host:port"}, environment={})
    assert "hunter2" not in str(refused.value)
