"""An algorithm and a codec in files of the user's own: those of the guide's page, which is read here."""

import pickle
import re
import shutil
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from datasets import FEW, FEW_CARDINALITIES, make_dataset
from ranks import over_threads, ssmpi
from runs import QUIET, SMALL_MODEL, Run, play, write_run_file
from sync_bodies import blocks, options, replica

from jobs.lab.lockstep import lockstep as lockstep_command
from jobs.lab.lockstep.run import Lockstep
from ssmpi import compress, sync
from ssmpi.cli import main
from ssmpi.config import differences, load
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.files import run_files
from ssmpi.runtime.topology import Topology
from ssmpi.runtime.user_code import PREFIX
from ssmpi.state import resume, run_folder
from ssmpi.state.checkpoint import files
from ssmpi.state.checkpoint.store import Store
from ssmpi.state.request import RunRequest
from ssmpi.tools import plan, score

PAGE = Path(__file__).parents[2] / "jobs/guide/own_algorithm.md"
EMA, SIGN = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
TWO = ("topology.trainers=2", "topology.threads=2")
OWN = ("sync.algorithm=ema.py:EMA", "sync.custom.decay=0.5")
FIXED = ("sync.pace=fixed_rate", "sync.every_iterations=2")


def write(folder, ema=EMA, sign=SIGN):
    """The page's two files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ema.py").write_text(ema)
    (folder / "sign.py").write_text(sign)
    return folder


def forget():
    """As in another process, which has not read the files."""
    for name in [name for name in sys.modules if name.startswith(PREFIX)]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("few"), 2_000, cardinalities=FEW_CARDINALITIES, features=FEW)


def trained(folder, data, *overrides):
    """A run in this process whose ranks were given the code and cannot see the files."""
    config = write_run_file(write(folder), data, *TWO, *overrides).with_code()
    run_folder.make(folder / "run", config, overwrite=False)
    sent = pickle.dumps(config)
    for name in ("ema.py", "sign.py"):
        (folder / name).unlink()
    forget()
    over_threads(config.topology, play, pickle.loads(sent))
    return Run(folder / "run")


# The page's algorithm


@pytest.mark.parametrize("pace", ["shadow", "fixed_rate"])
def test_it_computes_what_the_page_says(tmp_path, pace):
    """In float64; on one host, whose averages in shared memory would not call ``merge_target``."""
    chosen = sync.with_code(options(f"{write(tmp_path)}/ema.py:EMA", pace, custom={"decay": 0.75}))
    results = over_threads(Topology(trainers=2, threads=2, embedding_ps=1), blocks, chosen)[:2]
    replicas, average = [replica(0).astype(float)] * 2, replica(0).astype(float)
    for block in range(6):
        if block < 5:
            replicas = [values + 0.1 * replica(10 * block + rank) for rank, values in enumerate(replicas)]
        mean = sum(replicas) / 2
        average = 0.75 * average + 0.25 * mean
        replicas = [values + 0.5 * (mean - values) if block < 5 else values for values in replicas]
    for values, (weights, model) in zip(replicas, results, strict=True):
        np.testing.assert_allclose(weights, values, rtol=0, atol=2e-6)
        np.testing.assert_allclose(model, average, rtol=0, atol=2e-6)


@pytest.mark.parametrize("pace", [(), FIXED], ids=["shadow", "fixed rate"])
def test_ranks_that_do_not_see_the_file_train_it(few, tmp_path, pace):
    run = trained(tmp_path, few, *OWN, *pace)
    assert run.result["status"] == "complete"
    state = files.read(run.folder / "model/optimizer.h5")
    average = {name.rpartition("/")[2]: values for name, values in state.items() if "average" in name}
    assert average
    text = (run.folder / "run.toml").read_text()
    assert 'algorithm = "algorithm/ema.py:EMA"' in text
    assert "decay = 0.5" in text
    assert run_files.unknown_entries(run.folder) == []


@pytest.fixture(scope="module")
def real(few, tmp_path_factory):
    """Real ranks. Then the files are gone."""
    folder = write(tmp_path_factory.mktemp("real"))
    settings = (f"data.folder={few}", f"run.folder={folder / 'run'}", *SMALL_MODEL, *QUIET, *OWN, *TWO)
    (folder / "run.toml").write_text("")
    ssmpi("train", folder / "run.toml", *settings, "topology.embedding_ps=1", ranks=3).check()
    shutil.rmtree(folder / "run" / "logs")
    (folder / "ema.py").unlink()
    return Run(folder / "run")


@pytest.mark.soak  # a custom network's is in unit/model
def test_real_ranks_train_it_and_scoring_runs_none_of_it(real, tmp_path, alone, capsys):
    assert real.result["status"] == "complete"
    run = Run(Path(shutil.copytree(real.folder, tmp_path / "moved")))
    (run.folder / "algorithm/ema.py").write_text("raise RuntimeError('user code was run')")
    assert score.evaluate(run.folder, "test", None) == 0
    assert f"NE {run.quality('test')['ne']:.5f}" in capsys.readouterr().out


def test_it_is_resumed_by_the_saved_code(few, tmp_path):
    """With its state; a file that has changed is another algorithm."""
    run = trained(tmp_path, few, *OWN, "checkpoint.every_examples=700")
    (run.folder / "result.json").unlink()
    shutil.rmtree(run.folder / "model")
    request = RunRequest(None, (), run=run.folder)
    with ExitStack() as held:
        found = resume.prepare(request, request.load().topology.size, held)
    assert found.checkpoints
    newest = Store(run.folder).committed()[-1]
    over_threads(found.config.topology, play, found.config, newest)
    assert run.result["status"] == "complete"
    was = found.config.sync.identity
    assert re.fullmatch(r"ema\.py:EMA \(SHA-256 [0-9a-f]{12}\.\.\.\)", was)
    write(tmp_path, ema=EMA + "# another one\n")
    now = load(tmp_path / "given.toml", ("data.folder=x", f"run.folder={run.folder}", *OWN))
    assert now.sync.identity != was
    assert any(text.startswith("sync.algorithm was 'ema.py:EMA (SHA-256 ") for text in differences(found.config, now))


def test_plan_and_lockstep_take_it(few, tmp_path, capsys):
    config = write_run_file(write(tmp_path), few, *TWO, *OWN, *FIXED)
    text = plan.describe(config)
    assert "ring all-reduce" in text
    assert f"sync: {tmp_path}/ema.py:EMA, fixed_rate pace" in text
    (found,) = lockstep_command.measure(config, Lockstep(steps=6), [], 1, None)
    assert found["rounds"] > 0
    assert 0 < found["test"]["ne"] < 2


# The page's codec


CODED = {
    "easgd": ("sync.algorithm=easgd", "sync.codec=sign.py:Sign", "topology.sync_ps=1"),
    "async_ps": ("sync.algorithm=async_ps", "sync.codec=sign.py:Sign", "topology.sync_ps=1"),
}


@pytest.mark.parametrize("algorithm", CODED)
def test_the_codec_trains_and_its_runs_are_scored(few, tmp_path, algorithm, alone):
    """Scoring has no rounds, so that it refused runs with a codec, which says that it needs some."""
    run = trained(tmp_path, few, *CODED[algorithm])
    assert score.evaluate(run.folder, "test", None) == 0
    assert run.result["status"] == "complete"
    assert 'codec = "codec/sign.py:Sign"' in (run.folder / "run.toml").read_text()
    assert run_files.unknown_entries(run.folder) == []


@pytest.mark.parametrize("size", [1, 9, 1_003])
def test_the_codec_sends_what_it_says_and_keeps_the_rest(tmp_path, size):
    kind, own = compress.parse(f"{write(tmp_path)}/sign.py:Sign")
    codec, vector = compress.made((kind, own), size), replica(1)[:size].copy()
    payload, sent = codec.take(vector), np.zeros(size, np.float32)
    assert compress.add(payload, sent) == size
    assert np.unique(np.abs(sent)).size == 1
    np.testing.assert_allclose(sent + vector, replica(1)[:size], rtol=0, atol=1e-6)
    assert kind.expected_bytes(own, size) <= payload.size < kind.expected_bytes(own, size) + 4
    payload[-1] ^= 1
    with pytest.raises(compress.PayloadError, match="its checksum is wrong"):
        compress.add(payload, sent)


# What can be wrong


NO_DECODE = SIGN[: SIGN.index("    @classmethod\n    def decode")]
WRONG = {
    "no file": ("sync.algorithm=em.py:EMA", "sync.algorithm = '{}/em.py:EMA': no such file; a relative path begins in"),
    "no class": ("sync.algorithm=ema.py:EAM", "'EAM', which sync.algorithm names, is not in it; did you"),
    "a function": ("sync.algorithm=ema.py:require", "'require', which sync.algorithm names, is not a class; it has"),
    "no algorithm": ("sync.algorithm=ema.py:EMAOptions", "'EMAOptions', which sync.algorithm names, is not an alg"),
    "a setting": ("sync.custom.decya=1", "unknown key 'sync.custom.decya'; did you mean 'decay'?"),
    "a value": ("sync.custom.decay=2", "error: sync.custom.decay must be in [0, 1), got 2"),
    "a type": ("sync.custom.decay=x", "sync.custom.decay = 'x' is not a number"),
    "no section": ("sync.custom=1", "'sync.custom' is a section, got 1: write [sync.custom]"),
    "a built-in one": ("sync.algorithm=ma sync.custom.decay=1", "sync.custom is for algorithms of your own, and"),
    "no codecs": ("sync.codec=bf16", "sync.codec = 'bf16': algorithm = '{}/ema.py:EMA' exchanges weights"),
    "sync PSs": ("topology.sync_ps=1", "topology.sync_ps = 1, but sync.algorithm = '{}/ema.py:EMA' does not use"),
    "no codec": ("sync.algorithm=ma sync.codec=ema.py:EMA", "'EMA', which codec names, is not a codec: derive it from"),
    "half a codec": ("sync.algorithm=ma sync.codec=half.py:Sign", "'Sign', which codec names, lacks decode"),
    "wrong bytes": ("sync.algorithm=ma sync.codec=bytes.py:Sign", "encode of 'Sign' returned float32 (1,), not uint8"),
    "no values": ("sync.algorithm=ma sync.codec=values.py:Sign", "decode of 'Sign' returned float64 (1,), not float32"),
    "an error": ("sync.algorithm=ma sync.codec=error.py:Sign", "line 12: 'Sign', tried on a vector: ZeroDivisionError"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_one_message_says_what_is_wrong(few, tmp_path, case, capsys):
    settings, said = WRONG[case]
    write(tmp_path)
    (tmp_path / "half.py").write_text(NO_DECODE)
    (tmp_path / "bytes.py").write_text(re.sub(r"return np.concatenate.*", "return vector", SIGN))
    (tmp_path / "values.py").write_text(re.sub(r"return np.where.*", "return np.zeros(size)", SIGN))
    (tmp_path / "error.py").write_text(SIGN.replace("np.abs(vector)", "(1 / 0)"))
    (tmp_path / "run.toml").write_text("")
    words = (f"data.folder={few}", "sync.algorithm=ema.py:EMA", *settings.split())
    with pytest.raises(SystemExit) as ended:
        main(["plan", str(tmp_path / "run.toml"), *words])
    assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert said.format(tmp_path) in errors
    assert errors.count("error:") == 1
    assert "Traceback" not in errors


def test_options_that_are_no_dataclass_are_told(tmp_path):
    write(tmp_path, ema=EMA.replace("@dataclass(frozen=True)\n", ""))
    with pytest.raises(SettingsError, match="Options of 'EMA' is not a dataclass"):
        sync.with_code(sync.Options(algorithm=f"{tmp_path}/ema.py:EMA"))


def test_settings_without_a_place_are_told(tmp_path):
    write(tmp_path, ema=EMA.replace("    Options = EMAOptions\n", ""))
    chosen = sync.Options(algorithm=f"{tmp_path}/ema.py:EMA")
    sync.with_code(chosen)
    with pytest.raises(SettingsError, match="has no Options of its own"):
        sync.with_code(replace(chosen, custom={"decay": 0.5}))
