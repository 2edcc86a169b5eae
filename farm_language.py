"""农场语言 · The farm language: grammar, corpus, exact entropy · Lecture 2, §6

    S → the NOUN[n] (PREP the NOUN[any]){K} VERB[n] PLACE(VERB) [every day | every night] .

Every choice is a fair coin or a uniform pick. After each noun a coin decides whether one more
phrase follows, at most three: K = 0, 1, 2, 3 with probability 1/2, 1/4, 1/8, 1/8. The nouns in
the phrases, the distractors, have a number of their own. A verb has one place that belongs to it.
An ideal model pays 15.5 bits for the 11.625 tokens of a mean sentence, </s> included: exactly 4/3
bit a token, a perplexity of 2^(4/3) = 2.5198 that no model can beat.

Lecture 1 defines the language; where its text is lost, the grammar is ours, built to meet what
Lecture 2 says of it: vocabulary 56, inputs up to 19 tokens, up to 3 distractors, that bound.

    python farm_language.py     the grammar, ten sentences, the lengths, the bound
"""

import math
import random
from collections import Counter
from functools import cache
from itertools import accumulate
from numbers import Integral

import torch

import needs

# ── the grammar: data ────────────────────────────────────────────────────────────────────────────
NOUNS = ["dog", "cat", "cow", "pig", "hen", "duck", "goat", "horse"]  # plural: one s more
PLACES = {
    "sleep": "in the barn", "eat": "in the meadow", "drink": "at the pond", "wait": "at the gate",
    "run": "to the field", "walk": "to the river", "rest": "on the hay", "sit": "on the hill",
}  # fmt: skip
PREPOSITIONS = ["near", "behind", "beside", "under"]
TIMES = ["day", "night"]
MOST_PHRASES = 3

SINGULAR, PLURAL = 0, 1
NOUN = [NOUNS, [noun + "s" for noun in NOUNS]]  # NOUN[number]
VERB = [[verb + "s" for verb in PLACES], list(PLACES)]  # VERB[number]: the dog sleeps, dogs sleep

PAD, BOS, EOS = "<pad>", "<s>", "</s>"
VOCABULARY = list(
    dict.fromkeys(
        [PAD, BOS, EOS, "the", ".", *NOUN[SINGULAR], *NOUN[PLURAL], *VERB[SINGULAR], *VERB[PLURAL]]
        + [*PREPOSITIONS, *" ".join(PLACES.values()).split(), "every", *TIMES]
    )
)
ID = {word: number for number, word in enumerate(VOCABULARY)}

SUBJECT = 3  # the subject noun is token 3 of the input, counted from 1: <s> the NOUN


def query_position(k):
    """The token, counted from 1, at which the verb is predicted after k phrases of three words."""
    needs.whole(0, k=k)
    return SUBJECT + 3 * k


# ── the grammar: an automaton ────────────────────────────────────────────────────────────────────
START, END = ("start",), ("end",)


@cache
def arcs(state):
    """What may come next in this state: a list of (probability, word, the state after it)."""
    match state:
        case ("start",):
            return [(1, "the", ("subject",))]
        case ("subject",):
            return [(1 / 16, noun, ("noun", n, 0)) for n in (0, 1) for noun in NOUN[n]]
        case ("noun", n, k):  # subject of number n, k phrases so far: a verb, or one more phrase
            p = 1 / 2 if k < MOST_PHRASES else 1
            verbs = [(p / 8, v, ("place", PLACES[lemma])) for v, lemma in zip(VERB[n], PLACES)]
            return verbs + [((1 - p) / 4, w, ("phrase", n, k)) for w in PREPOSITIONS if p < 1]
        case ("phrase", n, k):
            return [(1, "the", ("distractor", n, k))]
        case ("distractor", n, k):  # either number: the state keeps the subject's
            return [(1 / 16, noun, ("noun", n, k + 1)) for noun in NOUN[0] + NOUN[1]]
        case ("place", words):  # those of the place that are still to come
            first, _, later = words.partition(" ")
            return [(1, first, ("place", later) if later else ("time",))]
        case ("time",):
            return [(1 / 2, ".", ("full stop",)), (1 / 2, "every", ("every",))]
        case ("every",):
            return [(1 / 2, time, ("after time",)) for time in TIMES]
        case ("after time",):
            return [(1, ".", ("full stop",))]
        case ("full stop",):
            return [(1, EOS, END)]
        case ("end",):
            return []
    raise ValueError(f"state must be START or one that arcs gave, got {needs.shown(state)}")


def follow(words):
    """Walk through the automaton: the probabilities of the words, and the first index that fails.

    Words end in "</s>". The index is None for a sentence of the language; it is len(words) for one
    that stops too early.
    """
    state, probabilities = START, []
    for index, word in enumerate(needs.listed("words", words)):
        step = next(((p, after) for p, w, after in arcs(state) if w == word), None)
        if step is None:
            return probabilities, index
        probabilities.append(step[0])
        state = step[1]
    return probabilities, None if state == END else len(probabilities)


def first_error(words):
    """The parser: the index of the first word that the grammar forbids, None if all is well."""
    return follow(words)[1]


def bits(words):
    """-log2 P(sentence), which an ideal model pays for it."""
    probabilities, error = follow(words)
    return math.inf if error is not None else -sum(map(math.log2, probabilities))


# ── what the grammar implies, exactly: dynamic programming over the automaton ────────────────────
@cache
def expected(state=START):
    """The mean number of bits and of tokens from here to the end; probabilities are powers of 2."""
    steps = [(p, *expected(after)) for p, _, after in arcs(state)] if state != END else []
    mean_bits = sum(p * (later - math.log2(p)) for p, later, _ in steps)
    return mean_bits, sum(p * (1 + later) for p, _, later in steps)


@cache
def lengths(state=START):
    """How probable each number of tokens from here to the end is: {tokens: probability}."""
    if state == END:
        return {0: 1}
    found = Counter()
    for p, _, after in arcs(state):
        for tokens, q in lengths(after).items():
            found[1 + tokens] += p * q
    return dict(sorted(found.items()))


@cache
def sentences(state=START):
    """How many ways there are from here to the end."""
    return 1 if state == END else sum(sentences(after) for _, _, after in arcs(state))


def perplexity_bound():
    """2^(bits a token): the perplexity of the grammar itself, below which no model can get."""
    mean_bits, mean_tokens = expected()
    return 2 ** (mean_bits / mean_tokens)


# ── corpora ──────────────────────────────────────────────────────────────────────────────────────
def stream(purpose, seed=0):
    """A random stream of its own for every purpose and seed."""
    return random.Random(f"farm language, {purpose}, {seed}")


@cache  # the random walk asks for it some 300,000 times
def _cumulative(state):
    return list(accumulate(p for p, _, _ in arcs(state)))


def sample(rng):
    """One sentence of the language, as a list of words that ends in "</s>"."""
    state, words = START, []
    while state != END:
        [(_, word, state)] = rng.choices(arcs(state), cum_weights=_cumulative(state))
        words.append(word)
    return words


@cache
def corpus(size, purpose):
    """`size` sentences from the stream of that purpose, the same at every call."""
    needs.whole(size=size)
    rng = stream(purpose)
    return tuple(tuple(sample(rng)) for _ in range(size))


def agreement(k, size=200):
    """Sentences cut off before the verb, each with k distractors of the opposite number.

    Half of the subjects are singular, so that a constant answer scores 0.5 exactly.
    Returns the ids (size, 3 + 3k), which start with <s>, and the subjects' numbers (size,).
    """
    needs.whole(0, k=k)
    needs.whole(size=size)
    rng = stream(f"agreement {k}")
    numbers = [i % 2 for i in range(size)]
    rows = []
    for n in numbers:
        words = ["the", rng.choice(NOUN[n])]
        for _ in range(k):
            words += [rng.choice(PREPOSITIONS), "the", rng.choice(NOUN[1 - n])]
        rows.append(words)
    return encode(rows), torch.tensor(numbers)


def encode(rows):
    """Rows of words → ids (B, T) with <s> in front and <pad> behind."""
    rows = [needs.listed("words", words) for words in needs.listed("rows", rows)]
    needs.that(rows, "rows must hold at least one sentence, got none")
    strange = [w for words in rows for w in words if not isinstance(w, str) or w not in ID]
    needs.that(not strange, f"words must be in the vocabulary, got {needs.shown(strange[:1])}")
    T = 1 + max(map(len, rows))
    padded = [[BOS, *words] + [PAD] * (T - 1 - len(words)) for words in rows]
    return torch.tensor([[ID[word] for word in words] for words in padded])  # (B, T)


def decode(ids):
    """A row of ids → its words up to and with the first "</s>", without <s>."""
    ids = ids.tolist() if isinstance(ids, torch.Tensor) else ids
    for i in (ids := needs.listed("ids", ids)):
        known = isinstance(i, Integral) and 0 <= i < len(VOCABULARY)
        needs.that(known, f"ids must lie in 0 … {len(VOCABULARY) - 1}, got {needs.shown(i)}")
    words = [VOCABULARY[i] for i in ids if VOCABULARY[i] != BOS]
    return words[: words.index(EOS) + 1] if EOS in words else words


# ── what the module says of itself ───────────────────────────────────────────────────────────────
def describe():
    """Print the grammar, ten sentences, the lengths and the bound, in ASCII for every console."""
    k = ", ".join(f"{k} {2.0 ** -min(k + 1, MOST_PHRASES):g}" for k in range(MOST_PHRASES + 1))
    print("The grammar; equal chances where none are given")
    print("  S            the NOUN[n] (PREP the NOUN[any]){K} VERB[n] PLACE(VERB) TIME .")
    print("  n            singular 0.5, plural 0.5")
    print(f"  K            {k}")
    print("  NOUN         " + ", ".join("/".join(pair) for pair in zip(*NOUN)))
    print("  PREP         " + ", ".join(PREPOSITIONS))
    for one, many in zip(*VERB):
        print(f"  VERB PLACE   {one}/{many} {PLACES[many]}")
    print("  TIME         nothing 0.5, " + ", ".join(f"every {time} 0.25" for time in TIMES))

    written = corpus(20_000, "training")
    print("\nTen sentences, with bits and tokens (</s> included)")
    for words in written[:10]:
        print(f"  {bits(words):2.0f} {len(words):3}   {' '.join(words[:-1])}")

    found = Counter(map(len, written))
    print(f"\nTokens a sentence: by the grammar, among {len(written):,} sentences")
    for tokens, p in lengths().items():
        share = found[tokens] / len(written)
        print(f"  {tokens:2}  {p:.4f}  {share:.4f}  {'#' * round(100 * share)}")

    mean_bits, mean_tokens = expected()
    sampled = 2 ** (sum(map(bits, written)) / sum(map(len, written)))
    print(
        f"\n{sentences():,} sentences in the language, {len(set(written)):,} of them in the corpus"
    )
    print(f"{mean_bits} bits and {mean_tokens} tokens in a mean sentence")
    print(f"no model's perplexity falls below 2^({mean_bits}/{mean_tokens}) = ", end="")
    print(f"{perplexity_bound():.6f} ({sampled:.4f} on this corpus)")


if __name__ == "__main__":
    describe()
