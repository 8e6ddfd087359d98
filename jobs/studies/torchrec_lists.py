"""Examples per second of ssmpi, of plain PyTorch and of TorchRec on the same rows with lists, in turns::

    pip install --no-deps torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0   # of torch 2.13, and what they import
    python jobs/studies/torchrec_lists.py data/hot --batch 2048 --rounds 4

The DLRM and the rates of ``ssmpi bench throughput``, SGD everywhere. TorchRec's bags are one EmbeddingBagCollection: as
it comes, where torch.optim.SGD steps whole tables, and fused, where rows are updated in the backward pass.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ssmpi.bench import contenders, data
from ssmpi.bench.contenders import PYTORCH, SSMPI, TUNED, Contender
from ssmpi.bench.jobs import Jobs
from ssmpi.bench.plain_pytorch import BatchSource, Column, collated
from ssmpi.bench.reporting import say
from ssmpi.bench.windows import Timing, median, spent
from ssmpi.config import Config, load
from ssmpi.model import reference
from ssmpi.model.parameters import by_name, initial_vector

CORES = len(os.sched_getaffinity(0))
FUSED, WHOLE = "TorchRec, fused", "TorchRec"
TIMING = Timing(0.8, 0.7, 3)


def step_of(config: Config, kind: str) -> Callable[[], object]:
    """A training step by TorchRec, with batches made beforehand."""
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
    from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection

    source, network, dim = BatchSource(config), config.network, config.embedding.dim
    names = [f"f{feature}" for feature in range(len(source.cardinalities))]
    tables = [
        EmbeddingBagConfig(name=f"t_{name}", embedding_dim=dim, num_embeddings=rows, feature_names=[name])
        for name, rows in zip(names, source.cardinalities, strict=True)
    ]
    device, rate = torch.device("cpu"), config.embedding.rate
    if kind == FUSED:
        bags = FusedEmbeddingBagCollection(tables, torch.optim.SGD, {"lr": rate}, device=device)
    else:
        bags = EmbeddingBagCollection(tables=tables, device=device)
    values = by_name(network.layout, initial_vector(network, config.run.seed, None))
    parameters = {name: nn.Parameter(torch.from_numpy(array.copy())) for name, array in values}
    optimizers = [torch.optim.SGD(parameters.values(), config.dense.rate)]
    if kind == WHOLE:
        optimizers.append(torch.optim.SGD(bags.parameters(), rate))
    batches = [(dense, jagged(names, columns), labels) for dense, columns, labels in map(collated, source.batches(0))]
    number = 0

    def step() -> None:
        nonlocal number
        dense, ids, labels = batches[number % len(batches)]
        number += 1
        rows = bags(ids).values().unflatten(1, (len(names), dim))
        logits = reference.logits(network, parameters, dense, rows)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()

    return step


def jagged(names: list[str], columns: list[Column]) -> Any:
    """The ids of a batch as TorchRec has them."""
    from torchrec import KeyedJaggedTensor

    ends = [torch.cat([column.offsets[1:], torch.tensor([len(column.ids)])]) for column in columns]
    lengths = torch.cat([end - column.offsets for end, column in zip(ends, columns, strict=True)])
    return KeyedJaggedTensor(names, torch.cat([column.ids for column in columns]), lengths=lengths.int())


def by_torchrec(kind: str, run_file: Path, overrides: tuple[str, ...]) -> tuple[list[float], float]:
    """Examples per second by window, and CPU seconds per second."""
    config = load(run_file, overrides)
    torch.set_num_threads(CORES)
    edges, ticks, readings = contenders.run([step_of(config, kind)], TIMING)
    rates = [rate * config.data.batch_size for rate in ticks.rates(edges)]
    return rates, spent(readings, "cpu")["process"] / (edges[-1] - edges[0])


def main() -> None:
    """Print every visit, then medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--folder", type=Path, default=Path("runs/bench"))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    base = data.base_run_file(None, (f"data.folder={given.data.resolve()}",), given.folder, short=False)
    jobs = Jobs(base, given.folder / "jobs")
    asked = {kind: Contender(kind, given.batch, CORES) for kind in (SSMPI, TUNED, PYTORCH)}
    ours = asked[SSMPI].overrides
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in (*asked, FUSED, WHOLE)}
    jobs.run(asked[SSMPI].ranks, ours, Timing(0.2, 0.2, 1))  # compiles
    for turn in range(given.rounds):
        for name in [*found][turn % len(found) :] + [*found][: turn % len(found)]:
            if name in (FUSED, WHOLE):
                rates, cores = contenders.in_fresh_process(by_torchrec, name, base, ours)
            else:
                visit = (
                    jobs.run(2, ours, TIMING) if name == SSMPI else contenders.visit_local(asked[name], base, TIMING)
                )
                rates, cores = visit["eps"], sum(visit["cpu"].values()) / visit["seconds"]
            found[name] += [(rate, rate / cores) for rate in rates]
            say(f"round {turn + 1}/{given.rounds} {name}: {', '.join(f'{rate:,.0f}' for rate in rates)} EPS")
    print(table(found, given.batch))


def table(found: dict[str, list[tuple[float, float]]], batch: int) -> str:
    """Medians of all windows: examples per second, and per CPU second."""
    lines = [f"{'batch ' + str(batch):18}{'EPS':>9}{'ssmpi over it':>15}{'per core-s':>12}{'ssmpi over it':>15}"]
    medians = {name: [median([window[k] for window in windows]) for k in (0, 1)] for name, windows in found.items()}
    ours = medians[SSMPI]
    for name, (eps, each) in medians.items():
        lines.append(f"{name:18}{eps:9,.0f}{ours[0] / eps:15.2f}{each:12,.0f}{ours[1] / each:15.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
