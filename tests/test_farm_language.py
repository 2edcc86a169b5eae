"""The farm language against a second definition of it: a regular expression and closed forms."""

import math
import re
import subprocess
import sys
from collections import Counter
from companion import ROOT
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import farm_language as farm

# ── the same language, written a second time ─────────────────────────────────────────────────────
NOUNS = ["dog", "cat", "cow", "pig", "hen", "duck", "goat", "horse"]
VERBS = ["sleep", "eat", "drink", "wait", "run", "walk", "rest", "sit"]
ANY = "|".join(NOUNS + [noun + "s" for noun in NOUNS])
PHRASES = f"(?: (?:near|behind|beside|under) the (?:{ANY})){{0,3}}"
TAILS = "|".join(f"{verb} {farm.PLACES[verb]}" for verb in VERBS)
TAILS_S = "|".join(f"{verb}s {farm.PLACES[verb]}" for verb in VERBS)
SINGULAR = f"the (?:{'|'.join(NOUNS)}){PHRASES} (?:{TAILS_S})"
PLURAL = f"the (?:{'|'.join(noun + 's' for noun in NOUNS)}){PHRASES} (?:{TAILS})"
SENTENCE = re.compile(f"(?:{SINGULAR}|{PLURAL})(?: every (?:day|night))? \\. </s>")


def in_the_language(words):
    return SENTENCE.fullmatch(" ".join(words)) is not None


def test_the_vocabulary():
    assert len(farm.VOCABULARY) == len(set(farm.VOCABULARY)) == 56
    assert farm.ID[farm.PAD] == 0  # what the loss takes for padding
    assert all(farm.VOCABULARY[number] == word for word, number in farm.ID.items())
    assert len(set(farm.PLACES.values())) == 8
    assert all(len(place.split()) == 3 for place in farm.PLACES.values())


def test_the_bound_is_the_closed_form():
    phrases = 1 / 4 + 2 / 8 + 3 / 8
    coins = 1 * 1 / 2 + 2 * 1 / 4 + 3 * 1 / 8 + 3 * 1 / 8  # the coins behind K: their entropy
    bits = 1 + 3 + coins + phrases * (2 + 4) + 3 + 1 + 1 / 2
    tokens = 2 + 3 * phrases + 1 + 3 + 2 / 2 + 1 + 1
    assert farm.expected() == (bits, tokens) == (15.5, 11.625)
    assert farm.perplexity_bound() == pytest.approx(2 ** (4 / 3), rel=1e-15)


def test_the_number_of_sentences_and_the_lengths():
    assert farm.sentences() == 16 * sum(64**k for k in range(4)) * 8 * 3 == 102_261_120
    chance = {0: 1 / 2, 1: 1 / 4, 2: 1 / 8, 3: 1 / 8}
    expected = {8 + 3 * k + 2 * late: chance[k] / 2 for k in chance for late in (0, 1)}
    assert farm.lengths() == dict(sorted(expected.items()))


def test_the_probability_of_every_short_sentence():
    """All sentences without a phrase, and those with one of two prepositions and two nouns."""
    phrases = [""] + [f" {p} the {n}" for p in ("near", "under") for n in ("cow", "ducks")]
    total = 0
    for phrase, noun, verb in product(phrases, NOUNS, VERBS):
        for subject, form in (noun, verb + "s"), (noun + "s", verb):
            for time in ("", " every day", " every night"):
                text = f"the {subject}{phrase} {form} {farm.PLACES[verb]}{time} . </s>"
                p = 1 / 16 * 1 / 8 * (1 / 4 if time else 1 / 2)
                p *= 1 / 2 * 1 / 4 * 1 / 16 * 1 / 2 if phrase else 1 / 2
                assert farm.bits(text.split()) == -math.log2(p)
                total += p if not phrase else 0
    assert total == 1 / 2


def test_the_corpus_is_in_the_language_and_has_its_statistics():
    written = farm.corpus(2500, "test of the statistics")
    assert all(in_the_language(words) and farm.first_error(words) is None for words in written)
    bits = torch.tensor([farm.bits(words) for words in written])
    assert abs(bits.mean() - 15.5) < 4 * bits.std() / 2500**0.5
    nouns = [[w for w in words if re.fullmatch(ANY, w)] for words in written]
    k = Counter(len(found) - 1 for found in nouns)
    for phrases, p in {0: 1 / 2, 1: 1 / 4, 2: 1 / 8, 3: 1 / 8}.items():
        assert abs(k[phrases] / 2500 - p) < 4 * (p * (1 - p) / 2500) ** 0.5
    same = [(noun[-1] == "s") == (found[0][-1] == "s") for found in nouns for noun in found[1:]]
    assert abs(sum(same) / len(same) - 0.5) < 2 / len(same) ** 0.5  # 4 standard errors


def test_streams_are_owned_and_repeatable():
    first = farm.corpus.__wrapped__(50, "training")
    assert first == farm.corpus.__wrapped__(50, "training")
    assert first == farm.corpus.__wrapped__(80, "training")[:50]
    assert first != farm.corpus.__wrapped__(50, "test")
    assert farm.stream("a", 0).random() != farm.stream("a", 1).random()


def test_the_parser_names_the_first_wrong_word():
    good = [
        "the",
        "dog",
        "near",
        "the",
        "cats",
        "sleeps",
        "in",
        "the",
        "barn",
        "every",
        "day",
        ".",
        "</s>",
    ]
    assert farm.first_error(good) is None
    wrong = {
        "the dog near the cats sleep in the barn . </s>": 5,  # agrees with the distractor
        "the dogs sleeps in the barn . </s>": 2,
        "the dog sleeps at the pond . </s>": 3,  # another verb's place
        "the dog" + " near the cat" * 4 + " sleeps in the barn . </s>": 11,
        "the dog sleeps in the barn </s>": 6,
        "the dog sleeps in the barn .": 7,  # stops too early
        "the dog sleeps in the barn . </s> </s>": 8,
        "dog sleeps in the barn . </s>": 0,
    }
    for text, index in wrong.items():
        assert farm.first_error(text.split()) == index, text
        assert farm.bits(text.split()) == math.inf
    assert farm.first_error([]) == 0


@settings(max_examples=60)
@given(st.randoms(use_true_random=False), st.integers(0, 3), st.sampled_from(farm.VOCABULARY))
def test_the_parser_agrees_with_the_regular_expression(rng, kind, word):
    words = farm.sample(rng)
    place = rng.randrange(len(words))
    if kind == 1:
        words[place] = word
    if kind == 2:
        words.insert(place, word)
    if kind == 3:
        del words[place]
    assert (farm.first_error(words) is None) == in_the_language(words)
    assert math.isfinite(farm.bits(words)) == in_the_language(words)


@pytest.mark.parametrize("k", [0, 3, 8])
def test_agreement_sets(k):
    ids, numbers = farm.agreement(k)
    assert ids.shape == (200, farm.query_position(k)) == (200, 3 + 3 * k)
    assert numbers.sum() == 100
    for row, number in zip(ids.tolist(), numbers.tolist()):
        start, *words = [farm.VOCABULARY[i] for i in row]
        assert start == farm.BOS
        nouns = [w for w in words if re.fullmatch(ANY, w)]
        assert words.index(nouns[0]) + 2 == farm.SUBJECT  # counted from 1, behind <s>
        assert (nouns[0][-1] == "s") == (number == farm.PLURAL)
        assert len(nouns) == k + 1
        assert all((noun[-1] == "s") != (number == farm.PLURAL) for noun in nouns[1:])
        if k <= 3:
            verb = ["sleeps", "sleep"][number]
            assert in_the_language([*words, verb, *["in", "the", "barn", ".", "</s>"]])
    assert torch.equal(ids, farm.agreement(k)[0])
    assert len(set(ids[:, 2].tolist())) == 16  # every noun, in both numbers


def test_encode_and_decode():
    rows = [["the", "dog", farm.EOS], ["the", farm.EOS]]
    ids = farm.encode(rows)
    assert ids.tolist() == [[1, 3, 5, 2], [1, 3, 2, 0]]
    assert [farm.decode(row) for row in ids.tolist()] == rows
    assert farm.decode([1, 3, 5]) == ["the", "dog"]
    assert farm.decode([1, 3, 2, 3, 2]) == ["the", farm.EOS]


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "gbk", "utf-8"])
def test_the_module_prints_itself_on_every_console(encoding, tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "farm_language.py"],
        env={"PYTHONIOENCODING": encoding, "LC_ALL": "C.UTF-8", "PATH": ""},
        capture_output=True,
        cwd=tmp_path,
        timeout=120,
    )
    text = done.stdout.decode(encoding)
    assert done.returncode == 0, done.stderr
    assert "2^(15.5/11.625) = 2.519842" in text and "102,261,120" in text


def test_agreement_sets_of_different_k_are_drawn_apart():
    """Same subjects for every k would make the k's one sample, not nine."""
    subjects = [farm.agreement(k)[0][:, 2] for k in (0, 3, 8)]
    assert not torch.equal(subjects[0], subjects[1])
    assert not torch.equal(subjects[1], subjects[2])
    assert torch.equal(farm.agreement(3)[0], farm.agreement(3)[0])


def test_the_module_says_of_itself_what_it_always_said(capsys):
    """tests/farm_language.txt was read beside §6 and the closed forms above, then kept."""
    farm.describe()
    kept = (ROOT / "tests" / "farm_language.txt").read_text(encoding="utf-8")
    assert capsys.readouterr().out == kept


@pytest.mark.parametrize("bad", [56, -1, 2.0, "dog"])
def test_an_id_that_is_no_word_is_named(bad):
    with pytest.raises(ValueError, match=f"^ids must lie in 0 … 55, got {bad!r}$"):
        farm.decode([3, bad])
    assert farm.decode([55]) == [farm.VOCABULARY[55]]


def test_a_word_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"^words must be in the vocabulary, got \['yak'\]$"):
        farm.encode([["the", "yak", "gnu"]])


def test_a_sentence_is_drawn_by_the_grammars_chances():
    """Four prepositions and eight verbs may follow a noun, each side with 1/2: no even draw."""
    rng = farm.stream("chances")
    phrases = [sum(w in farm.PREPOSITIONS for w in farm.sample(rng)) for _ in range(2000)]
    assert abs(phrases.count(0) / 2000 - 1 / 2) < 4 * (1 / 4 / 2000) ** 0.5
