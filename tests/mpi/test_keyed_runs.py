"""A run by real ranks with keys in place of ids: the same bits, and scored from its files."""

import re

import numpy as np
import pytest
from datasets import FEW, make_dataset, make_keyed
from ranks import ssmpi
from runs import train

STEPS = ("data.batch_size=50", "embedding.prefetch=false", "data.passes=2")
DYNAMIC = ("embedding.table=dynamic", "embedding.dynamic.keys=400")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    ids = make_dataset(folder / "ids", 2_000, cardinalities=(400, 400, 20, 9, 50), features=FEW)
    return ids, make_keyed(folder / "keys", ids, ("user", "item"))


def test_real_ranks_train_by_key_as_by_id_and_score(tmp_path, data):
    by_id = train(tmp_path / "ids", data[0], *STEPS, "topology.embedding_ps=1")
    run = train(tmp_path / "keys", data[1], *STEPS, *DYNAMIC, "topology.embedding_ps=2")
    np.testing.assert_array_equal(run.losses(), by_id.losses())
    for name, values in by_id.dense().items():
        np.testing.assert_array_equal(run.dense()[name], values, err_msg=name)
    alone = ssmpi("evaluate", run.folder).check().out
    together = ssmpi("evaluate", run.folder, ranks=3).check().out
    assert alone == together
    ne = float(re.search(r"NE ([\d.]+)", alone)[1])
    assert ne == pytest.approx(run.quality("test")["ne"], abs=6e-6)
    assert "user " in ssmpi("inspect", run.folder).check().out
    refused = ssmpi("export", run.folder, "--format", "torch")
    assert refused.code == 2
    assert "rows by key" in refused.err
