"""Search over a library: words, documents, and BM25 behind one small interface.

The text searched is a skill's description and Markdown body (Skill Following,
section 4.2); its name isn't searched. The hit rule is ours: rank-bm25 fills up
its top k with documents that share no word with the query, and taken as
"returned" every call would count as retrieval.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import rank_bm25

# Part of every arm's hash: a new number for any change of what ``tokenise`` returns.
TOKENISER_VERSION = "words/1"

# Scores are compared at this precision, so that documents that tie on paper
# tie here, in whatever order floating point summed their terms.
SCORE_DECIMALS = 9

# Scripts that put no space between words: each character is a token.
_UNSPACED = "".join(
    (
        "\u0e01-\u0eff",  # Thai, Lao
        "\u1000-\u109f\u1780-\u17ff",  # Myanmar, Khmer
        "\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff",  # Kana
        "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff",  # Han
        "\uac00-\ud7a3",  # Hangul
    )
)
_MARKS = "".join(
    char for char in map(chr, range(0x300, 0xFE30)) if unicodedata.category(char)[0] == "M"
)
_LETTERS = rf"[^\W_{_UNSPACED}]"
_TOKEN = re.compile(rf"{_LETTERS}+(?:[{_MARKS}]+{_LETTERS}*)*|(?=\w)[{_UNSPACED}][{_MARKS}]*")


def tokenise(text: str) -> list[str]:
    """Return the words of ``text`` in order, case folded, in Unicode's NFKC form.

    A word is a run of letters and digits with their marks, so accents stay
    and an underscore divides; scripts without spaces (Chinese, Japanese,
    Korean, Thai, Lao, Khmer, Burmese) give one token a character.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return _TOKEN.findall(unicodedata.normalize("NFKC", folded))


def searchable_text(*, description: str, body: str) -> str:
    """Return the text of a skill that is searched."""
    return f"{description}\n{body}"


@dataclass(frozen=True)
class Document:
    """One searchable skill: ``id`` is its slug, ``text`` what is searched."""

    id: str
    name: str
    text: str
    type: str


@dataclass(frozen=True)
class Hit:
    """A returned document: ``rank`` counts from 1, ``score`` has 9 decimals."""

    id: str
    score: float
    rank: int


class Retriever(Protocol):
    """Anything that ranks a fixed set of documents for a query."""

    def search(
        self, query: str, *, k: int, types: Collection[str] | None = None
    ) -> tuple[Hit, ...]:
        """Return at most ``k`` hits, best first, of the given types (None or empty: all)."""
        ...


_VARIANTS = {
    "bm25plus": rank_bm25.BM25Plus,
    "bm25okapi": rank_bm25.BM25Okapi,
    "bm25l": rank_bm25.BM25L,
}
VARIANTS = tuple(_VARIANTS)


class Bm25:
    """BM25 by rank-bm25, with a hit rule, and ties in the order of ids.

    BM25Plus is the default: in libraries of a few skills BM25Okapi's floor on
    negative weights reverses rankings, and with one document its perfect
    match scores below zero.
    """

    def __init__(
        self,
        documents: Iterable[Document],
        variant: str = "bm25plus",
        pad_zero_hits: bool = False,
    ) -> None:
        """Index ``documents``; their order changes nothing.

        Args:
            variant: one of ``VARIANTS``.
            pad_zero_hits: the other reading of "top k": documents that share
                no word with the query fill up the places left.

        Raises:
            ValueError: two documents have one id, or the variant is unknown.
        """
        if variant not in _VARIANTS:
            raise ValueError(f"unknown variant {variant!r}: use one of {', '.join(VARIANTS)}")
        # Sorted before indexing, not only at ties: BM25Okapi sums floats in this order.
        self._documents = sorted(documents, key=lambda document: document.id)
        _refuse_repeated_ids(self._documents)
        self._pad_zero_hits = pad_zero_hits
        corpus = [tokenise(document.text) for document in self._documents]
        # rank-bm25 divides by the mean length, so texts without a word have no index.
        self._index = _VARIANTS[variant](corpus) if any(corpus) else None

    def search(
        self, query: str, *, k: int, types: Collection[str] | None = None
    ) -> tuple[Hit, ...]:
        """Return at most ``k`` documents that share a word with ``query``, best first.

        ``types`` narrows the documents before the best ``k`` are taken, and
        changes no score.

        Raises:
            ValueError: ``k`` is below 1.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        candidates = [
            (score, document.id)
            for document, (score, shares_a_word) in zip(
                self._documents, self._compare(tokenise(query)), strict=True
            )
            if (not types or document.type in types) and (shares_a_word or self._pad_zero_hits)
        ]
        best = sorted(candidates, key=lambda candidate: (-candidate[0], candidate[1]))[:k]
        return tuple(
            Hit(id=id, score=score, rank=rank) for rank, (score, id) in enumerate(best, start=1)
        )

    def _compare(self, query: list[str]) -> list[tuple[float, bool]]:
        """Return for each document its score and whether it shares a word with ``query``."""
        if self._index is None:
            return [(0.0, False)] * len(self._documents)
        asked = set(query)
        scores = self._index.get_scores(query)
        return [
            # Adding zero turns a rounded -0.0 into 0.0.
            (round(float(score), SCORE_DECIMALS) + 0.0, not words.keys().isdisjoint(asked))
            for score, words in zip(scores, self._index.doc_freqs, strict=True)
        ]


def _refuse_repeated_ids(documents: list[Document]) -> None:
    for one, other in pairwise(documents):
        if one.id == other.id:
            raise ValueError(f"two documents have the id {one.id!r}")
