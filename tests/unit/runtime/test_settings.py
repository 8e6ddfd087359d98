"""Settings are strict, say what to do instead, and survive being written and read again."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmpi.config import Config, load
from ssmpi.runtime.errors import SettingsError, UserError
from ssmpi.runtime.settings import apply_override, build, dump, require, suggestion
from ssmpi.runtime.settings import load as load_settings


@dataclass(frozen=True)
class Oven:
    heat: float = 180.0
    minutes: int = 30
    fan: bool = False
    racks: tuple[int, ...] = (1, 2)
    name: str = "oven"
    note: str | None = None

    def __post_init__(self):
        require(self.heat > 0, f"heat must be positive, got {self.heat}")


@dataclass(frozen=True)
class Kitchen:
    owner: str
    oven: Oven = field(default_factory=Oven)


def read(tmp_path, text, *overrides, cls=Kitchen):
    path = tmp_path / "run.toml"
    path.write_text(text)
    return load_settings(cls, path, overrides)


def test_defaults_are_filled_in(tmp_path):
    assert read(tmp_path, 'owner = "Ada"') == Kitchen("Ada", Oven())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'owner' is required"),
        ('owner = "A"\nowen = 1', "unknown key 'owen'; did you mean 'oven'?"),
        ('owner = "A"\n[oven]\nminuets = 3', "unknown key 'oven.minuets'; did you mean 'minutes'?"),
        ('owner = "A"\n[ovens]\nheat = 3.0', "unknown section 'ovens'; did you mean 'oven'?"),
        ('owner = "A"\nxyz = 3', "unknown key 'xyz'; there are owner, oven"),
        ('owner = "A"\noven = 3', "'oven' is a section, got 3: write [oven], or oven.KEY=VALUE"),
        ('owner = "A"\n[oven]\nminutes = 3.5', "oven.minutes = 3.5 is not a whole number"),
        ('owner = "A"\n[oven]\nminutes = true', "oven.minutes = True is not a whole number"),
        ('owner = "A"\n[oven]\nheat = "hot"', "oven.heat = 'hot' is not a number"),
        ('owner = "A"\n[oven]\nheat = true', "oven.heat = True is not a number"),
        ('owner = "A"\n[oven]\nfan = 1', "oven.fan = 1 is not true or false"),
        ('owner = "A"\n[oven]\nheat = inf', "oven.heat = inf is not a finite number"),
        ('owner = "A"\n[oven]\nheat = nan', "oven.heat = nan is not a finite number"),
        ('owner = "A"\n[oven]\nracks = 1', "oven.racks = 1 is not a list"),
        ('owner = "A"\n[oven]\nracks = [1, "x"]', "oven.racks[1] = 'x' is not a whole number"),
        ('owner = "A"\n[oven]\nheat = -1', "oven.heat must be positive, got -1.0"),
        ("owner = 3", "owner = 3 is not a string"),
        ("owner = ", "not a readable TOML file"),
    ],
)
def test_what_is_wrong_is_said_with_a_remedy(tmp_path, text, message):
    with pytest.raises(SettingsError) as error:
        read(tmp_path, text)
    assert message in str(error.value)
    assert "run.toml" in str(error.value)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("bottom.1", "; did you mean 'bottom.0' or 'bottom.2'?"),
        ("botom.2", "; did you mean 'bottom.2'?"),
        ("loss", "; there are bottom.0, bottom.2, pairs"),
    ],
)
def test_names_that_are_as_close_are_all_suggested(key, hint):
    assert suggestion(key, ["bottom.0", "bottom.2", "pairs"]) == hint


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    path = tmp_path / "run.toml"
    path.write_bytes(b'\xef\xbb\xbfowner = "A"')
    assert load_settings(Kitchen, path).owner == "A"
    path.write_bytes('owner = "A"'.encode("utf-16"))
    with pytest.raises(UserError, match=r"run\.toml: .*save it as UTF-8"):
        load_settings(Kitchen, path)


def test_a_missing_run_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.toml: no such run file"):
        load_settings(Kitchen, tmp_path / "nowhere.toml")


def test_overrides_win_in_order_and_are_toml_or_bare_words(tmp_path):
    overrides = ("oven.heat=200", "oven.heat=210.5", "oven.name=big oven", "oven.racks=[3]", "oven.fan=true", "owner=B")
    kitchen = read(tmp_path, 'owner = "A"\n[oven]\nheat = 1', *overrides)
    assert kitchen == Kitchen("B", Oven(heat=210.5, name="big oven", racks=(3,), fan=True))


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ('owner = "A"', ["oven.minutes=x"], "override 'oven.minutes=x': oven.minutes = 'x' is not a whole number"),
        ('owner = "A"', ["oven.racks=[3]", "oven.heat=-1"], "override 'oven.heat=-1': oven.heat must be positive"),
        ('owner = "A"', ["owen.heat=1"], "override 'owen.heat=1': unknown section 'owen'; did you mean 'oven'?"),
        ('owner = "A"', ["oven.heat=-1", "oven.heat=-2"], "override 'oven.heat=-2': oven.heat must be positive"),
        ('owner = "A"\noven.heat = -1', ["oven.racks=[3]"], "FILE: oven.heat must be positive"),
        ('owner = "A"\noven.heat = -1', ["oven.heat=-1"], "FILE: oven.heat must be positive"),
        ("", ["oven.racks=[3]"], "FILE: 'owner' is required and not set"),
        ('owner = "A"', ["oven.heat"], "override 'oven.heat' is not of the form section.key=value"),
    ],
)
def test_an_error_names_where_the_value_came_from(tmp_path, text, overrides, message):
    with pytest.raises(SettingsError) as error:
        read(tmp_path, text, *overrides)
    assert str(error.value).startswith(message.replace("FILE", str(tmp_path / "run.toml")))


@dataclass(frozen=True)
class House:
    kitchen: Kitchen


def test_a_section_that_is_missing_is_named_with_what_it_must_set(tmp_path):
    with pytest.raises(SettingsError, match=r"section \[kitchen\] with owner is required and not set"):
        read(tmp_path, "", cls=House)
    with pytest.raises(SettingsError, match=r"'kitchen\.owner' is required and not set"):
        read(tmp_path, "[kitchen]", cls=House)


@pytest.mark.parametrize("override", ["oven.heat", "=3", ".heat=3", "oven.=3", ""])
def test_an_override_needs_a_key_and_a_value(override):
    with pytest.raises(SettingsError, match=r"not of the form section\.key=value"):
        apply_override({}, override)


def test_an_override_cannot_go_below_a_value():
    with pytest.raises(SettingsError, match="'owner' is a value, not a section"):
        apply_override({"owner": "A"}, "owner.first=B")


@given(
    st.builds(
        Oven,
        heat=st.floats(min_value=1e-300, allow_infinity=False),
        minutes=st.integers(-(2**62), 2**62),
        fan=st.booleans(),
        racks=st.lists(st.integers(0, 9)).map(tuple),
        name=st.text(st.characters(codec="utf-8", exclude_characters="\r")),
        note=st.none() | st.just("burnt"),
    )
)
def test_what_is_written_reads_back_equal(oven):
    import tomllib

    assert build(Oven, tomllib.loads(dump(oven))) == oven


def test_a_resolved_run_file_is_a_run_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('[data]\nfolder = "d"')
    config = load(path, ["sync.algorithm=bmuf", "sync.bmuf.eta=0.5", "model.bottom=[4,16]", "data.passes=3"])
    path.write_text(dump(config))
    assert load(path) == config
    assert isinstance(config, Config)
