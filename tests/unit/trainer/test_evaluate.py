"""Every row of a split is scored once, whoever scores it."""

from collections import Counter

import pytest
from runs import train_over_threads

from ssmpi.model.replica import ThreadModel


@pytest.mark.parametrize(("trainers", "threads"), [(1, 1), (3, 2)])
def test_all_trainers_together_score_every_row_once(tmp_path, small_data, monkeypatch, trainers, threads):
    """In blocks of 32 rows, of which there are more than threads: with a few large ones some threads would have
    none.
    """
    scored, score = Counter(), ThreadModel.score

    def watching(model, dense, rows):
        scored.update(row.tobytes() for row in dense)
        return score(model, dense, rows)

    monkeypatch.setattr(ThreadModel, "score", watching)
    ranks = (f"topology.trainers={trainers}", f"topology.threads={threads}", "topology.embedding_ps=1")
    run = train_over_threads(tmp_path, small_data, *ranks, "evaluate.batch_size=2", "evaluate.split=none")
    assert run.quality("test")["rows"] == 600
    assert len(scored) == 600
    assert set(scored.values()) == {1}
