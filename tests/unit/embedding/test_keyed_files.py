"""Rows by key over saves, losses of a PS, resumes with other numbers of PSs and days, against plain dictionaries."""

import copy
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from oracle import mix
from rows import row_options

from ssmpi.embedding.dynamic_options import DynamicOptions
from ssmpi.embedding.key_kernels import OFTEN, SEEN
from ssmpi.embedding.keyed_files import Continued
from ssmpi.embedding.placement import place
from ssmpi.embedding.table import Arena
from ssmpi.runtime.compiled.hash_table import NOT_FOUND
from ssmpi.runtime.errors import DataError
from ssmpi.state.checkpoint import files, model_files, store

SIZES, NAMES = (0, 5), ("user", "shop")  # a table with keys and one with ids
KEYS = 64


@dataclass
class Plain:
    """The rules in plain Python: value and date of each key with a row, None since the last pause; sightings of those
    without; how many examples are done.
    """

    after: int
    most: int
    rows: dict = field(default_factory=dict)
    sightings: dict = field(default_factory=dict)
    now: int = 0

    def look_up(self, key, value):
        """Whether it has a row now, which is then set to ``value``."""
        if key not in self.rows:
            self.sightings[key] = self.sightings.get(key, 0) + 1
            if self.sightings[key] < self.after:
                return False
            del self.sightings[key]
        self.rows[key] = value, None
        return True

    def pause(self, examples):
        self.now += examples
        dated = {key: (value, self.now if date is None else date) for key, (value, date) in self.rows.items()}
        self.rows = {key: row for key, row in dated.items() if not self.most or self.now - row[1] <= self.most}

    def lose(self, saved, is_lost):
        """What ``is_lost`` of keys is as it was ``saved``, the rest as it is."""
        for name in ("rows", "sightings"):
            now = {key: what for key, what in getattr(self, name).items() if not is_lost(key)}
            setattr(self, name, now | {key: what for key, what in getattr(saved, name).items() if is_lost(key)})

    def next_day(self):
        self.rows = {key: (value, date - self.now) for key, (value, date) in self.rows.items()}
        self.now = 0


class Servers:
    """As many PSs as there are, and the newest model that they have saved."""

    def __init__(self, folder, after, most):
        self.folder = folder
        self.dynamic = DynamicOptions(keys=KEYS, admit_after=after, expire_after_examples=most)
        self.arenas = self.new(2)

    def new(self, servers):
        options = row_options(2, dynamic=self.dynamic)
        placement = place(SIZES, servers, self.dynamic, NAMES)
        return [Arena(options, placement, server, seed=3) for server in range(servers)]

    def owner(self, key):
        return (mix(key % 2**64) >> 33) * len(self.arenas) >> 31

    def look_up(self, key, value):
        arena = self.arenas[self.owner(key)]
        (row,) = arena.keyed[0].resolve(np.array([key]), np.array([1]))
        if row != NOT_FOUND:
            base = arena.parts[0].base
            arena.weights[base + row], arena.state[base + row] = value, value
        return row != NOT_FOUND

    def pause(self, now):
        for arena in self.arenas:
            arena.keyed.sweep(now)

    def save(self):
        entries = [files.write(self.folder / "dense.h5", [("weight", np.zeros(1, np.float32), {})])]
        entries += [
            files.write(self.folder / f"embedding-{server:04}.h5", arena.datasets())
            for server, arena in enumerate(self.arenas)
        ]
        store.commit(self.folder, store.CheckpointManifest(tuple(entries), {}))

    def load(self, servers, continued=None):
        arenas = self.new(servers)
        for server, arena in enumerate(arenas):
            model_files.load_tables(arena, self.folder, server, continued=continued)
        self.arenas = arenas

    def lose(self, server):
        arena = self.new(len(self.arenas))[server]
        model_files.load_tables(arena, self.folder, server)
        self.arenas[server] = arena

    def held(self):
        """Value and date by key, and sightings."""
        rows, sightings = {}, {}
        for server, arena in enumerate(self.arenas):
            table, base = arena.keyed[0], arena.parts[0].base
            for row in table.in_use().tolist():
                key, date = int(table.keys[row]), int(table.seen[row])
                assert self.owner(key) == server
                assert key not in rows
                (value,) = set(arena.weights[base + row].tolist())
                assert table.resolve(np.array([key]), np.array([0])).tolist() == [row]
                rows[key] = value, None if date <= SEEN + OFTEN else date
            sightings |= {int(key): int(times) for key, times in table.candidates() if key not in rows}
        return rows, sightings

    def states(self):
        """The optimizer's state by key."""
        return {
            int(arena.keyed[0].keys[row]): float(arena.state[arena.parts[0].base + row, 0])
            for arena in self.arenas
            for row in arena.keyed[0].in_use()
        }


SERVERS = st.integers(1, 3)
STEPS = st.lists(
    st.one_of(
        st.lists(st.one_of(st.integers(1, 20), st.sampled_from([-1, -(2**63), 2**63 - 1])), min_size=1, max_size=9),
        st.tuples(st.just("pause"), st.integers(1, 30)),
        st.tuples(st.just("save"), st.integers(1, 30)),
        st.tuples(st.just("lose"), st.integers(0, 2)),
        st.tuples(st.just("resume"), SERVERS),
        st.tuples(st.just("day"), SERVERS),
    ),
    max_size=25,
)


@settings(max_examples=25, deadline=None)
@given(STEPS, st.integers(1, 3), st.sampled_from([0, 20, 45]))
@example([[5, 6], ("pause", 3), [6], ("day", 1), [7], ("pause", 9), ("lose", 0), ("day", 2)], 1, 0)  # a date of -1
def test_rows_survive_as_in_plain_dictionaries(steps, after, most):
    with tempfile.TemporaryDirectory() as folder:
        servers, plain, count = Servers(Path(folder), after, most), Plain(after, most), 0
        servers.save()
        saved = copy.deepcopy(plain)
        for step in steps:
            match step:
                case ("pause" | "save" | "day" as what, number):
                    plain.pause(number)
                    servers.pause(plain.now)
                    if what != "pause":
                        servers.save()
                        saved = copy.deepcopy(plain)
                    if what == "day":
                        servers.load(number, Continued(plain.now, SIZES, fresh=False))
                        plain.next_day()
                        servers.save()
                        saved = copy.deepcopy(plain)
                case ("lose", server):
                    if server < len(servers.arenas):
                        servers.lose(server)
                        plain.lose(saved, lambda key, lost=server: servers.owner(key) == lost)
                case ("resume", number):
                    servers.load(number)
                    plain = copy.deepcopy(saved)
                case keys:
                    for key in keys:
                        count += 1
                        assert servers.look_up(key, count) == plain.look_up(key, count)
            rows, sightings = servers.held()
            assert rows == plain.rows
            assert sightings == (plain.sightings if after > 1 else {})


def test_a_fresh_optimizer_leaves_the_state_behind(tmp_path):
    servers = Servers(tmp_path, 1, 0)
    for key in range(1, 30):
        servers.look_up(key, key)
    servers.pause(10)
    servers.save()
    servers.load(3, Continued(10, SIZES, fresh=False))
    assert servers.states() == {key: float(key) for key in range(1, 30)}
    servers.load(3, Continued(10, SIZES, fresh=True))
    assert set(servers.states().values()) == {float(np.float32(row_options(2).settings.initial_state))}
    assert servers.held()[0] == {key: (float(key), 0) for key in range(1, 30)}


def test_what_a_run_did_is_counted_once_and_not_by_the_next(tmp_path):
    servers = Servers(tmp_path, 1, 5)
    for key in range(1, 30):
        servers.look_up(key, key)
    servers.pause(1)
    servers.pause(9)
    servers.look_up(40, 1)
    servers.pause(10)
    servers.save()

    def counted():
        return [
            sum(getattr(arena.keyed[0].counts, what) for arena in servers.arenas) for what in ("admitted", "expired")
        ]

    for number in (1, 3):
        servers.load(number)
        assert counted() == [30, 29]
    servers.load(2, Continued(10, SIZES, fresh=False))
    assert counted() == [0, 0]


def test_a_missing_stripe_is_noticed(tmp_path):
    servers = Servers(tmp_path, 1, 0)
    servers.save()
    (tmp_path / "embedding-0001.h5").write_bytes((tmp_path / "embedding-0000.h5").read_bytes())
    with pytest.raises(DataError, match=r"saved parts lack .*keys of table 0"):
        servers.load(3)
