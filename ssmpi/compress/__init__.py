"""Codecs: vectors as fewer bytes. A new one is a file and a line here, or a file of the user's own that ``sync.codec``
names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ssmpi.compress.bf16 import BF16
from ssmpi.compress.codec import Codec, CodecOptions, refuse
from ssmpi.compress.custom import CustomCodec
from ssmpi.compress.dense import Dense
from ssmpi.compress.mirror import MirrorReceiver, MirrorSender, ShardCodecs
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
from ssmpi.runtime import user_code

CODECS: dict[str, type[Codec]] = {"dense": Dense, "bf16": BF16, "threshold": Threshold, "random-k": RandomK}


def parse(text: str, options: CodecOptions | None = None, source: bytes = b"") -> tuple[type[Codec], CodecOptions]:
    """The codec that a setting names, ``dense``, ``threshold:0.99``, ``threshold:0.99:bf16:whole``, ``mine.py:Mine``,
    and its options on top of those given; SettingsError if it names none. ``source`` is the text of the user's own
    file, if it has been read.
    """
    own = user_code.names_file(text)
    name, *rest = (user_code.parts(text)[1] if own else text).split(":")
    kind = _own(text, name, source) if own else CODECS.get(name)
    if kind is None or bool(rest) != kind.takes_share or set(rest[1:]) - {"bf16", "whole"}:
        known = {f"FILE.py:{name}": kind} if own and kind else CODECS
        raise refuse(text, [f"{n}:SHARE" if kind.takes_share else n for n, kind in known.items()])
    try:
        share = float(rest[0]) if rest else 0.0
    except ValueError:
        raise refuse(text, list(CODECS)) from None
    asked = replace(options or CodecOptions(), share=share, half="bf16" in rest[1:], whole="whole" in rest[1:])
    return kind, asked


def _own(text: str, name: str, source: bytes) -> type[Codec]:
    """The codec ``name`` of the user's own file; SettingsError if there is none."""
    path, _ = user_code.parts(text)
    content = source or user_code.source(text, "codec")
    return user_code.subclass(path, name, content, "codec", Codec, "a codec: derive it from CustomCodec")


def make(
    text: str, options: CodecOptions, size: int, borders: Sequence[int] = (), state: np.ndarray | None = None,
    seed: int = 0,
) -> Codec:  # fmt: skip
    """A codec for vectors of ``size`` entries, of layers that end at ``borders``."""
    return made(parse(text, options), size, borders, state, seed)


def made(
    codec: tuple[type[Codec], CodecOptions], size: int, borders: Sequence[int] = (), state: np.ndarray | None = None,
    seed: int = 0,
) -> Codec:  # fmt: skip
    """The same, of a codec as ``parse`` found it."""
    kind, own = codec
    return kind(own, size, borders, np.zeros(kind.state_size(own, size, borders)) if state is None else state, seed)


def compile_kernels(codec: tuple[type[Codec], CodecOptions]) -> None:
    """Compile now what a codec, as ``parse`` found it, and decoding its payloads need, not in the first round."""
    payload = made(codec, 1).take(np.ones(1, np.float32))
    for apply in (add, update):
        apply(payload, np.zeros(1, np.float32))


__all__ = [
    "CODECS",
    "Codec",
    "CodecOptions",
    "CustomCodec",
    "MirrorReceiver",
    "MirrorSender",
    "PayloadError",
    "ShardCodecs",
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
