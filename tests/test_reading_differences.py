"""What two documents differ in, value by value."""

from calibrator.service.reading.differences import Change, changes


def test_equal_documents_differ_in_nothing():
    assert changes({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}) == []


def test_values_that_are_not_there_are_none():
    assert changes({"a": 1}, {"b": 2}) == [Change("/a", 1, None), Change("/b", None, 2)]


def test_lists_of_another_length_differ_as_a_whole():
    assert changes({"a": [1, 2]}, {"a": [1]}) == [Change("/a", [1, 2], [1])]


def test_paths_are_json_pointers():
    assert changes({"a/b": {"c~d": 1}}, {"a/b": {"c~d": 2}}) == [Change("/a~1b/c~0d", 1, 2)]


def test_what_follows_from_the_rest_is_left_out():
    assert changes({"digest": "x", "signature": "y"}, {"digest": "z", "signature": ""}) == []
