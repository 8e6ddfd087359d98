"""``ssmpi settings``: sections, words, and words that are none."""

import re

import pytest

from ssmpi.runtime.errors import SettingsError
from ssmpi.tools.settings_text import describe


def named(text):
    """The settings that a text describes."""
    return re.findall(r"^(\S+) (?:= .*|\(.*\))$", text, flags=re.MULTILINE)


def test_a_section_is_shown_with_those_in_it():
    shown = describe("sync")
    assert shown.startswith("The `[sync]` section: ")
    assert "\nsync.alpha = 0.5\n    Elastic weight: " in shown
    assert {name.split(".")[0] for name in named(shown)} == {"sync"}
    assert "sync.bmuf.nesterov" in named(shown)


@pytest.mark.parametrize(
    ("word", "some"),
    [
        ("embedding.dynamic.keys", ["embedding.dynamic.keys"]),
        ("layers' matrices", ["model.dcn_v2.rank"]),  # in its meaning
        ("partition", ["slurm.partition"]),  # of a site file
        ("Data.Folder", ["data.folder"]),
    ],
)
def test_a_word_finds_settings_by_name_and_meaning(word, some):
    assert named(describe(word)) == some


def test_all_are_shown_with_their_defaults():
    shown = describe()
    assert len(named(shown)) > 100
    for line in ("data.folder (required)", "node.count (unset)", "model.top = [512, 256, 1]", 'sync.codec = "dense"'):
        assert f"\n{line}\n    " in shown


@pytest.mark.parametrize(
    ("typo", "hint"),
    [("sync.alfa", "did you mean 'sync.alpha'?"), ("trainrs", "did you mean 'trainers'?"), ("zzz", "lists all")],
)
def test_a_typo_names_the_nearest(typo, hint):
    with pytest.raises(SettingsError, match=rf"no setting has '{typo}' in its name or meaning; .*{re.escape(hint)}$"):
        describe(typo)
