"""Search: words, the hit rule, ties, filters, and agreement with rank-bm25."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import pytest
import rank_bm25
from hypothesis import given
from hypothesis import strategies as st

from skills.domain.retrieval import (
    TOKENISER_VERSION,
    VARIANTS,
    Bm25,
    Document,
    Hit,
    Retriever,
    searchable_text,
    tokenise,
)

CLASSES = {
    "bm25plus": rank_bm25.BM25Plus,
    "bm25okapi": rank_bm25.BM25Okapi,
    "bm25l": rank_bm25.BM25L,
}


def documents(*pairs: tuple[str, str], type: str = "procedure") -> list[Document]:
    return [Document(id=id, name=id, text=text, type=type) for id, text in pairs]


def ids(hits: Sequence[Hit]) -> list[str]:
    return [hit.id for hit in hits]


def search(pairs: list[tuple[str, str]], query: str, k: int = 3) -> list[str]:
    return ids(Bm25(documents(*pairs)).search(query, k=k))


# --- Words -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Binary-search, boundary!", ["binary", "search", "boundary"]),
        ("two_pointer(x1, y2)", ["two", "pointer", "x1", "y2"]),
        ("tri à bulles", ["tri", "à", "bulles"]),
        ("STRASSE Straße", ["strasse", "strasse"]),
        ("Двоичный ПОИСК", ["двоичный", "поиск"]),
        ("前缀和 abc", ["前", "缀", "和", "abc"]),
        ("ソート한글", ["ソ", "ー", "ト", "한", "글"]),
        ("ｿｰﾄ ＡＢＣ", ["ソ", "ー", "ト", "abc"]),  # half and full width
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),  # vowel signs belong to the word
        ("ภาษา", ["ภ", "า", "ษ", "า"]),
        ("x² ½", ["x2", "1", "2"]),
        ("。、 — … __ 🙂", []),
        ("", []),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert tokenise(text) == words


def test_accents_count_but_their_encoding_does_not() -> None:
    composed, decomposed = "fran\u00e7aise", "franc\u0327aise"
    assert tokenise(composed) == tokenise(decomposed) == [composed]
    assert tokenise("francaise") != tokenise(composed)


@given(st.text())
def test_words_of_words_are_the_same_words(text: str) -> None:
    words = tokenise(text)
    assert all(words)
    assert tokenise(" ".join(words)) == words
    assert tokenise(text.upper().lower()) == tokenise(text.upper())


def test_a_change_of_words_needs_a_new_version() -> None:
    # Pinned together: whoever changes one line must look at the other.
    sample = "Two_Pointer Straße x² 二分 हिन्दी don't ภาษา"
    assert TOKENISER_VERSION == "words/1"
    assert " ".join(tokenise(sample)) == "two pointer strasse x2 二 分 हिन्दी don t ภ า ษ า"


def test_description_and_body_are_searched() -> None:
    assert searchable_text(description="Count items.", body="## Use") == "Count items.\n## Use"


# --- Cases -----------------------------------------------------------------------------------


def test_case_E03() -> None:
    pairs = [("a", "sort list"), ("b", "sort list list list"), ("c", "sort list tail tail tail")]
    assert search(pairs, "list") == ["b", "a", "c"]
    # The variant that the trap is about: its floor turns the ranking round.
    reversed_ranking = Bm25(documents(*pairs), variant="bm25okapi").search("list", k=3)
    assert ids(reversed_ranking) == ["c", "a", "b"]


def test_case_E05() -> None:
    chinese = [("z1", "二分查找的边界"), ("z2", "前缀和技巧"), ("z3", "滑动窗口模板")]
    assert search(chinese, "前缀") == ["z2"]
    assert search([("r1", "двоичный поиск"), ("r2", "сумма префиксов")], "Поиск") == ["r1"]
    assert search([("f1", "tri à bulles"), ("f2", "recherche française")], "française") == ["f2"]


def test_case_E06() -> None:
    pairs = [
        ("binary-search", "binary search boundary on sorted input"),
        ("counting-hash", "count occurrences with a hash map"),
        ("prefix-sum", "range totals with running sums"),
        ("blank", ""),
    ]
    query = "zzz hash hash unknown42"
    assert search(pairs, query, k=10) == ["counting-hash"]
    assert search(pairs[::-1], query, k=10) == ["counting-hash"]
    assert search([("b", "same text"), ("a", "same text")], "same", k=1) == ["a"]


# --- The hit rule ----------------------------------------------------------------------------


def test_only_documents_that_share_a_word_are_hits() -> None:
    pairs = [("a", "hash map"), ("b", "sorted list"), ("c", "graph")]
    assert search(pairs, "hash") == ["a"]
    assert search(pairs, "nothing of it") == []
    assert search(pairs, "?!") == []


def test_pad_zero_hits_is_the_other_reading() -> None:
    library = documents(("c", "hash map"), ("b", "sorted list"), ("a", "graph"))
    padded = Bm25(library, variant="bm25okapi", pad_zero_hits=True)
    assert ids(padded.search("hash", k=3)) == ["c", "a", "b"]
    assert ids(padded.search("nothing of it", k=2)) == ["a", "b"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_document_is_found(variant: str) -> None:
    # BM25Okapi scores this perfect match below zero: a rule "score > 0" would lose it.
    (hit,) = Bm25(documents(("all", "sort the list")), variant=variant).search("sort", k=3)
    assert (hit.id, hit.rank) == ("all", 1)
    assert (hit.score < 0) == (variant == "bm25okapi")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("pairs", [(), (("a", ""),), (("a", ""), ("b", " ?! "))])
def test_libraries_without_a_word_give_no_hit(
    variant: str, pairs: tuple[tuple[str, str], ...]
) -> None:
    assert Bm25(documents(*pairs), variant=variant).search("sort", k=3) == ()
    padded = Bm25(documents(*pairs), variant=variant, pad_zero_hits=True)
    assert padded.search("sort", k=3) == tuple(
        Hit(id=id, score=0.0, rank=rank) for rank, (id, _) in enumerate(pairs, start=1)
    )


def test_types_are_filtered_before_the_best_are_taken() -> None:
    library = [
        *documents(("best", "hash hash hash"), type="guard"),
        *documents(("good", "hash hash map")),
        *documents(("fair", "hash map of words"), type="utility"),
    ]
    bm25 = Bm25(library)
    assert ids(bm25.search("hash", k=1)) == ["best"]
    assert ids(bm25.search("hash", k=1, types=["procedure"])) == ["good"]
    assert ids(bm25.search("hash", k=3, types=("procedure", "utility"))) == ["good", "fair"]
    assert bm25.search("hash", k=3, types=None) == bm25.search("hash", k=3, types=[])
    # A filter narrows; it changes no score.
    all_scores = {hit.id: hit.score for hit in bm25.search("hash", k=3)}
    (hit,) = bm25.search("hash", k=1, types=["utility"])
    assert hit.score == all_scores["fair"]


def test_ties_on_paper_tie_despite_rounding() -> None:
    # Each document holds one of three equally rare words, so all are equal on
    # paper; but BM25Plus adds (delta + part) idf + idf + idf in the order of the query.
    pairs = [("c", "one x"), ("b", "two x"), ("a", "three x"), *((f"z{i}", "x") for i in range(12))]
    unrounded = rank_bm25.BM25Plus([text.split() for _, text in pairs])
    assert len(set(unrounded.get_scores(["one", "two", "three"])[:3])) > 1
    for query in ("one two three", "three one two", "two three one"):
        hits = Bm25(documents(*pairs)).search(query, k=3)
        assert ids(hits) == ["a", "b", "c"]
        assert len({hit.score for hit in hits}) == 1


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="two documents have the id 'a'"):
        Bm25(documents(("a", "x"), ("b", "y"), ("a", "z")))
    with pytest.raises(ValueError, match="unknown variant 'bm42'"):
        Bm25([], variant="bm42")
    with pytest.raises(ValueError, match="k must be at least 1"):
        Bm25([]).search("x", k=0)


# --- Scores ----------------------------------------------------------------------------------


def test_bm25plus_by_hand() -> None:
    # Two documents of 1 and 3 words, mean length 2; "x" stands in both, "y" in
    # one. k1 = 1.5, b = 0.75, delta = 1, idf = ln((N + 1) / n).
    # a: length part 1.5 (1/4 + 3/4 * 1/2) = 0.9375, x once: 1 + 2.5 / 1.9375
    # b: length part 1.5 (1/4 + 3/4 * 3/2) = 2.0625, x once: 1 + 2.5 / 3.0625,
    #    y twice: 1 + 5 / 4.0625; delta counts for absent words too, so a gets 1 for y.
    idf_x, idf_y = math.log(3 / 2), math.log(3 / 1)
    a = idf_x * (1 + 2.5 / 1.9375) + idf_y
    b = idf_x * (1 + 2.5 / 3.0625) + idf_y * (1 + 5 / 4.0625)
    hits = Bm25(documents(("a", "x"), ("b", "x y y"))).search("x y", k=2)
    assert [(hit.id, hit.rank) for hit in hits] == [("b", 1), ("a", 2)]
    assert [hit.score for hit in hits] == pytest.approx([b, a], abs=1e-9)


WORDS = st.sampled_from(["sort", "list", "hash", "map", "sum", "和", "é"])
TEXTS = st.lists(WORDS, max_size=8).map(" ".join)
LIBRARIES = st.lists(TEXTS, min_size=1, max_size=8).map(
    lambda texts: [
        Document(id=f"s{n}", name="", text=text, type=("utility", "guard")[n % 2])
        for n, text in enumerate(texts)
    ]
)
VARIANT = st.sampled_from(VARIANTS)


@given(LIBRARIES, TEXTS, VARIANT)
def test_scores_and_ranking_are_those_of_rank_bm25(
    library: list[Document], query: str, variant: str
) -> None:
    words = tokenise(query)
    corpus = [tokenise(document.text) for document in library]
    if not any(corpus):
        return
    reference = CLASSES[variant](corpus).get_scores(words)
    hits = Bm25(library, variant=variant).search(query, k=len(library))
    expected = sorted(
        (-round(score, 9), document.id)
        for document, score, text in zip(library, reference, corpus, strict=True)
        if set(words) & set(text)
    )
    assert ids(hits) == [id for _, id in expected]
    assert [hit.score for hit in hits] == pytest.approx([-score for score, _ in expected], abs=1e-9)
    assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))


@given(LIBRARIES, TEXTS, VARIANT, st.booleans(), st.randoms(use_true_random=False))
def test_the_order_of_loading_changes_nothing(
    library: list[Document], query: str, variant: str, pad: bool, random: Random
) -> None:
    shuffled = list(library)
    random.shuffle(shuffled)
    one = Bm25(library, variant=variant, pad_zero_hits=pad).search(query, k=5)
    other = Bm25(shuffled, variant=variant, pad_zero_hits=pad).search(query, k=5)
    assert one == other


@given(LIBRARIES, TEXTS, VARIANT)
def test_fewer_hits_are_the_first_of_more(
    library: list[Document], query: str, variant: str
) -> None:
    bm25 = Bm25(library, variant=variant)
    every = bm25.search(query, k=100)
    assert all(bm25.search(query, k=k) == every[:k] for k in range(1, len(library) + 2))
    guards = [hit.id for hit in every if int(hit.id[1:]) % 2]
    assert ids(bm25.search(query, k=100, types={"guard"})) == guards


def test_bm25_is_a_retriever() -> None:
    retriever: Retriever = Bm25(documents(("a", "hash")))
    assert ids(retriever.search("hash", k=1)) == ["a"]
