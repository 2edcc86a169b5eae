"""w1d2_tokenizers.py against naive recounts, brute force, and the two libraries."""

import http.server
import json
import math
import random
import re
import subprocess
import sys
import threading
import time
from argparse import ArgumentTypeError, Namespace
from collections import Counter
from companion import ROOT, main
from contextlib import suppress
from hashlib import sha256

import pytest
import torch
from conftest import load_script, run_parts
from hypothesis import given, settings
from hypothesis import strategies as st

SHAKESPEARE = ROOT.parent / "shared" / "data" / "tinyshakespeare.txt"
HUG = {"hug": 10, "pug": 5, "pun": 12, "bun": 4, "hugs": 5}
SMALL = 600  # vocabulary for the made corpora


def made_text(letters="aeioulmnrst", words=900, tokens=6000, seed=0):
    """Text of made-up words, a few of them frequent, with capitals and full stops."""
    rng = random.Random(seed)
    lexicon = ["".join(rng.choices(letters, k=rng.randint(1, 7))) for _ in range(words)]
    weights = [1 / n for n in range(1, words + 1)]
    drawn = rng.choices(lexicon, weights, k=tokens)
    sentences = [" ".join(drawn[n : n + 8]) for n in range(0, tokens, 8)]
    return "\n".join(one.capitalize() + "." for one in sentences)


TEXT = made_text()


@pytest.fixture
def tok(script):
    return script("code/w1d2_tokenizers")


def corpus(text, size):
    """What --corpus would have given."""
    return Namespace(corpus=(text, size, ("made", "自造")))


words_of_ab = st.dictionaries(
    st.text("abc", min_size=1, max_size=7), st.integers(1, 9), min_size=1, max_size=8
)


# ── BPE and WordPiece ────────────────────────────────────────────────────────────────────────────
def naive_merges(words, vocabulary, size, by_score, mark):
    """Recount everything before each merge."""
    ids = list(vocabulary)
    spelt = {w: [w[0], *(mark + c for c in w[1:])] for w in words}
    merges = []
    while len(ids) < size:
        symbols, pairs = Counter(), Counter()
        for w, n in words.items():
            for s in spelt[w]:
                symbols[s] += n
            for a, b in zip(spelt[w], spelt[w][1:]):
                pairs[a, b] += n
        if not pairs:
            break

        def score(p, pairs=pairs, symbols=symbols):
            return pairs[p] / (symbols[p[0]] * symbols[p[1]]) if by_score else pairs[p]

        a, b = min(pairs, key=lambda p: (-score(p), ids.index(p[0]), ids.index(p[1])))
        new = a + b[len(mark) :]
        if new not in ids:
            ids.append(new)
        value = score((a, b))
        for w, s in spelt.items():
            out, n = [], 0
            while n < len(s):
                if n + 1 < len(s) and s[n] == a and s[n + 1] == b:
                    out.append(new)
                    n += 2
                else:
                    out.append(s[n])
                    n += 1
            spelt[w] = out
        merges.append((a, b, value, sum(n * len(spelt[w]) for w, n in words.items())))
    return ids, merges


@settings(deadline=None, max_examples=40)
@given(words=words_of_ab, by_score=st.booleans(), mark=st.sampled_from(["", "##"]))
def test_merges_are_those_of_a_full_recount(words, by_score, mark):
    tok = load_script("code/w1d2_tokenizers")
    start = tok.letters(words, mark)
    score = tok.surprise if by_score else tok.frequency
    vocabulary, merges = tok.train_merges(words, start, 30, score, mark)
    ids, expected = naive_merges(words, start, 30, by_score, mark)
    assert merges == expected
    assert list(vocabulary) == ids and list(vocabulary.values()) == list(range(len(ids)))


def test_letters(tok):
    assert tok.letters(HUG) == list("bghnpsu")
    assert tok.letters({"ba": 1}, "##") == ["##a", "##b", "a", "b"]


def test_first_merges_of_the_lecture(tok):
    _, bpe = tok.train_merges(HUG, tok.letters(HUG), 99, tok.frequency)
    _, wordpiece = tok.train_merges(HUG, tok.letters(HUG, "##"), 99, tok.surprise, "##")
    assert bpe[0][:3] == ("u", "g", 20)
    assert wordpiece[0][:3] == ("##g", "##s", pytest.approx(5 / (20 * 5)))
    pairs = tok.Pairs(HUG, "##")
    assert tok.surprise(pairs, ("##u", "##g")) == pytest.approx(20 / (36 * 20))


def test_bpe_merges_and_splits_are_the_librarys(tok):
    library = tok.tokenizers_library("BPE", TEXT, SMALL)
    vocabulary, merges = tok.pure_bpe(TEXT, SMALL)
    assert library.get_vocab() == vocabulary
    ranks = tok.rank(merges)
    unseen = ["aeiou", "tasteless", "Unreal", "xmas", "mmmm", "mmmmm"]
    for word, tokens in tok.encode_words(library, [*tok.count_words(TEXT), *unseen]):
        assert tok.encode_bpe(word, ranks, vocabulary) == tokens


def test_merging_by_count_is_wordpiece_of_the_library(tok):
    words = tok.count_words(TEXT)
    start = tok.SPECIAL + tok.letters(words, "##")
    by_count, _ = tok.train_merges(words, start, SMALL, tok.frequency, "##")
    library = tok.tokenizers_library("WordPiece", TEXT, SMALL)
    assert library.get_vocab() == by_count
    unseen = ["aeiou", "tasteless", "Unreal", "xmas", "mx"]
    for word, tokens in tok.encode_words(library, [*words, *unseen]):
        assert tok.encode_wordpiece(word, by_count) == tokens
    text = library.encode(" ".join(w for w, n in words.items() for _ in range(n)))
    assert tok.encoded_length(words, by_count) == len(text.tokens)


def test_wordpiece_takes_the_longest_piece_from_the_left(tok):
    pieces = {"a", "ab", "##b", "##c", "##bc", "##bcd"}
    assert tok.encode_wordpiece("abc", pieces) == ["ab", "##c"]
    assert tok.encode_wordpiece("abcd", pieces) == ["[UNK]"]  # though a + ##bcd would do
    assert tok.encode_wordpiece("ba", pieces) == ["[UNK]"]


# ── Unigram ──────────────────────────────────────────────────────────────────────────────────────
def cuts(word, longest=99):
    """Every way to cut a word, by the subsets of its inner boundaries."""
    for inner in range(2 ** (len(word) - 1)):
        ends = [n for n in range(1, len(word)) if inner >> (n - 1) & 1]
        pieces = [word[i:j] for i, j in zip([0, *ends], [*ends, len(word)])]
        if all(len(p) <= longest for p in pieces):
            yield pieces


def brute(word, logp):
    """{pieces: log P} over all cuts; a letter that is no piece costs what [UNK] costs."""
    found = {}
    for pieces in cuts(word, 16):
        if all(p in logp or len(p) == 1 for p in pieces):
            found[tuple(pieces)] = sum(logp.get(p, logp["[UNK]"]) for p in pieces)
    return found


scores = st.dictionaries(
    st.text("ab", min_size=1, max_size=4), st.floats(-12, -0.1), min_size=1, max_size=12
)
word_of_abc = st.text("abc", min_size=1, max_size=8)


@settings(deadline=None, max_examples=60)
@given(logp=scores, word=word_of_abc)
def test_lattice_routes_equal_brute_force(logp, word):
    tok = load_script("code/w1d2_tokenizers")
    logp = tok.with_unknown(logp)
    every = brute(word, logp)
    pieces, score = tok.viterbi(word, logp)
    assert score == pytest.approx(max(every.values()))
    assert every[tuple(pieces)] == pytest.approx(score)
    split = {p: s for p, s in every.items() if len(p) > 1}
    pieces, score = tok.viterbi(word, logp, whole=False)
    assert score == pytest.approx(max(split.values(), default=-math.inf))
    assert split[tuple(pieces)] == pytest.approx(score) if split else pieces == []
    before = tok.forward(len(word), tok.lattice(word, logp))
    assert before[-1] == pytest.approx(math.log(sum(map(math.exp, every.values()))), abs=1e-9)
    known = {p: s for p, s in every.items() if all(one in logp for one in p)}
    assert {tuple(p): s for p, s in tok.segmentations(word, logp)} == pytest.approx(known)


@settings(deadline=None, max_examples=30)
@given(logp=scores, words=words_of_ab)
def test_e_step_equals_brute_force(logp, words):
    tok = load_script("code/w1d2_tokenizers")
    logp = tok.with_unknown(logp)
    expected = dict.fromkeys(logp, 0.0)
    for word, count in words.items():
        every = brute(word, logp)
        total = sum(map(math.exp, every.values()))
        for pieces, score in every.items():
            for p in pieces:
                if p in expected:
                    expected[p] += count * math.exp(score) / total
    assert tok.e_step(words, logp) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_m_step(tok):
    expected = {"a": 7.25, "b": 0.5, "c": 0.49, "ab": 31.0, "[UNK]": 0.0}
    logp = tok.m_step(expected)
    kept = torch.tensor([7.25, 0.5, 31.0], dtype=torch.float64)
    theirs = (torch.digamma(kept) - torch.digamma(kept.sum())).tolist()
    assert logp == pytest.approx(dict(zip(["a", "b", "ab"], theirs)) | {"[UNK]": min(theirs) - 10})


@pytest.mark.parametrize("x", [1e-3, 0.5, 1.0, 2.5, 6.99, 7.0, 30.0, 1e6])
def test_digamma(tok, x):
    theirs = torch.digamma(torch.tensor(x, dtype=torch.float64)).item()
    assert tok.digamma(x) == pytest.approx(theirs, rel=1e-9)


def test_seed_pieces_and_their_scores(tok, monkeypatch):
    monkeypatch.setattr(tok, "LONGEST", 3)
    words = {"abab": 1, "abx": 2, "q": 1}
    found = Counter()
    for word, n in words.items():
        for i in range(len(word)):
            for j in range(i + 1, len(word) + 1):
                found[word[i:j]] += n * (j - i <= 3)
    seeds = {p: n for p, n in found.items() if n > 1 or n and len(p) == 1}
    assert tok.seed_pieces(words) == seeds
    assert {"ab": 4, "q": 1, "abx": 2}.items() <= seeds.items() and "abab" not in seeds
    covers = {p: n * len(p) for p, n in seeds.items()}
    logp = tok.start_scores(words)
    low = logp.pop("[UNK]")
    assert {p: math.exp(s) * sum(covers.values()) for p, s in logp.items()} == pytest.approx(covers)
    assert low == pytest.approx(min(logp.values()) - 10)
    assert (
        max(j - i for i, j, _ in tok.lattice("abababab", logp | {"bab": -1.0, "abab": -1.0})) == 3
    )


@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize("words", [HUG, "made"])
def test_em_is_sentencepieces(tok, words, rounds):
    """Without pruning every piece that both keep has the same score, to float32."""
    words = dict(list(tok.count_words(TEXT).items())[:200]) if words == "made" else words
    ours = tok.em(words, tok.start_scores(words), rounds)
    theirs = tok.sentencepiece_scores(words, 10**5, rounds)
    both = [p for p in theirs if p in ours and len(p) > 1]
    assert len(both) >= 5
    assert [ours[p] for p in both] == pytest.approx([theirs[p] for p in both], abs=1e-4)
    # SentencePiece drops in the end what no word's best segmentation uses; the rest is the same
    used = tok.count_used(words, ours)
    assert {p for p in ours if used[p] and len(p) > 1} == {p for p in theirs if len(p) > 1}


def test_of_two_equal_segmentations_the_longer_last_piece_wins(tok):
    logp = tok.with_unknown({"a": -1.0, "b": -1.0, "ab": -2.0, "c": -1.0})
    assert tok.viterbi("ab", logp) == (["ab"], -2.0)
    assert tok.viterbi("cab", logp) == (["c", "ab"], -3.0)


def test_count_used(tok):
    logp = tok.with_unknown({"a": -2.0, "b": -2.0, "ab": -1.0})
    assert tok.count_used({"aba": 3, "abab": 2, "b": 5}, logp) == {"ab": 7, "a": 3, "b": 5}


def test_removal_cost(tok):
    """60 tokens ab of 100 become a + b: then 160 tokens, 90 of them a, 70 b."""
    cost = tok.removal_cost("ab", ["a", "b"], Counter(a=30, b=10, ab=60), 100)
    assert cost == pytest.approx(
        60 * (math.log(60 / 100) - math.log(90 / 160) - math.log(70 / 160))
    )


def test_prune_keeps_what_costs_most(tok):
    words = {
        "ab": 50,
        "cd": 20,
        "abcd": 1,
        "x": 1,
        "a": 5,
        "b": 5,
        "c": 5,
        "d": 5,
        "zz": 4,
        "ef": 9,
    }
    logp = dict.fromkeys("abcdx", -4.0) | {
        "ab": -2.0,
        "cd": -3.0,
        "abcd": -9.0,
        "bc": -5.0,
        "ef": -5.0,
    }
    logp = tok.with_unknown(logp)
    letters = set("abcdx") | {"[UNK]", "ef"}  # ef: there is no e and no f to spell it with
    assert set(tok.prune(words, logp, 8)) == letters | {"ab", "cd"}
    assert set(tok.prune(words, logp, 7)) == letters | {"ab"}
    assert set(tok.prune(words, logp, 5)) == set(tok.prune(words, logp, 1)) == letters
    # unused (bc), and split by its own best segmentation (abcd): gone however many may stay
    assert set(tok.prune(words, logp, 99)) == letters | {"ab", "cd"}
    assert tok.prune(words, logp, 8)["ab"] == -2.0


def test_highest(tok):
    values = {"b": 1.0, "c": 2.0, "a": 1.0 - 1e-9, "d": 0.5}
    assert tok.highest(values) == ["c", "a", "b", "d"]


@pytest.mark.parametrize("size", [150, pytest.param(300, marks=pytest.mark.slow)])
def test_unigram_training(tok, size):
    words = tok.count_words(TEXT)
    logp = tok.train_unigram(words, size)
    assert len(logp) == size
    assert set(tok.letters(words)) | {"[UNK]"} <= set(logp)
    pieces = [round(s, 6) for p, s in logp.items() if p != "[UNK]"]
    assert pieces == sorted(pieces, reverse=True)
    assert logp["[UNK]"] == pytest.approx(pieces[-1] - 10)
    theirs = tok.sentencepiece_scores(words, size + 2, 2)  # it has three special pieces, we one
    both = theirs.keys() & logp
    assert len(both) > 0.97 * len(theirs)  # it rounds to float32, which decides between equals
    assert [logp[p] for p in both] == pytest.approx([theirs[p] for p in both], abs=3e-3)


def test_unigram_stops_where_nothing_is_left(tok):
    logp = tok.train_unigram(HUG, 99)
    assert len(logp) < 20
    # EM has no use for the letter b: it comes back with the score of the least probable piece
    assert logp["b"] == min(score for piece, score in logp.items() if piece in HUG)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_samples_follow_p_to_the_alpha(tok, alpha):
    logp = tok.start_scores(HUG)
    weights = {p: math.exp(alpha * s) for p, s in brute("hugs", logp).items()}
    rng, n = random.Random(1), 4000
    drawn = Counter(tuple(tok.sample("hugs", logp, alpha, rng)) for _ in range(n))
    assert set(drawn) <= set(weights) and len(weights) == 8
    for pieces, weight in weights.items():
        p = weight / sum(weights.values())
        assert abs(drawn[pieces] - n * p) < 5 * math.sqrt(n * p * (1 - p)) + 1, pieces


def test_segmentations_are_the_librarys_n_best(tok):
    model = tok.sentencepiece_library(TEXT, SMALL)
    logp = tok.with_unknown(tok.pieces_of(model))
    every = sorted(tok.segmentations("▁stream", logp), key=lambda one: -one[1])
    assert len(every) > 10
    theirs = model.nbest_encode("stream", nbest_size=500, out_type=str)
    scores = {tuple(pieces): score for pieces, score in every}
    assert set(map(tuple, theirs)) == set(scores)
    assert [scores[tuple(one)] for one in theirs] == pytest.approx([s for _, s in every], abs=1e-4)


def test_viterbi_is_both_libraries_with_their_scores(tok):
    words = tok.count_words(TEXT)
    library = tok.tokenizers_library("Unigram", TEXT, SMALL)
    pieces = json.loads(library.to_str())["model"]["vocab"][2:]
    pieces = tok.with_unknown(dict(map(tuple, pieces)))
    for word, tokens in tok.encode_words(library, words):
        assert tok.viterbi(word, pieces)[0] == tokens
    model = tok.sentencepiece_library(TEXT, SMALL)
    scores = tok.with_unknown(tok.pieces_of(model))
    for word in words:
        theirs = model.encode(word, out_type=str)
        ours, score = tok.viterbi("▁" + word, scores)
        # equal up to the last bits of its float32 sums
        assert ours == theirs or sum(scores[p] for p in theirs) == pytest.approx(score, abs=1e-4)


# ── the libraries ────────────────────────────────────────────────────────────────────────────────
def test_special_tokens_are_specials(tok):
    for kind in (*tok.KINDS, "byte-level BPE"):
        library = tok.tokenizers_library(kind, TEXT, SMALL)
        assert [library.token_to_id(t) for t in ("[UNK]", "[PAD]")] == [0, 1]
        known = library.get_added_tokens_decoder()
        assert {t.content for t in known.values()} == {"[UNK]", "[PAD]"}
        assert library.encode("##a").tokens != ["##a"]
    assert tok.tokenizers_library("BPE", TEXT, SMALL).encode("é a").tokens[0] == "[UNK]"


def test_bpe_says_what_is_possible(tok):
    with pytest.raises(ValueError, match=r"vocabulary of 9000 from BPE: the text gives \d+"):
        tok.tokenizers_library("BPE", TEXT, 9000)


anything = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="▁\x00"), max_size=30
)


@settings(deadline=None, max_examples=100)
@given(text=anything)
def test_exact_round_trips(text):
    tok = load_script("code/w1d2_tokenizers")
    for name in ("tokenizers byte-level BPE", "SentencePiece BPE, byte_fallback, exact"):
        _, _, decode = tok.TOKENIZERS[name](TEXT, SMALL)
        assert decode(text) == text, name


def test_tokenizers_of_the_last_table(tok):
    for name, make in tok.TOKENIZERS.items():
        vocabulary, encode, decode = make(TEXT, SMALL)
        assert vocabulary <= SMALL
        joined = "".join(encode("Anno sola tres")).replace("##", "").replace("▁", "")
        assert joined.replace("Ġ", "") == "Annosolatres", name
        assert (decode is None) == name.startswith("pure")
        has_bytes = "byte" in name
        assert any(t in ("[UNK]", "<unk>") for t in encode("anno 龘")) != has_bytes, name


def test_sentencepiece_says_what_is_possible(tok):
    largest, message = tok.largest_vocabulary(TEXT)
    assert f"at most {largest} " in message
    assert tok.largest_vocabulary(TEXT, largest) == (largest, "")
    assert tok.largest_vocabulary(TEXT, largest + 1)[0] == largest


def test_absent(tok):
    assert tok.absent("abc") == "龘"
    assert tok.absent("龘龗") == chr(0x9F96)


CHINESE = "".join(map(chr, range(0x4E00, 0x4E40))) + "龘龗"


@pytest.mark.parametrize(
    "letters, size",
    [pytest.param("aeioulmnrst", SMALL, marks=pytest.mark.slow), (CHINESE, 400)],
    ids=["Latin", "Chinese"],
)
def test_verdicts_do_not_depend_on_the_corpus(tok, letters, size, monkeypatch):
    monkeypatch.setattr(tok, "DRAWS", 50)
    text = made_text(letters, words=900, tokens=5000, seed=1)
    show = run_parts(tok, options=corpus(text, size))
    assert len(show.claims) == 12
    assert set(show.verdicts.values()) == {"ok", "erratum"}
    assert show.notes.count("made") == 1
    table = show.tables[f"BPE, vocabulary {size:,}"][1]
    assert all(equal == of for _, equal, of in table)
    splits = show.tables[f"Unigram, vocabulary {size:,}"][1][-1]
    assert splits[1] == splits[2]
    (hug,) = [rows for title, (_, rows) in show.tables.items() if "hug corpus: 9" in title]
    merged = ["##ug", "##un", "hug", "pun", "pug", "hugs", "bun"]
    assert [row[0] for row in hug] == list(range(1, 10))
    assert [row[-1] for row in hug] == [*merged, "", ""]  # by count there are two merges fewer
    assert [row[2].replace(" + ##", "") for row in hug] == [*merged, "", ""]
    assert [row[1] for row in hug][:2] == ["##g + ##s", "##u + ##g"]
    assert [row[1] for row in hug][-1] == "p + ##un"
    assert [row[3] for row in hug][:3] == ["0.050", "0.028", "0.048"]
    assert [row[4] for row in hug] == [20, 16, 15, 12, 5, 5, 4, "", ""]
    default, identity, exact = show.tables["decode(encode(text)) == text"][1]
    assert all(exact[1:]) and not all(identity[1:]) and not all(default[1:])


def test_drawn_shares_are_beside_their_probabilities(tok, monkeypatch):
    monkeypatch.setattr(tok, "SAMPLED", "rots")
    monkeypatch.setattr(tok, "DRAWS", 3000)
    show = run_parts(tok, [3], options=corpus(TEXT, SMALL))
    rows = next(rows for t, (_, rows) in show.tables.items() if t.startswith("Subword"))
    shares = [float(row[2]) for row in rows]
    assert len(rows) > 4 and 0.9 < sum(shares) <= 1.001
    assert [row[4] for row in rows] == list(range(1, len(rows) + 1))  # SentencePiece's order
    assert [row[5] for row in rows] == ["*"] + [""] * (len(rows) - 1)
    for share, row in zip(shares, rows):
        assert abs(float(row[3]) - share) < 5 * math.sqrt(share * (1 - share) / 3000) + 1e-3


@pytest.mark.slow
def test_parts_alone_measure_what_they_measure_together(tok, monkeypatch):
    monkeypatch.setattr(tok, "DRAWS", 50)
    options = corpus(made_text(words=900, tokens=5000, seed=1), SMALL)
    together = run_parts(tok, options=options)
    alone = {}
    for n in range(1, len(tok.PARTS) + 1):
        alone |= run_parts(tok, [n], options=options).claims
    assert alone == together.claims


def test_senseless_constants(tok, monkeypatch):
    with pytest.raises(ValueError, match="VOCAB_SIZE must be above"):
        run_parts(tok, [1], options=corpus(TEXT, 100))
    monkeypatch.setattr(tok, "SAMPLED", "")
    with pytest.raises(ValueError, match="SAMPLED"):
        run_parts(tok, [3], options=corpus(TEXT, SMALL))


# ── the corpus ───────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    "data, message",
    [
        (b"", "it is empty"),
        (b" \n\t\n", "it is empty"),
        (b"\xff\xfeabc", "not UTF-8: byte 0 is 0xff"),
        (b"abc \xe4\xbd", "not UTF-8: byte 4 is 0xe4"),
        (b"a", "only one character"),
        (b"aaa aa\na", "only one character"),
        (b"ab", r"vocabulary of 8000 .* at most \d+"),
        (TEXT.encode(), r"vocabulary of 8000 .* at most \d+"),
    ],
)
def test_unusable_corpus(tok, tmp_path, data, message, capsys):
    path = tmp_path / "corpus.txt"
    path.write_bytes(data)
    with pytest.raises(ArgumentTypeError, match=message):
        tok.read_corpus(path)
    with pytest.raises(SystemExit) as stop:
        main(tok.__doc__, tok.PARTS, ["--corpus", str(path)], extra=tok.add_corpus)
    said = capsys.readouterr()
    assert stop.value.code == 2
    assert said.out == "" and said.err.count("\n") == 1 and re.search(message, said.err)


def test_missing_corpus(tok, tmp_path):
    with pytest.raises(ArgumentTypeError, match="No such file"):
        tok.read_corpus(tmp_path / "none.txt")


def test_usable_corpus(tok, tmp_path, monkeypatch):
    monkeypatch.setattr(tok, "VOCAB_SIZE", 300)
    path = tmp_path / "corpus.txt"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    text, size, note = tok.read_corpus(path)
    assert (text, size) == (TEXT, 300) and str(path) in note[0] and str(path) in note[1]


@pytest.fixture
def home(tok, tmp_path, monkeypatch):
    """A public home on this machine, a checkout in tmp_path; set .data to what it should send."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            server.asked += 1
            time.sleep(server.delay)
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):  # whoever asked may have given up
                for n in range(0, len(server.data), 1000):
                    self.wfile.write(server.data[n : n + 1000])
                    time.sleep(server.pause)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked, server.delay, server.pause, server.data = 0, 0, 0, TEXT.encode()
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
    monkeypatch.setattr(tok, "CORPUS_HOME", f"http://127.0.0.1:{server.server_port}/input.txt")
    monkeypatch.setattr(tok, "CORPUS_SHA256", sha256(TEXT.encode()).hexdigest())
    monkeypatch.setattr(tok, "ROOT", tmp_path)
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    tok.default_corpus.cache_clear()
    yield server
    tok.default_corpus.cache_clear()
    server.shutdown()
    server.server_close()


def test_downloaded_once(tok, home, tmp_path):
    for _ in range(2):
        tok.default_corpus.cache_clear()
        text, size, note = tok.default_corpus()
        assert (text, size, home.asked) == (TEXT, tok.VOCAB_SIZE, 1)
        assert "Tiny Shakespeare" in note[0] and "pydoc" not in note[0]
    assert [p.name for p in (tmp_path / ".cache").iterdir()] == ["tinyshakespeare.txt"]


def test_a_wrong_file_is_refused_and_not_kept(tok, home, tmp_path):
    home.data = TEXT.encode() + b" "
    text, size, note = tok.default_corpus()
    assert "refused: SHA-256" in note[0] and "pydoc_data.topics" in note[0]
    assert "pydoc_data.topics" in note[1]
    assert size == tok.FALLBACK_VOCAB_SIZE and text != TEXT
    assert not list(tmp_path.rglob("*.txt*"))


def test_a_damaged_cache_is_not_used(tok, home, tmp_path):
    cached = tmp_path / ".cache" / "tinyshakespeare.txt"
    cached.parent.mkdir()
    cached.write_text("half a corp")
    assert tok.default_corpus()[0] == TEXT
    assert cached.read_text("utf-8") == TEXT and home.asked == 1


def test_a_slow_home_is_given_up(tok, home, monkeypatch):
    monkeypatch.setattr(tok, "TIME_LIMIT", 0.2)
    home.delay = 1.0
    start = time.perf_counter()
    _, _, note = tok.default_corpus()
    assert time.perf_counter() - start < 0.9
    assert "no answer within 0.2 s" in note[0] or "timed out" in note[0]


def test_a_dripping_home_is_given_up(tok, home, monkeypatch):
    """Each wait is short, all together are not."""
    monkeypatch.setattr(tok, "TIME_LIMIT", 0.3)
    home.pause = 0.1  # some thirty times
    assert tok.download(tok.CORPUS_HOME) == (None, "no answer within 0.3 s")


def test_an_endless_file_is_cut_off(tok, home, monkeypatch):
    monkeypatch.setattr(tok, "CORPUS_BYTES", 100)
    assert len(tok.download(tok.CORPUS_HOME)[0]) == 101


def test_no_network(tok, home, monkeypatch):
    monkeypatch.setattr(tok, "CORPUS_HOME", "http://127.0.0.1:9/")
    text, size, note = tok.default_corpus()
    assert size == tok.FALLBACK_VOCAB_SIZE and "pydoc_data.topics" in note[0]
    assert len(text) > 100_000


def test_an_unwritable_checkout_is_no_obstacle(tok, home, tmp_path):
    (tmp_path / ".cache").write_text("in the way")
    assert tok.default_corpus()[0] == TEXT


# ── the real thing ───────────────────────────────────────────────────────────────────────────────
@pytest.mark.slow
def test_fallback_text_allows_its_vocabulary(tok):
    import pydoc_data.topics

    text = "\n".join(pydoc_data.topics.topics.values())
    assert tok.largest_vocabulary(text)[0] >= tok.FALLBACK_VOCAB_SIZE
    assert tok.tokenizers_library("BPE", text, tok.FALLBACK_VOCAB_SIZE)


@pytest.mark.slow
def test_wordpiece_vocabulary_is_the_same_in_every_process():
    """Without its letters' ids fixed, the library's trainer breaks ties by the order of a hash."""
    code = (
        "import sys, hashlib; sys.path[:0] = ['.', 'tests'];"
        "from conftest import load_script; from test_w1d2_tokenizers import TEXT;"
        "t = load_script('code/w1d2_tokenizers').tokenizers_library('WordPiece', TEXT, 700);"
        "print(sorted(t.get_vocab().items()))"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, check=True)
        for _ in range(3)
    ]
    assert len({run.stdout for run in runs}) == 1


@pytest.mark.slow
@pytest.mark.skipif(not SHAKESPEARE.exists(), reason=f"{SHAKESPEARE.name} is not on this machine")
def test_tiny_shakespeare(tok):
    assert sha256(SHAKESPEARE.read_bytes()).hexdigest() == tok.CORPUS_SHA256
    assert SHAKESPEARE.stat().st_size == tok.CORPUS_BYTES
    options = Namespace(corpus=tok.read_corpus(SHAKESPEARE))
    start = time.process_time()
    show = run_parts(tok, options=options)
    assert time.process_time() - start < 30
    assert set(show.verdicts.values()) == {"ok", "erratum"}
    (_, same, of), (_, split, words) = show.tables["BPE, vocabulary 8,000"][1]
    assert (same, split) == (of, words) == (7935, 13355)
    assert show.tables["WordPiece, vocabulary 8,000"][1][0][1] == 8000
    pieces, splits = show.tables["Unigram, vocabulary 8,000"][1]
    assert pieces[1] > 0.999 * pieces[2] and splits[1] == splits[2] == 13355
