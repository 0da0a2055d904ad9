"""How fast language models read a prompt and write tokens, each with the cache that it has made itself.

The prompt is read from an empty cache, and then one token is written again and again with the cache of the
prompt: what a chat waits for first, and what it waits for after that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from octavo.data.decoder import Decoder, ids_of
from octavo.evaluation.task import F64, Array
from octavo.evaluation.timing.latency import Latency, Ratio, interleaved, ratio
from octavo.evaluation.timing.timed_feeds import Feed
from octavo.model.runtime.session import Session

PROMPT = 64  # tokens, where the samples do not say


@dataclass(frozen=True)
class Decoding:
    """The times of one model: seconds of the prompt and of one token, and the bytes of the cache."""

    prompt: int  # tokens
    prefill: Latency  # seconds to the first token
    token: Latency  # seconds of each that follows
    cache_bytes: int  # after the prompt, and one token more
    prefill_ratio: Ratio | None = None  # times as fast as the first model
    token_ratio: Ratio | None = None

    @property
    def tokens_per_second(self) -> float:
        """Tokens written in a second."""
        return 1 / self.token.median


def decoding(
    sessions: Sequence[Session], feeds: Sequence[Feed], seconds: float, clock: Callable[[], float]
) -> tuple[Decoding, ...]:
    """Time decoders that take turns; none where one of them has no cache."""
    decoders = [Decoder.of(session.inputs, session.output_names) for session in sessions]
    if not all(decoders):
        return ()
    known = [one for one in decoders if one is not None]
    prompt = prompt_of(feeds[0][ids_of(known[0].specs).name])
    runs = [runs_of(session, decoder, prompt) for session, decoder in zip(sessions, known, strict=True)]
    reads, writes = zip(*(one.calls for one in runs), strict=True)
    timed = [interleaved(calls, seconds=seconds / 2, clock=clock) for calls in (reads, writes)]
    return tuple(
        Decoding(
            prompt.shape[1],
            Latency.of(timed[0][index]),
            Latency.of(timed[1][index]),
            one.cache_bytes,
            *(_ratio(rows, index) for rows in timed),
        )
        for index, one in enumerate(runs)
    )


@dataclass(frozen=True)
class DecoderRuns:
    """What is timed of a decoder: reading the prompt, and writing one token after it."""

    calls: tuple[Callable[[], object], Callable[[], object]]
    cache_bytes: int  # after the prompt, and one token more


def runs_of(session: Session, decoder: Decoder, prompt: Array) -> DecoderRuns:
    """Read the prompt once, for the cache that tokens are written with."""
    feed = decoder.feed(prompt)
    outputs = session.run(feed)
    best = np.argmax(outputs[decoder.logits][:, -1], axis=-1)[:, None]
    one_more = decoder.feed(best, decoder.past(outputs))
    after = decoder.past(session.run(one_more))
    size = sum(array.nbytes for array in after.values())
    return DecoderRuns((partial(session.run, feed), partial(session.run, one_more)), size)


def _ratio(rows: F64, index: int) -> Ratio | None:
    return ratio(rows[0], rows[index]) if index else None


def prompt_of(ids: Array) -> Array:
    """Return the first sample as a prompt: cut, or repeated, to the length of one."""
    row = np.asarray(ids)[:1]
    return np.resize(row, (1, PROMPT)) if row.size else np.zeros((1, PROMPT), np.int64)
