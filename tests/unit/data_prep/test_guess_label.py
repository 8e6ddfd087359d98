"""``--guess``: which column is the label, which may be one, which gives it away; row numbers."""

import random
import tomllib

import pytest
from test_guess import guess

from data_prep.table.guess_label import rank_of
from data_prep.table.schema import read_schema

DRAW = random.Random(3)
BITS, OTHERS, USERS = ([DRAW.randrange(n) for _ in range(400)] for n in (2, 2, 9))
USER = {"user": lambda i: f"u{USERS[i]}"}


def bit(i):
    return BITS[i]


def other(i):
    return OTHERS[i]


@pytest.mark.parametrize("name", [
    "clk", "Clicked", "is_click", "isClick", "click_flag", "LABEL", "y", "target", "has_purchased", "conversion",
    "is_installed", "buy", "like", "converted", "is attributed", "was-liked",
])  # fmt: skip
def test_names_of_labels_are_known(name):
    assert rank_of(name) is not None


@pytest.mark.parametrize("name", ["is_mobile", "user", "likes_per_day", "year", "is_", "click_time", "clicker"])
def test_other_names_are_not(name):
    assert rank_of(name) is None


@pytest.mark.parametrize(("columns", "label", "features", "left_out"), [
    ({"mobile": other, "clk": bit}, "clk", {"user", "mobile"}, {}),
    ({"purchase": other, "is_click": bit}, "is_click", {"user"},
     {"purchase": "it may be a second label beside is_click"}),
    ({"a": bit, "b": other, "c": lambda i: i % 7}, "a", {"user", "c"}, {"b": "it may be the label in place of a"}),
    ({"a": lambda i: i % 7, "b": other, "c": bit}, "c", {"user", "a"}, {"b": "it may be the label in place of c"}),
    ({"a": lambda i: i % 7, "b": lambda i: "yn"[bit(i)], "c": lambda i: i % 5}, None, {"user", "a", "c"},
     {"b": "it may be the label"}),
    ({"a": lambda i: i % 7, "b": lambda i: str(bool(bit(i))), "c": other, "d": lambda i: i % 5}, None,
     {"user", "a", "d"}, {"b": "it may be the label", "c": "it may be the label"}),
    ({"a": lambda i: i % 7, "b": lambda i: 1 + bit(i), "c": lambda i: i % 5}, None, {"user", "a", "b", "c"}, {}),
])  # fmt: skip
def test_what_may_be_the_label_is_no_feature(columns, label, features, left_out, tmp_path, capsys):
    first, *rest = columns.items()
    text = guess(tmp_path, dict([first]) | USER | dict(rest))
    found = tomllib.loads(text)
    assert found.get("label") == label
    assert set(found["categorical"]) | set(found["dense"]) == features
    for name, reason in left_out.items():
        assert f"\n# {name} = {{ type = " in text
        assert f"  # 2 values; left out: {reason}\n" in text
    said = capsys.readouterr().out
    if label is None:
        assert "WARNING: no label: " in said
        assert ("WARNING: which column is the label" in said) == bool(left_out)


def test_candidates_are_named_with_their_rules(tmp_path):
    between = {"a": lambda i: i % 7} | USER
    text = guess(tmp_path, between | {"b": lambda i: ("no", "yes")[bit(i)], "c": other} | {"d": lambda i: i % 5})
    assert """\n# label = "b == 'yes'"  # else "no"\n# label = "c"\n""" in text


@pytest.mark.parametrize(("values", "line"), [
    ((-1, 1), '"clicked == 1"  # else -1'),
    ((1, 2), '"clicked == 2"  # else 1; is 2 the one that counts?'),
    (("-1.0", "1.0"), '"clicked == 1"  # else -1'),
])  # fmt: skip
def test_a_label_of_two_numbers_is_a_rule(values, line, tmp_path):
    assert f"\nlabel = {line}\n" in guess(tmp_path, USER | {"clicked": lambda i: values[bit(i)]})


def test_a_label_of_more_values_is_asked_for(tmp_path):
    text = guess(tmp_path, {"target": lambda i: i % 5} | USER)
    assert '\n# label = "target > 0"  # it has more than two values: which are 1?\n' in text
    assert list(read_schema(tmp_path / "schema.toml").categorical) == ["user"]


LEAKS = {
    "a number": lambda i: bit(i) * (1 + i % 5 / 8),
    "a category": lambda i: "xyz"[USERS[i] % 2 if bit(i) else 2],
    "missing": lambda i: "" if bit(i) else f"{i % 7}.5",
}


@pytest.mark.parametrize("leak", LEAKS)
def test_a_column_that_gives_the_label_away_is_named(leak, tmp_path, capsys):
    text = guess(
        tmp_path, {"clicked": bit, "leak": LEAKS[leak], "good": lambda i: bit(i) if i % 20 else other(i)} | USER
    )
    assert text.count("alone tells the label (AUC 1.0000)") == 1
    assert "WARNING: leak alone tells the label (AUC 1.0000)" in capsys.readouterr().out


@pytest.mark.parametrize(("make", "reason"), [
    (lambda i: 10**18 + 7919 * i, "400 values, all different, as row numbers are: left out"),
    (lambda i: 2**70 - i, "400 values, all different, as row numbers are: left out"),
    (lambda i: f"{i * 7919 % 401:032x}", "400 values, all different, as row numbers are: left out"),
    (lambda i: f"{i}.0" if i else "", "399 values, all different, as row numbers are: left out"),
    (lambda i: i % 399, "399 values, which count up as row numbers do: left out"),
])  # fmt: skip
def test_row_numbers_are_left_out(make, reason, tmp_path):
    text = guess(tmp_path, {"clicked": bit, "row": make} | USER)
    assert f"  # {reason}\n" in text
    assert read_schema(tmp_path / "schema.toml").kinds().keys() == {"clicked", "user"}


def test_other_numbers_are_no_row_numbers(tmp_path):
    """Of which some are all different, or go up."""
    columns = {
        "clicked": bit,
        "price": lambda i: i * 37 % 401 / 8,
        "sorted_id": lambda i: i // 2,
        "hour": lambda i: i % 24,
    }
    guess(tmp_path, columns | USER)
    assert read_schema(tmp_path / "schema.toml").kinds().keys() == {*columns, "user"}
