"""The codecs that ``[sync]`` names, and what they are given and send."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ssmpi import compress
from ssmpi.compress import Codec, CodecOptions, Shards
from ssmpi.runtime import user_code
from ssmpi.runtime.traffic import Traffic
from ssmpi.runtime.user_code import GUIDE
from ssmpi.sync.options import DENSE, RoundOptions


def codec_of(options: RoundOptions) -> tuple[type[Codec], CodecOptions]:
    """The codec of pushes and rounds; SettingsError if there is none of that name."""
    return _parse("codec", options)


def pull_codec_of(options: RoundOptions) -> tuple[type[Codec], CodecOptions]:
    """The codec of pulls; SettingsError if there is none of that name."""
    return _parse("pull_codec", options)


def try_codec(options: RoundOptions, setting: str) -> None:
    """Raise SettingsError unless the user's own codec that ``setting`` names can encode and decode a vector."""
    kind, own = _parse(setting, options)
    what = f"'{kind.__name__}', tried on a vector"
    user_code.run_user_code(user_code.path_of(kind), what, lambda: compress.compile_kernels((kind, own)), GUIDE)


def expected_bytes(codec: tuple[type[Codec], CodecOptions], shards: Shards) -> float:
    """Payload bytes of all shards of every fragment, at the configured density."""
    kind, own = codec
    return sum(kind.expected_bytes(own, part.stop - part.start) for parts in shards for part in parts)


def count_entries(payloads: Sequence[np.ndarray], traffic: Traffic) -> None:
    """Count the entries that codecs were given and sent."""
    for payload in payloads:
        traffic.add_entries(*compress.count_of(payload))


def merge_error(options: RoundOptions) -> str:
    """Why mirrors do not support these settings; empty if they do, or without a codec."""
    why = "moves replicas with a codec only by what both ends know: set sync.merge = 'difference'"
    return why if options.merge != "difference" and options.codec != DENSE else ""


def _parse(setting: str, options: RoundOptions) -> tuple[type[Codec], CodecOptions]:
    text, common = getattr(options, setting), CodecOptions(life_span=options.life_span, refresh=options.refresh)
    source = options.source(setting) if user_code.names_file(text) else b""
    return compress.parse(text, common, source)
