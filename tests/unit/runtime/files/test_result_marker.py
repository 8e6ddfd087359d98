"""The marker is read without trust: what is no marker says nothing."""

import pytest

from ssmpi.runtime.files import result_marker


@pytest.mark.parametrize("text", [None, "", "{", "[]", "3", "{}", '{"status": "stopped"}', '{"status": "incomplete"}'])
def test_only_a_complete_marker_is_the_end(tmp_path, text):
    if text is not None:
        (tmp_path / "result.json").write_text(text)
    assert not result_marker.is_finished(tmp_path)
    (tmp_path / "result.json").write_text('{"status": "complete"}')
    assert result_marker.is_finished(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", '{"status": ""}', '{"status": null}', '{"status": 0}'])
def test_a_marker_without_a_status_is_damaged(tmp_path, text):
    assert not result_marker.damage(tmp_path)
    (tmp_path / "result.json").write_text(text)
    assert result_marker.damage(tmp_path)
    (tmp_path / "result.json").write_text('{"status": "stopped"}')
    assert not result_marker.damage(tmp_path)
