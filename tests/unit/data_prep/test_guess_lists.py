"""``--guess`` tells lists from other text: lists whose values rarely repeat, and prose that looks like lists."""

import random

import pytest

from data_prep.cli import main
from data_prep.table.schema import read_schema

ROWS = 3000


def letters(number):
    """A word for each number."""
    found = ""
    while number or not found:
        number, digit = divmod(number, 20)
        found += "etaoinsrhldcumfpgwyb"[digit]
    return found


def word(draw):
    """Words of prose: a few are frequent, and new ones come without end."""
    return letters(min(int(draw.paretovariate(0.75)), 10**9))


def lists_of(draw_one, separator, most=7):
    return lambda draw: separator.join(draw_one(draw) for _ in range(draw.randint(1, most)))


LISTS = {
    "rare names with numbers": ("|", lists_of(lambda d: f"item-{d.randrange(10**9)}", "|")),
    "rare integers": (",", lists_of(lambda d: str(d.randrange(1, 10**8)), ",")),
    "rare integers, some negative": (" ", lists_of(lambda d: str(d.randrange(-(10**8), 10**8)), " ")),
    "hashes": (" ", lists_of(lambda d: f"{d.getrandbits(32):08x}", " ")),
    "product numbers": (";", lists_of(lambda d: f"B0{d.choice('ABC')}{d.randrange(10**7):07d}", ";")),
    "equally long numbers": (",", lists_of(lambda d: f"{d.randrange(10**9):09d}", ",")),
    "names of an open set": ("|", lists_of(lambda d: letters(d.randrange(50_000)), "|")),
    "tags": (" ", lists_of(lambda d: letters(d.randrange(1, 300)), " ")),
    "genres": (", ", lists_of(lambda d: letters(d.randrange(1, 30)).title(), ", ")),
    "three digits": (",", lists_of(lambda d: str(d.randrange(100, 1000)), ",")),
    "accents": (";", lists_of(lambda d: f"gênre{d.randrange(10**9)}", ";")),
}
TEXTS = {
    "titles": lambda d: " ".join(word(d).title() for _ in range(d.randint(1, 7))),
    "queries": lambda d: " ".join(word(d) for _ in range(d.randint(1, 7))),
    "titles and years": lambda d: f"{word(d).title()} {word(d)} {word(d)} ({d.randint(1950, 2020)})",
    "names": lambda d: f"{letters(d.randrange(400)).title()}, {letters(d.randrange(90)).title()}",
    "prose": lambda d: ", ".join(" ".join(word(d) for _ in range(d.randint(1, 5))) for _ in range(d.randint(1, 4))),
    "amounts": lambda d: f"{int(d.paretovariate(0.1)) % 10**9:,}",
    "amounts with spaces": lambda d: f"{int(d.paretovariate(0.1)) % 10**9:,}".replace(",", " "),
    "decimal commas": lambda d: str(d.randrange(10**6) / 4).replace(".", ",").removesuffix(",0"),
    "places": lambda d: f"{d.random() * 90:.4f},{d.random() * 180:.4f}",
    "boxes": lambda d: ",".join(str(d.randrange(10**6)) for _ in range(4)),
    "vectors": lambda d: " ".join(f"{d.random():.6f}" for _ in range(d.randint(3, 5))),
    "telephones": lambda d: f"0{d.randrange(1, 10**5)} " + lists_of(lambda d: str(d.randrange(10**4)), " ", 3)(d),
    "browsers": lambda d: f"M/5.0 (Windows NT {d.randint(6, 11)}.0; Win64; x64; rv:{d.randrange(10**5)}) Gecko",
    "moments": lambda d: f"{d.randint(1, 28):02d}.{d.randint(1, 12):02d}.2024 {d.randrange(24)}:{d.randrange(60):02d}",
    "pages": lambda d: " | ".join(word(d).title() for _ in range(d.randint(1, 4))),
    "codes": lambda d: f"item-{d.randrange(10**9)}",
}  # fmt: skip


def guessed(tmp_path, make):
    """The list columns of a guess from a column of values in a TSV."""
    draw = random.Random(1)
    rows = "".join(f"{i % 2}\tu{i % 3}\t{make(draw)}\n" for i in range(ROWS))
    (tmp_path / "a.tsv").write_text("click\tuser\tcolumn\n" + rows)
    assert main(["table", "--guess", "--schema", str(tmp_path / "s.toml"), str(tmp_path / "a.tsv")]) == 0
    return read_schema(tmp_path / "s.toml").lists


@pytest.mark.parametrize("name", LISTS)
def test_lists_are_told_by_their_values(name, tmp_path):
    separator, make = LISTS[name]
    lists = guessed(tmp_path, make)
    assert lists["column"].separator == separator
    assert lists["column"].longest == 7


@pytest.mark.parametrize("name", TEXTS)
def test_other_text_is_no_list(name, tmp_path):
    assert not guessed(tmp_path, TEXTS[name])
