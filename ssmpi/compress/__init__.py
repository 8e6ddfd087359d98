"""Codecs: vectors as fewer bytes. A new one is a file and a line here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ssmpi.compress.bf16 import BF16
from ssmpi.compress.codec import Codec, CodecOptions, refuse
from ssmpi.compress.dense import Dense
from ssmpi.compress.mirror import MirrorReceiver, MirrorSender, ShardCodecs, Shards
from ssmpi.compress.payload import (
    PayloadError,
    add,
    count_of,
    is_dense,
    length_of,
    most_bytes,
    payload_bytes,
    update,
)
from ssmpi.compress.random_k import RandomK
from ssmpi.compress.threshold import Threshold

CODECS: dict[str, type[Codec]] = {"dense": Dense, "bf16": BF16, "threshold": Threshold, "random-k": RandomK}


def parse(text: str, options: CodecOptions | None = None) -> tuple[type[Codec], CodecOptions]:
    """The codec that a setting names, ``dense``, ``threshold:0.99``, ``threshold:0.99:bf16:whole``, and its options on
    top of those given; SettingsError if it names none.
    """
    name, *rest = text.split(":")
    if name not in CODECS or bool(rest) != CODECS[name].takes_share or set(rest[1:]) - {"bf16", "whole"}:
        raise refuse(text, [f"{n}:SHARE" if kind.takes_share else n for n, kind in CODECS.items()])
    try:
        share = float(rest[0]) if rest else 0.0
    except ValueError:
        raise refuse(text, list(CODECS)) from None
    made = replace(options or CodecOptions(), share=share, half="bf16" in rest[1:], whole="whole" in rest[1:])
    return CODECS[name], made


def make(
    text: str, options: CodecOptions, size: int, borders: Sequence[int] = (), state: np.ndarray | None = None,
    seed: int = 0,
) -> Codec:  # fmt: skip
    """A codec for vectors of ``size`` entries, of layers that end at ``borders``."""
    kind, own = parse(text, options)
    return kind(own, size, borders, np.zeros(kind.state_size(own, size, borders)) if state is None else state, seed)


def compile_kernels(text: str) -> None:
    """Compile now what a codec and decoding its payloads need, not in the first round."""
    payload = make(text, CodecOptions(), 1).take(np.ones(1, np.float32))
    for apply in (add, update):
        apply(payload, np.zeros(1, np.float32))


__all__ = [
    "CODECS",
    "Codec",
    "CodecOptions",
    "MirrorReceiver",
    "MirrorSender",
    "PayloadError",
    "ShardCodecs",
    "Shards",
    "add",
    "compile_kernels",
    "count_of",
    "is_dense",
    "length_of",
    "make",
    "most_bytes",
    "parse",
    "payload_bytes",
    "update",
]
