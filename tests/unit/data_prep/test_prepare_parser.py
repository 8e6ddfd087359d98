"""The compiled parser against an oracle in plain Python, value by value, on rows with every quirk real files have."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.criteo import FIELDS, diagnose
from data_prep.raw.parser import count_rows, first_rows, logarithms, parse, room_for


def oracle(row, labelled):
    """(label, dense, tokens, missing bits) of a good row, None of a bad one."""
    fields = row.removesuffix(b"\r").split(b"\t")
    if len(fields) != FIELDS[labelled] or b"\0" in row:
        return None
    label = 0
    if labelled:
        if fields[0] not in (b"0", b"1"):
            return None
        label, fields = int(fields[0]), fields[1:]
    missing = sum(1 << f for f, field in enumerate(fields) if not field)
    dense, tokens = [], []
    for field in fields[:13]:
        if field and not field.removeprefix(b"-").isdigit():
            return None
        value = int(field or 0)
        if abs(value) >= 2**63:
            return None
        dense.append(np.float32(np.log1p(np.float64(max(value, 0)))))
    for field in fields[13:]:
        if len(field) > 8 or any(c not in b"0123456789abcdefABCDEF" for c in field):
            return None
        tokens.append(int(field or b"0", 16))
    return label, dense, tokens, missing


def parse_all(text, labelled):
    """Good rows before the first bad one, and where that is (or the end)."""
    buffer = np.frombuffer(text, dtype=np.uint8)
    out = room_for(count_rows(buffer))
    rows, position, good = parse(buffer, 0, 0, labelled, out)
    return first_rows(out, rows), position, good


def check(rows, labelled):
    text = b"".join(row + b"\n" for row in rows)
    out, position, good = parse_all(text, labelled)
    expected = [oracle(row, labelled) for row in rows]
    first_bad = next((i for i, e in enumerate(expected) if e is None), len(rows))
    assert (out.rows, good) == (first_bad, first_bad == len(rows))
    assert position == sum(len(row) + 1 for row in rows[:first_bad])
    for i, (label, dense, tokens, missing) in enumerate(expected[:first_bad]):
        assert out.label[i] == label
        np.testing.assert_array_equal(logarithms(out.dense.T)[i], np.array(dense, dtype=np.float32))
        np.testing.assert_array_equal([one.values[i] for one in out.tokens], np.array(tokens, dtype=np.uint32))
        assert out.tokens[0].missing[i] == missing
    for row, e in zip(rows, expected, strict=True):
        assert (diagnose(row, labelled) is None) == (e is not None), row


integers = st.one_of(
    st.just(""), st.integers(-3, 5000), st.integers(-(2**63) + 1, 2**63 - 1), st.just("007"), st.just("-0")
)
tokens = st.one_of(
    st.just(""), st.integers(0, 2**32 - 1).map(lambda x: f"{x:08x}"), st.from_regex("[0-9a-fA-F]{1,8}", fullmatch=True)
)
good_row = st.tuples(
    st.sampled_from("01"),
    st.lists(integers, min_size=13, max_size=13),
    st.lists(tokens, min_size=26, max_size=26),
    st.sampled_from(["", "\r"]),
)


def as_bytes(row, labelled):
    label, ints, toks, end = row
    return ("\t".join(([label] if labelled else []) + [str(x) for x in ints + toks]) + end).encode()


@given(st.lists(good_row, max_size=6), st.booleans())
def test_good_rows_are_read_as_plain_python_reads_them(rows, labelled):
    check([as_bytes(row, labelled) for row in rows], labelled)


@given(st.lists(good_row, min_size=1, max_size=3), st.booleans(), st.data())
def test_a_damaged_row_stops_the_parser_where_plain_python_stops(rows, labelled, data):
    texts = [as_bytes(row, labelled) for row in rows]
    which = data.draw(st.integers(0, len(texts) - 1))
    at = data.draw(st.integers(0, len(texts[which])))
    junk = data.draw(
        st.sampled_from([b"\t", b"x", b"-", b"\0", b"\r", b" ", b"9" * 20, b"g", b".", b"+", b"\xff", b"a"])
    )
    cut = data.draw(st.integers(0, 3))
    texts[which] = texts[which][:at] + junk + texts[which][at + cut :]
    check(texts, labelled)


@given(st.binary(max_size=300).map(lambda b: b.replace(b"\n", b"")))
def test_any_bytes_are_refused_or_read_the_same(row):
    check([row], True)


def plain(**changes):
    fields = {"label": "1"} | {f"I{i}": str(i) for i in range(1, 14)} | {f"C{i}": f"{i:08x}" for i in range(1, 27)}
    return "\t".join((fields | changes).values()).encode()


@pytest.mark.parametrize(
    ("row", "reason", "says"),
    [
        (b"", "too few fields", "1 fields, expected 40"),
        (plain() + b"\t", "too many fields", "41 fields, expected 40"),
        (plain().partition(b"\t")[2], "too few fields", "cannot be mixed"),
        (plain(label="2"), "label", "label '2'"),
        (plain(label=""), "label", "label ''"),
        (plain(label="01"), "label", "label '01'"),
        (plain(I3="1.5"), "integer", "I3 is '1.5'"),
        (plain(I3="-"), "integer", "I3 is '-'"),
        (plain(I3="+1"), "integer", "I3 is '+1'"),
        (plain(I3=" 1"), "integer", "I3 is ' 1'"),
        (plain(I13=str(2**63)), "integer range", "I13 is '9223372036854775808'"),
        (plain(I13="9" * 500), "integer range", "I13 is '9999"),
        (plain(C1="xyz"), "token", "C1 is 'xyz'"),
        (plain(C26="-1"), "token", "C26 is '-1'"),
        (plain(C26="123456789"), "token length", "9 digits"),
        (plain(C2="12\x0034"), "NUL byte", "NUL"),
    ],
)
def test_diagnosis_names_field_and_content(row, reason, says):
    found = diagnose(row, True)
    assert found is not None
    assert found[0] == reason
    assert says in found[1]
    assert len(found[1]) < 300
    check([plain(), row, plain()], True)


@pytest.mark.parametrize(
    "changes",
    [
        {"I1": str(2**63 - 1)}, {"I1": "-" + str(2**63 - 1)}, {"I1": "0" * 30 + "5"}, {"C1": "ffffffff"},
        {"C1": "80000000"},
        {"C1": "FFAA00cd"}, {"C1": "0"}, {"C25": "", "C26": ""}, {f"C{i}": "" for i in range(1, 27)},
        {f"I{i}": "" for i in range(1, 14)},
    ],
)  # fmt: skip
def test_what_real_files_hold_is_taken(changes):
    for end in (b"", b"\r"):
        row = plain(**changes) + end
        assert oracle(row, True) is not None
        check([row, plain()], True)


def test_dense_values_agree_with_numpy_at_every_size():
    values = [0, 1, 2, 100, 4094, 4095, 4096, 4097, 10**6, 10**12, 2**53 + 1, 2**63 - 1, -1, -2]
    check([plain(I5=str(v)) for v in values], True)
