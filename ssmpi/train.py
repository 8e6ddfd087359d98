"""The main loop; read this page first. Every rank of the job executes ``run``: the topology gives it a role, and the
table at the bottom the function of that role. Every name here is defined where it is imported from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ssmpi.config import Config
from ssmpi.runtime.files import log
from ssmpi.runtime.host import cpu_usage, vitals
from ssmpi.runtime.mpi.world import Job, World
from ssmpi.runtime.topology import Role
from ssmpi.state.recovery.start import BEGINNING, Start
from ssmpi.trainer.embedding_ps import serve_embeddings
from ssmpi.trainer.sync_ps import serve_center

if TYPE_CHECKING:
    from ssmpi.trainer.trainer import Trainer


def run(job: Job, config: Config, start: Start = BEGINNING) -> bool:
    """One rank's whole life in a training job. True unless stopped early."""
    world = World(job, config.topology)
    log.configure(world.who, verbose=job.rank == 0)
    log.log_to_file(config.run.path / log.LOGS / f"{world.who.replace(' ', '-')}.log", world.who)
    log.log.info(world.describe_hosts())
    with vitals.recorded(config.run.path), cpu_usage.recorded(config.run.path, world.role, world.index):
        return PARTS[world.role](config, world, start)


def train(config: Config, world: World, start: Start = BEGINNING) -> bool:
    """A trainer: passes over the data, evaluations and checkpoints in between, the model saved at the end."""
    from ssmpi.trainer.trainer import Trainer  # here, because servers need nothing of it

    trainer = Trainer(config, world, start)
    for _ in trainer.parts():
        trainer.train_part(hogwild, help_lane)
        trainer.evaluate(config.evaluate.split)  # where a part is done
        trainer.checkpoint_if_due()
    trainer.save()  # the model; asked to stop, a checkpoint
    trainer.evaluate_final(config.evaluate.final)
    trainer.goodbye()
    return not trainer.stopped


def hogwild(thread: int, trainer: Trainer) -> None:
    """One worker thread. No locks, on purpose."""
    model = trainer.model_of(thread)  # same weights, gradients of its own
    lookups, optimizer = trainer.lookups(thread), trainer.optimizer_of(thread)
    for batch, rows in lookups.prefetched(trainer.stream(thread)):
        logits, row_gradients = model.forward_backward(batch.dense, rows.values, batch.labels, batch.first_example)
        rate_factor = trainer.progress.rate_factor()
        trainer.progress.record(thread, logits, batch.labels)
        lookups.push(rows, row_gradients, rate_factor)
        optimizer.step(model, rate_factor)  # straight into the shared vector
        trainer.pace.after_step(thread)  # fixed rate: maybe a round. Shadow: nothing
    trainer.pace.thread_done(thread)


def help_lane(thread: int, trainer: Trainer) -> None:
    """One helper thread: what this member of a group computes of another member's steps."""
    model, optimizer = trainer.helper_of(thread), trainer.optimizer_of(thread)
    for rate_factor in model.steps():  # of its home, with gradients of all that this member owns
        optimizer.step(model, rate_factor)
        trainer.count_help(thread)
        trainer.pace.after_step(thread)
    trainer.pace.thread_done(thread)


PARTS = {Role.TRAINER: train, Role.EMBEDDING_PS: serve_embeddings, Role.SYNC_PS: serve_center}
