"""What others have written is refused with a sentence, whatever it is."""

import pytest

from ssmpi import cli
from ssmpi.data.features import Features
from ssmpi.data.schema import check_cardinalities, read_manifest
from ssmpi.runtime.documents import DEPTH, parse_json, parse_toml
from ssmpi.runtime.errors import ContentError, DataError, SettingsError
from ssmpi.runtime.settings import load
from ssmpi.runtime.topology import Topology


@pytest.mark.parametrize(("parse", "begin"), [(parse_json, ""), (parse_toml, "x = ")])
def test_values_are_nested_only_so_deep(parse, begin):
    parse(f"{begin}{'[' * (DEPTH - 1)}{']' * (DEPTH - 1)}")
    for depth in (DEPTH + 1, 5000):
        with pytest.raises(ContentError, match="nested more than 100 deep"):
            parse(f"{begin}{'[' * depth}{']' * depth}")
    with pytest.raises(ContentError, match="whole number of thousands of digits"):
        parse(f"{begin}{'9' * 5000}")


def test_files_of_settings_and_data_are_named(tmp_path):
    for text, said in (("[" * 5000, "nested"), ("9" * 5000, "thousands of digits")):
        (tmp_path / "run.toml").write_text(f"trainers = {text}")
        with pytest.raises(SettingsError, match=f"run.toml: .*{said}"):
            load(Topology, tmp_path / "run.toml")
        with pytest.raises(SettingsError, match=r"trainers = '.*' is not a whole number"):
            load(Topology, write(tmp_path / "run.toml", ""), [f"trainers={text}"])
        write(tmp_path / "manifest.json", text)
        with pytest.raises(DataError, match=f"manifest.json: damaged: .*{said}"):
            read_manifest(tmp_path)


def write(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize("rows", [1e300, 2**31, 10**400, -1])
def test_a_cardinality_fits_ids(rows):
    """Of a manifest, and of what a model says of its data."""
    features = Features((), ("user", "item"))
    check_cardinalities((0, 2**31 - 1), features)
    with pytest.raises(DataError, match=r" ids of feature 'item': a feature has from 0 to 2,147,483,647"):
        check_cardinalities((5, int(rows)), features)


def test_a_manifest_with_infinite_numbers_is_damaged(tmp_path):
    text = '{"format": "ssmpi-dataset", "schema_version": 1, "splits": {}, "cardinalities": [Infinity]}'
    write(tmp_path / "manifest.json", text)
    with pytest.raises(DataError, match=r"manifest\.json: damaged"):
        read_manifest(tmp_path)


def test_a_name_that_is_too_long_is_said_without_a_traceback(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["summary", "r" * 300])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith("fix the path or its permissions, or choose another folder\n")
