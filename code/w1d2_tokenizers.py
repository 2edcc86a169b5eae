"""w1d2_tokenizers · 分词三家 · Three tokenizers · Week 1 Day 2, §6, §A.4–A.5, §B.5

BPE, WordPiece and Unigram in pure Python, to be read; then the two libraries that do it at speed,
held against them step by step; then all of them on the same text.

    python code/w1d2_tokenizers.py                  Tiny Shakespeare: cached, else downloaded once
    python code/w1d2_tokenizers.py --corpus FILE    any UTF-8 text instead
    python code/w1d2_tokenizers.py --part 3         one part
"""

import sys
from pathlib import Path

# For companion, one folder up; a notebook, which has no __file__, runs in this folder.
sys.path.insert(0, str(Path(globals().get("__file__", "notebook")).resolve().parent.parent))

import argparse
import hashlib
import heapq
import http.client
import io
import json
import math
import pydoc_data.topics
import random
import re
import tempfile
import threading
import urllib.request
from collections import Counter, defaultdict
from companion import ROOT, main, require
from companion.show import write_beside
from functools import cache, partial
from itertools import zip_longest

import sentencepiece
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

# ── constants: edit and run again ────────────────────────────────────────────────────────────────
VOCAB_SIZE = 8000  # §A.4's and §A.5's vocab_size
FALLBACK_VOCAB_SIZE = 4000  # Python's own help texts are too few words for 8000
SPECIAL = ["[UNK]", "[PAD]"]  # in this order: ids 0 and 1
LONGEST = 16  # characters of Unigram's longest piece, as in both libraries
SHRINK = 0.75  # what Unigram keeps of its pieces each time it prunes
ALPHA = 0.5  # subword regularisation samples in proportion to P^ALPHA
SAMPLED = "hugs"  # the word whose segmentations are sampled
DRAWS = 20000  # how often
SEED = 0
COVERAGE = 0.9995  # §A.5's character_coverage for Chinese and Japanese, SentencePiece's default
FULL_COVERAGE = 1.0  # and for English
SAMPLE = 20000  # characters of the corpus behind §A.5's small demonstrations
WORDS = ["king", "playing", "unbelievable", "Shakespeare", "antidisestablishmentarianism"]
FOREIGN = ["你好，世界", "🙂👍", "1984", "31415926"]  # little or nothing of it is in the corpus
ROUND_TRIPS = ["To be, or not to be", "two  spaces", " a line\n\tand a tab ", "你好　世界", "🙂 ok"]
CORPUS_HOME = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)
CORPUS_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
CORPUS_BYTES = 1_115_394
TIME_LIMIT = 10.0  # seconds for the download, from beginning to end

HUG = {"hug": 10, "pug": 5, "pun": 12, "bun": 4, "hugs": 5}  # §6.2's corpus
MARK = "##"  # WordPiece's sign of a piece that does not begin a word


# %% Part 1 · §6.1 ─────────────────────────────────────────────────────────────────────────────────
def part1_bpe(show):
    """§6.1 · BPE：合并最常见的一对 · BPE merges the most frequent pair"""
    _, merges = train_merges(HUG, letters(HUG), size=99, score=frequency)
    rows = [[n, f"{a} + {b}", a + b, count] for n, (a, b, count, _) in enumerate(merges, start=1)]
    header = [("merge", "第几次合并"), ("pair", "相邻对"), ("symbol", "新符号"), ("count", "频次")]
    show.table(("BPE on the hug corpus", "hug 语料上的 BPE"), header, rows)

    text, size = corpus(show)
    words = count_words(text)
    jobs = [partial(make, text, size) for make in (pure_bpe, partial(tokenizers_library, "BPE"))]
    (vocabulary, merges), library = finish(show, TRAINING, jobs)
    theirs = [tuple(pair) for pair in json.loads(library.to_str())["model"]["merges"]]
    same = sum((a, b) == pair for (a, b, _, _), pair in zip(merges, theirs))
    ranks = rank(merges)
    encoded = sum(
        encode_bpe(word, ranks, vocabulary) == tokens
        for word, tokens in encode_words(library, words)
    )
    compare(
        show,
        (f"BPE, vocabulary {size:,}", f"BPE，词表 {size:,}"),
        [
            (("merges, in order", "合并，按次序"), same, max(len(merges), len(theirs))),
            (("words split alike", "切法相同的词"), encoded, len(words)),
        ],
    )


def compare(show, title, rows):
    """How much of it our pure Python and a library do alike."""
    header = [("pure Python against the library", "纯 Python 对照库")]
    header += [("equal", "相同"), ("of", "总数")]
    show.table(title, header, [[show.say(what), equal, of] for what, equal, of in rows])


def letters(words, mark=""):
    """The single characters that every vocabulary starts from; WordPiece has each twice."""
    plain = sorted(set("".join(words)))
    return [mark + letter for letter in plain] + plain if mark else plain


def train_merges(words, vocabulary, size, score, mark=""):
    """Merge the adjacent pair with the highest score, again and again. BPE: score = frequency.

    words {word: count}; vocabulary: what to start from → vocabulary {symbol: id} of `size` symbols
    (fewer if nothing is left to merge), merges [(a, b, score, tokens in the corpus after it)].
    Equal scores: the pair with the smaller ids goes first, as in the library.
    """
    pairs = Pairs(words, mark)
    vocabulary = {symbol: id for id, symbol in enumerate(vocabulary)}

    def entry(pair):
        return -score(pairs, pair), vocabulary[pair[0]], vocabulary[pair[1]], pair

    heap, merges = [entry(pair) for pair in pairs.count], []
    heapq.heapify(heap)
    while heap and len(vocabulary) < size:
        value, _, _, (a, b) = heapq.heappop(heap)
        if not pairs.count[a, b] or -value != score(pairs, (a, b)):
            continue  # an old entry: this pair's score has changed since, or the pair is gone
        new = a + b.removeprefix(mark)
        vocabulary.setdefault(new, len(vocabulary))
        changed = pairs.merge(a, b, new)
        if score is not frequency:  # there the counts of a and b matter too, to all their pairs
            changed |= pairs.around[a] | pairs.around[b]
        for pair in changed:
            if pairs.count[pair]:
                heapq.heappush(heap, entry(pair))
        merges.append((a, b, -value, pairs.tokens))
    return vocabulary, merges


def frequency(pairs, pair):
    """BPE's score: how often the pair occurs."""
    return pairs.count[pair]


class Pairs:
    """The words of a corpus as symbols, and a running count of symbols and of adjacent pairs."""

    def __init__(self, words, mark=""):
        self.words = [([w[0], *(mark + c for c in w[1:])], count) for w, count in words.items()]
        self.symbols, self.count, self.tokens = Counter(), Counter(), 0
        self.where = defaultdict(set)  # pair → the words that it is or was in
        self.around = defaultdict(set)  # symbol → the pairs that it is or was part of
        for n, (symbols, count) in enumerate(self.words):
            self.tally(symbols, count)
            self.index(n, zip(symbols, symbols[1:]))

    def tally(self, symbols, count):
        """Add the symbols and pairs of one word, or with a negative count take them away."""
        self.tokens += count * len(symbols)
        for symbol in symbols:
            self.symbols[symbol] += count
        for pair in zip(symbols, symbols[1:]):
            self.count[pair] += count

    def index(self, n, pairs):
        """Note that these pairs occur in word n."""
        for pair in pairs:
            if not self.where[pair]:
                self.around[pair[0]].add(pair)
                self.around[pair[1]].add(pair)
            self.where[pair].add(n)

    def merge(self, a, b, new):
        """Put `new` for every a, b; return the pairs whose count may have changed."""
        changed = set()
        for n in self.where.pop((a, b)):
            old, count = self.words[n]
            symbols = join(old, a, b, new)
            self.tally(old, -count)
            self.tally(symbols, count)
            self.words[n] = symbols, count
            created = [pair for pair in zip(symbols, symbols[1:]) if new in pair]
            self.index(n, created)
            changed.update(zip(old, old[1:]), created)
        return changed


def join(symbols, a, b, new):
    """The symbols with every a, b made one, from left to right."""
    joined, n = [], 0
    while n < len(symbols):
        here = symbols[n : n + 2] == [a, b]
        joined.append(new if here else symbols[n])
        n += 2 if here else 1
    return joined


def rank(merges):
    """{(a, b): when it was merged}."""
    return {(a, b): n for n, (a, b, _, _) in enumerate(merges)}


def encode_bpe(word, ranks, vocabulary):
    """Replay the merges on one word: always the pair that was merged earliest in training."""
    symbols = list(word)
    while True:
        known = [pair for pair in zip(symbols, symbols[1:]) if pair in ranks]
        if not known:
            return [symbol if symbol in vocabulary else SPECIAL[0] for symbol in symbols]
        a, b = min(known, key=ranks.get)
        symbols = join(symbols, a, b, a + b)


# %% Part 2 · §6.2 ─────────────────────────────────────────────────────────────────────────────────
def part2_wordpiece(show):
    """§6.2 · WordPiece：合并“意外地常在一起”的对 · WordPiece: what meets surprisingly often"""
    _, by_score = train_merges(HUG, letters(HUG, MARK), 99, surprise, MARK)
    _, by_count = train_merges(HUG, letters(HUG, MARK), 99, frequency, MARK)
    hug_text = "\n".join(word for word, count in HUG.items() for _ in range(count))
    library = tokenizers_library("WordPiece", hug_text, size=99)
    theirs = [library.id_to_token(id) for id in range(library.get_vocab_size())]
    theirs = theirs[len(SPECIAL + letters(HUG, MARK)) :]  # after the letters, in order of merging
    rows = []
    for score, count, new in zip_longest(by_score, by_count, theirs, fillvalue=""):
        row = [len(rows) + 1, " + ".join(score[:2]), " + ".join(count[:2])]
        row += [f"{score[2]:.3f}" if score else "", count[2] if count else "", new]
        rows.append(row)
    header = [("merge", "第几次合并"), ("by §6.2's score", "按 §6.2 的得分")]
    header += [("by count", "按频次"), ("score, column 2", "得分（第 2 列）")]
    header += [("count, column 3", "频次（第 3 列）")]
    header += [("WordPieceTrainer's new piece", "WordPieceTrainer 的新片段")]
    title = (
        f"WordPiece on the hug corpus: {len(by_score)} merges by score, {len(by_count)} by count;"
        " ties by smaller id (w1day2_checks, group 11: by order of appearance)",
        f"hug 语料上的 WordPiece：按得分合并 {len(by_score)} 次，按频次 {len(by_count)} 次；"
        "并列时取 id 小的（w1day2_checks 第 11 组取先出现的）",
    )
    show.table(title, header, rows)
    show.claim("W1D2-064", theirs[0] == MARK + "gs")

    text, size = corpus(show)
    words = count_words(text)
    start = SPECIAL + letters(words, MARK)
    jobs = [
        partial(pure_wordpiece, text, size),
        partial(train_merges, words, start, size, frequency, MARK),
        partial(tokenizers_library, "WordPiece", text, size),
    ]
    (by_score, _), (by_count, _), library = finish(show, TRAINING, jobs)
    theirs = library.get_vocab()
    encoded = sum(
        encode_wordpiece(word, theirs) == tokens for word, tokens in encode_words(library, words)
    )
    compare(
        show,
        (f"WordPiece, vocabulary {size:,}", f"WordPiece，词表 {size:,}"),
        [
            (
                ("pieces, merged by count", "按频次合并出的片段"),
                len(by_count.keys() & theirs),
                size,
            ),
            (
                ("pieces, merged by score", "按得分合并出的片段"),
                len(by_score.keys() & theirs),
                size,
            ),
            (("words split alike, same pieces", "片段相同时切法相同的词"), encoded, len(words)),
        ],
    )
    count, score = (f"{encoded_length(words, pieces):,}" for pieces in (by_count, by_score))
    show.note(
        (
            f"Encoded with the pieces merged by count the corpus takes {count} tokens; with those"
            f" merged by §6.2's score {score}: that score rates a pair of rare symbols high however"
            " seldom it occurs, and so builds rare words first.",
            f"用按频次合并出的词表编码，语料是 {count} 个 token；"
            f"用按 §6.2 得分合并出的则是 {score} 个："
            "由罕见符号组成的对，出现再少得分也高，于是先拼出来的是罕见词。",
        )
    )


def surprise(pairs, pair):
    """WordPiece's score: count(ab) / (count(a) · count(b)), PMI without its log and constant."""
    a, b = pair
    return pairs.count[pair] / (pairs.symbols[a] * pairs.symbols[b])


def encode_wordpiece(word, vocabulary):
    """The longest piece that fits, from left to right; one unknown piece spoils the whole word."""
    pieces, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = MARK * (start > 0) + word[start:end]
            if piece in vocabulary:
                break
        else:
            return SPECIAL[:1]
        pieces.append(piece)
        start = end
    return pieces


def encoded_length(words, vocabulary):
    """Tokens of the whole corpus {word: count}, each word cut into the longest pieces."""
    return sum(n * len(encode_wordpiece(word, vocabulary)) for word, n in words.items())


# %% Part 3 · §6.3 ─────────────────────────────────────────────────────────────────────────────────
def part3_unigram(show):
    """§6.3 · Unigram：从大到小剪枝 · Unigram prunes from large to small"""
    rows = []
    for rounds in (1, 2, 3):
        ours = em(HUG, start_scores(HUG), rounds)
        theirs = sentencepiece_scores(HUG, size=99, rounds=rounds)
        both = [piece for piece in ours if len(piece) > 1 and piece in theirs]
        gap = max(abs(ours[piece] - theirs[piece]) for piece in both)
        rows.append([rounds, len(ours) - 1, ", ".join(both), f"{gap:.1e}"])
    header = [("EM rounds", "EM 轮数"), ("pieces left", "剩余片段")]
    header += [
        ("in SentencePiece too", "SentencePiece 也有的"),
        ("largest |Δ log P|", "最大 |Δ log P|"),
    ]
    show.table(("EM on the hug corpus", "hug 语料上的 EM"), header, rows)

    text, size = corpus(show)
    words = count_words(text)
    jobs = [
        partial(pure_unigram, text, size),
        partial(sentencepiece_scores, words, size, 2),
        partial(tokenizers_library, "Unigram", text, size),
    ]
    ours, theirs, library = finish(show, TRAINING, jobs)
    pieces = dict(json.loads(library.to_str())["model"]["vocab"][len(SPECIAL) :])
    pieces[SPECIAL[0]] = min(pieces.values()) - 10
    encoded = sum(
        viterbi(word, pieces)[0] == tokens for word, tokens in encode_words(library, words)
    )
    both = ours.keys() & theirs
    gap = max(abs(ours[piece] - theirs[piece]) for piece in both if len(piece) > 1)
    compare(
        show,
        (f"Unigram, vocabulary {size:,}", f"Unigram，词表 {size:,}"),
        [
            (("pieces, after EM and pruning", "EM 与剪枝之后的片段"), len(both), len(theirs)),
            (("words split alike, same scores", "得分相同时切法相同的词"), encoded, len(words)),
        ],
    )
    show.note(
        (
            "Pieces: against SentencePiece on the same words and seed pieces; their log P differ by"
            f" {gap:.0e} at most (it computes in float32, which decides between equal scores)."
            " Splits: against tokenizers.",
            f"片段与 SentencePiece 对照，词和候选片段都相同；log P 最多差 {gap:.0e}"
            "（它用 float32 计算，得分相等时取舍由舍入决定）。切法与 tokenizers 对照。",
        )
    )
    sampled_part(show, sentencepiece_library(text, size))


def sampled_part(show, model):
    """Segmentations of a word, from the most probable down, and how often sampling draws each."""
    require(0 < len(SAMPLED) <= 12, f"SAMPLED must have 1 to 12 letters, got {SAMPLED!r}")
    require(ALPHA >= 0, f"ALPHA must be 0 or more, got {ALPHA}")
    logp, word = with_unknown(pieces_of(model)), "▁" + SAMPLED
    every = sorted(segmentations(word, logp), key=lambda one: -one[1])
    weights = [math.exp(ALPHA * score) for _, score in every]
    rng = random.Random(SEED)
    drawn = Counter(tuple(sample(word, logp, ALPHA, rng)) for _ in range(DRAWS))
    ranked = model.nbest_encode(SAMPLED, nbest_size=len(every), out_type=str)
    best = viterbi(word, logp)[0]
    rows = []
    for (pieces, score), weight in list(zip(every, weights))[:10]:
        rows.append([" ".join(pieces), f"{score:.3f}", f"{weight / sum(weights):.4f}"])
        rows[-1].append(f"{drawn[tuple(pieces)] / DRAWS:.4f}")
        rows[-1] += [ranked.index(pieces) + 1 if pieces in ranked else "-", "*" * (pieces == best)]
    header = [("segmentation", "切分"), "log P", f"P^{ALPHA:g} / Σ", ("drawn", "抽到")]
    header += [("rank in SentencePiece's n-best", "SentencePiece n-best 名次"), "Viterbi"]
    title = (
        f"Subword regularisation: {SAMPLED}, {DRAWS:,} draws, {len(every)} segmentations",
        f"subword regularization：{SAMPLED}，抽 {DRAWS:,} 次，共 {len(every)} 种切法",
    )
    show.table(title, header, rows)


def seed_pieces(words):
    """Every letter, and every substring of up to LONGEST characters that occurs more than once.

    → {piece: count}
    """
    found = Counter()
    for word, count in words.items():
        for i in range(len(word)):
            for j in range(i + 1, min(i + LONGEST, len(word)) + 1):
                found[word[i:j]] += count
    return {piece: count for piece, count in found.items() if count > 1 or len(piece) == 1}


def start_scores(words):
    """log P of each seed piece, in proportion to how much of the corpus it covers."""
    covers = {piece: count * len(piece) for piece, count in seed_pieces(words).items()}
    total = sum(covers.values())
    return with_unknown({piece: math.log(count / total) for piece, count in covers.items()})


def with_unknown(logp):
    """Add [UNK]: a letter that is no piece costs far more than any that is (e^10 times)."""
    return logp | {SPECIAL[0]: min(logp.values()) - 10}


def lattice(word, logp):
    """Every piece that the word contains, as (i, j, log P of word[i:j]), by i then j."""
    arcs = []
    for i in range(len(word)):
        for j in range(i + 1, min(i + LONGEST, len(word)) + 1):
            score = logp.get(word[i:j])
            if score is not None:
                arcs.append((i, j, score))
            elif j == i + 1:
                arcs.append((i, j, logp[SPECIAL[0]]))
    return arcs


def viterbi(word, logp, whole=True):
    """The most probable segmentation → its pieces, its log P. whole=False: not the word itself."""
    best, begin = [0.0] + [-math.inf] * len(word), [0] * (len(word) + 1)
    for i, j, score in lattice(word, logp):  # by i: best[i] is settled before an arc leaves i
        if best[i] + score > best[j] and (whole or j - i < len(word)):
            best[j], begin[j] = best[i] + score, i
    pieces, j = [], len(word)
    while j and best[-1] > -math.inf:
        pieces.append(word[begin[j] : j])
        j = begin[j]
    return pieces[::-1], best[-1]


def segmentations(word, logp):
    """All ways to cut the word into pieces, by brute force → (pieces, log P)."""
    if not word:
        yield [], 0.0
    for j in range(1, len(word) + 1):
        if word[:j] in logp:
            for rest, score in segmentations(word[j:], logp):
                yield [word[:j], *rest], logp[word[:j]] + score


def forward(length, arcs):
    """log Σ P over all paths from 0 to each j: forward[0] = 0, forward[length] = log P(word)."""
    into = [[] for _ in range(length + 1)]
    for arc in arcs:
        into[arc[1]].append(arc)
    scores = [0.0]
    for j in range(1, length + 1):
        paths = [scores[i] + score for i, _, score in into[j]]
        top = max(paths)
        scores.append(top + math.log(sum([math.exp(path - top) for path in paths])))
    return scores


def e_step(words, logp):
    """How often each piece is expected in the corpus, over every segmentation of every word."""
    expected = dict.fromkeys(logp, 0.0)
    for word, count in words.items():
        arcs, T = lattice(word, logp), len(word)
        before = forward(T, arcs)
        after = forward(T, [(T - j, T - i, score) for i, j, score in arcs])[::-1]  # from the end
        for i, j, score in arcs:
            if word[i:j] in expected:
                share = math.exp(before[i] + score + after[j] - before[T])  # P(arc | word)
                expected[word[i:j]] += count * share
    return expected


def m_step(expected):
    """New log P. Pieces expected less than half a time go; the digamma in place of a plain log
    (a sparse prior: it takes about half an occurrence off each piece) is the libraries' choice."""
    kept = {piece: times for piece, times in expected.items() if times >= 0.5}
    total = digamma(sum(kept.values()))
    return with_unknown({piece: digamma(times) - total for piece, times in kept.items()})


def digamma(x):
    """d/dx log Γ(x) for x > 0: the recurrence up to 7, from there the asymptotic series."""
    shift = 0.0
    while x < 7:
        shift, x = shift - 1 / x, x + 1
    inverse = 1 / x**2
    series = inverse * (1 / 12 - inverse * (1 / 120 - inverse * (1 / 252 - inverse / 240)))
    return shift + math.log(x) - 1 / (2 * x) - series


def em(words, logp, rounds):
    """`rounds` times: expect, then re-estimate."""
    for _ in range(rounds):
        logp = m_step(e_step(words, logp))
    return logp


def prune(words, logp, keep):
    """Keep the `keep` pieces whose removal would cost the corpus most.

    Without a piece its tokens are spelt with its second-best segmentation; if there is none it
    stays. What no word's best segmentation uses goes.
    """
    used = count_used(words, logp)
    total = sum(used.values())
    kept, cost = {}, {}
    for piece, score in logp.items():
        if piece == SPECIAL[0]:
            continue
        instead, _ = viterbi(piece, logp, whole=False)
        if not instead or not logp.keys() >= set(instead):  # nothing else spells it
            kept[piece] = score
        elif used[piece]:
            cost[piece] = removal_cost(piece, instead, used, total)
    kept |= {piece: logp[piece] for piece in highest(cost)[: max(0, keep - len(kept))]}
    return with_unknown(kept)


def removal_cost(piece, instead, used, total):
    """What log P the piece's tokens lose if each becomes `instead`; total: tokens of the corpus."""
    new_total = total + used[piece] * (len(instead) - 1)
    now = math.log(used[piece] / total)
    then = sum(math.log((used[other] + used[piece]) / new_total) for other in instead)
    return used[piece] * (now - then)


def count_used(words, logp):
    """How many tokens of each piece the best segmentations have."""
    used = Counter()
    for word, count in words.items():
        for piece in viterbi(word, logp)[0]:
            used[piece] += count
    return used


def train_unigram(words, size, rounds=2):
    """EM and pruning in turn, down to a little over `size`; then the letters and the best pieces.

    → {piece: log P}, most probable first, with [UNK]; fewer than `size` if EM leaves fewer in use.
    """
    enough = int(1.1 * size)
    logp = em(words, start_scores(words), rounds)
    while True:
        logp = prune(words, logp, max(enough, int(SHRINK * (len(logp) - 1))))
        if len(logp) - 1 <= enough:
            break
        logp = em(words, logp, rounds)
    lowest = logp[SPECIAL[0]] + 10
    final = {letter: logp.get(letter, lowest) for letter in letters(words)}
    others = {piece: logp[piece] for piece in logp.keys() - final.keys() - set(SPECIAL)}
    final |= {piece: logp[piece] for piece in highest(others)[: size - 1 - len(final)]}
    return with_unknown({piece: final[piece] for piece in highest(final)})


def highest(values):
    """The keys, highest value first; what differs only by rounding noise goes by spelling."""
    return sorted(values, key=lambda piece: (-round(values[piece], 6), piece))


def sample(word, logp, alpha, rng):
    """Draw a segmentation with probability ∝ P^alpha, from its last piece to its first."""
    arcs = [(i, j, alpha * score) for i, j, score in lattice(word, logp)]
    before, pieces, j = forward(len(word), arcs), [], len(word)
    while j:
        into = [arc for arc in arcs if arc[1] == j]
        weights = [math.exp(before[i] + score - before[j]) for i, _, score in into]
        i = rng.choices(into, weights)[0][0]
        pieces.append(word[i:j])
        j = i
    return pieces[::-1]


# %% Part 4 · §A.4 ─────────────────────────────────────────────────────────────────────────────────
def part4_tokenizers(show):
    """§A.4 · 用 tokenizers 训练三种分词器 · Three tokenizers with Hugging Face's tokenizers"""
    text, size = corpus(show)
    jobs = [partial(tokenizers_library, kind, text, size) for kind in KINDS]
    trained = dict(zip(KINDS, finish(show, TRAINING, jobs)))
    rows, first_ids = [], []
    for kind, tokenizer in trained.items():
        later = Tokenizer.from_str(tokenizer.to_str())
        later.add_special_tokens(["[MASK]"])
        ids = [tokenizer.token_to_id(token) for token in SPECIAL]
        first_ids += ids
        rows.append([kind, tokenizer.get_vocab_size(), *ids, later.token_to_id("[MASK]")])
        rows[-1].append(" ".join(tokenizer.encode("unbelievable").tokens))
    header = [("model", "模型"), ("vocabulary", "词表"), *SPECIAL]
    header += [("[MASK], added after training", "训练后再加的 [MASK]"), "unbelievable"]
    show.table((f"vocab_size={size}", f"vocab_size={size}"), header, rows)
    ids = sorted(trained["BPE"].get_vocab().values())
    show.claim("W1D2-061", ids == list(range(size)))
    show.claim("W1D2-062", first_ids == [0, 1] * len(KINDS))
    if (reached := trained["Unigram"].get_vocab_size()) < size:
        show.note(
            (
                f"UnigramTrainer stops at {reached:,} of {size:,} without a word: EM leaves it no"
                " more pieces. Compare get_vocab_size() with what you asked for.",
                f"UnigramTrainer 只给出 {reached:,} 个（要的是 {size:,}），也不提示："
                "EM 之后只剩这么多片段。训练完要核对 get_vocab_size()。",
            )
        )

    unknown = absent(text)
    careless = Tokenizer(models.Unigram())
    careless.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.UnigramTrainer(vocab_size=size, show_progress=False)
    careless.train_from_iterator(text[:SAMPLE].splitlines(), trainer)
    careless.encode(text[:SAMPLE])  # all known: no error
    try:
        careless.encode(unknown)
        message = None
    except Exception as error:  # the library raises plain Exception
        message = str(error)
    show.claim("W1D2-063", message is not None)
    show.note(
        (f"Without unk_token, {unknown}: {message}", f"不给 unk_token，遇到 {unknown}：{message}")
    )


KINDS = ("BPE", "WordPiece", "Unigram")


@cache
def tokenizers_library(kind, text, size):
    """§A.4: a tokenizer of Hugging Face's `tokenizers`, trained on the text.

    kind: BPE, WordPiece, Unigram, or "byte-level BPE" as in GPT-2. ValueError if BPE falls short.
    """
    asked = {"vocab_size": size, "special_tokens": SPECIAL, "show_progress": False}
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if kind == "BPE":
        trainer = trainers.BpeTrainer(**asked)
    elif kind == "WordPiece":
        tokenizer.model, tokenizer.decoder = models.WordPiece(), decoders.WordPiece()
        # Given no ids, the trainer numbers the ##letters in the order of a hash table, and equal
        # counts are settled by those numbers: the vocabulary would differ from run to run.
        asked["special_tokens"] = SPECIAL + [MARK + letter for letter in letters(count_words(text))]
        trainer = trainers.WordPieceTrainer(**asked)
    elif kind == "Unigram":
        tokenizer.model = models.Unigram()
        trainer = trainers.UnigramTrainer(unk_token=SPECIAL[0], **asked)
    else:
        tokenizer.model, tokenizer.decoder = models.BPE(), decoders.ByteLevel()
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), **asked
        )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    if kind == "WordPiece":  # the ##letters need not be special any more
        vocabulary = tokenizer.get_vocab()
        tokenizer.model = models.WordPiece(vocab=vocabulary, unk_token=SPECIAL[0])
        plain = Tokenizer(tokenizer.model)
        plain.pre_tokenizer, plain.decoder = tokenizer.pre_tokenizer, tokenizer.decoder
        plain.add_special_tokens(SPECIAL)
        tokenizer = plain
    reached = tokenizer.get_vocab_size()
    if "BPE" in kind:
        require(reached == size, f"a vocabulary of {size} from {kind}: the text gives {reached}")
    return tokenizer


def encode_words(tokenizer, words):
    """(word, its tokens) for each word."""
    words = list(words)
    return zip(words, (encoding.tokens for encoding in tokenizer.encode_batch(words)))


def absent(text):
    """A Chinese character that the text does not have."""
    return next(chr(code) for code in range(0x9F98, 0x4E00, -1) if chr(code) not in text)


# %% Part 5 · §6.4, §A.5 ───────────────────────────────────────────────────────────────────────────
def part5_sentencepiece(show):
    """§6.4, §A.5 · SentencePiece · SentencePiece and its pitfalls"""
    text, size = corpus(show)
    rare = absent(text)
    small = text[:SAMPLE] + f"\n{rare}\n"  # one character that occurs once
    train = partial(sentencepiece_library, small, size, hard_vocab_limit=False)
    default, explicit = train(), train(model_type="unigram")
    show.claim("W1D2-065", pieces_of(default) == pieces_of(explicit))
    hello = sentencepiece_library(text, size).encode("Hello world", out_type=str)
    show.note("Hello world → " + " ".join(hello))
    heads = not any("▁" in piece[1:] for piece in hello)  # a ▁ begins its piece
    show.claim("W1D2-068", heads and "".join(hello) == "▁Hello▁world")

    # which characters character_coverage leaves out, and what becomes of them
    rows = []
    for settings in (
        {"character_coverage": FULL_COVERAGE},
        {"character_coverage": COVERAGE},
        {"character_coverage": COVERAGE, "byte_fallback": True},
    ):
        model = train(**settings)
        pieces, ids = model.encode(rare, out_type=str), model.encode(rare)
        lost = sorted(c for c in set("".join(small.split())) if model.unk_id() in model.encode(c))
        rows.append([named(settings)])
        rows[-1] += ["".join(lost), " ".join(pieces), model.unk_id() in ids, model.decode(ids)]
    header = [("settings", "设置"), ("characters of the corpus left out", "未覆盖的字符")]
    header += [(f"pieces of {rare}", f"{rare} 的片段"), "<unk>", ("decoded", "解码")]
    title = (
        f"Coverage: {rare} occurs once in {len(small):,} characters",
        f"覆盖率：{rare} 在 {len(small):,} 个字符里出现一次",
    )
    show.table(title, header, rows)
    full, partly, fallback = rows
    show.claim("W1D2-066a", [COVERAGE, FULL_COVERAGE])
    show.claim("W1D2-066b", not full[3] and partly[3])
    as_bytes = [f"<0x{byte:02X}>" for byte in rare.encode()]
    show.claim("W1D2-067", not fallback[3] and fallback[2].split()[-len(as_bytes) :] == as_bytes)

    # what decode gives back
    identity = {"normalization_rule_name": "identity"}
    rows = []
    for settings in ({}, identity, identity | {"remove_extra_whitespaces": False}):
        model = train(byte_fallback=True, **settings)
        rows.append([named(settings) or "-"])
        rows[-1] += [model.decode(model.encode(one)) == one for one in ROUND_TRIPS]
    header = [("settings, with byte_fallback=True", "设置（另加 byte_fallback=True）")]
    show.table("decode(encode(text)) == text", header + list(map(visible, ROUND_TRIPS)), rows)
    show.claim("W1D2-069a", all(rows[0][1:]))
    show.claim("W1D2-069b", all(rows[1][1:]))
    literal = model.decode(model.encode("a▁b"))
    show.note(
        (
            f"Exact with all three settings: {'yes' if all(rows[2][1:]) else 'no'}. Only a ▁"
            f" (U+2581) of the text's own does not survive: a▁b → {literal}",
            f"三个设置一起，以上各例能否全部还原：{'能' if all(rows[2][1:]) else '不能'}。"
            f"只有原文里本来就有的 ▁（U+2581）还原不了：a▁b → {literal}",
        )
    )

    # too large a vocabulary
    largest, message = largest_vocabulary(small)
    works = sentencepiece_library(small, largest).get_piece_size() == largest
    show.claim("W1D2-070", works and largest_vocabulary(small, largest + 1)[0] == largest)
    english = f"What SentencePiece says when asked for 1,000,000: {message}"
    show.note((english, f"要 1,000,000 个时，SentencePiece 报的错：{message}"))


def named(settings):
    """{"a": 1, "b": 2} as "a=1, b=2"."""
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def visible(text):
    """The text with its white space written out."""
    return text.replace("\n", "\\n").replace("\t", "\\t").replace("\u3000", "\\u3000")


@cache
def sentencepiece_library(text, size, **settings):
    """§A.5: a SentencePiece model, trained on the text's lines. ValueError: what is possible."""
    model = io.BytesIO()
    settings = {
        "vocab_size": size,
        "max_sentence_length": 10**6,  # bytes; by default longer lines are left out, silently
        "num_threads": 1,
        "minloglevel": 2,
    } | settings
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text.splitlines()), model_writer=model, **settings
        )
    except RuntimeError as error:
        message = str(error).rpartition("] ")[2]  # after the place in its source
        if largest := re.search(r"too high.* <= (\d+)", message):
            message = f"the text allows at most {largest[1]} ({message})"
        raise ValueError(f"a vocabulary of {size} from SentencePiece: {message}") from None
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def pieces_of(model):
    """{piece: score} of a SentencePiece model, the special ones left out."""
    ids = [id for id in range(model.get_piece_size()) if not model.is_control(id)]
    return {model.id_to_piece(id): model.get_score(id) for id in ids if not model.is_unknown(id)}


def largest_vocabulary(text, size=10**6):
    """What SentencePiece says is possible where `size` is not → (the largest size, its message)."""
    try:
        sentencepiece_library(text, size)
    except ValueError as error:
        return int(re.search(r"at most (\d+)", str(error))[1]), str(error)
    return size, ""


def sentencepiece_scores(words, size, rounds):
    """SentencePiece's Unigram on {word: count}, from our seed pieces → {piece: log P}."""
    with tempfile.TemporaryDirectory() as directory:
        files = Path(directory, "words.tsv"), Path(directory, "seeds.tsv")
        for file, counts in zip(files, (words, seed_pieces(words))):
            lines = "".join(f"{piece}\t{count}\n" for piece, count in counts.items())
            file.write_text(lines, encoding="utf-8", newline="\n")
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            input=str(files[0]),
            input_format="tsv",
            seed_sentencepieces_file=str(files[1]),
            model_writer=model,
            vocab_size=size,
            hard_vocab_limit=False,
            num_sub_iterations=rounds,
            shrinking_factor=SHRINK,
            normalization_rule_name="identity",
            character_coverage=1.0,
            add_dummy_prefix=False,
            split_by_unicode_script=False,
            split_by_number=False,
            max_sentence_length=10**6,
            num_threads=1,
            minloglevel=2,
        )
    return pieces_of(sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()))


# %% Part 6 · §B.5 ─────────────────────────────────────────────────────────────────────────────────
def part6_side_by_side(show):
    """§B.5 · 同一段文本，各家并排 · All of them on the same text"""
    text, size = corpus(show)
    jobs = [partial(make, text, size) for make in TOKENIZERS.values()]
    made = dict(zip(TOKENIZERS, finish(show, TRAINING, jobs)))
    counts = finish(
        show,
        ("encoding the corpus", "对语料分词"),
        [lambda encode=encode: len(encode(text)) for _, encode, _ in made.values()],
    )
    rows = [
        [name, vocabulary, count, f"{len(text) / count:.3f}"]
        for (name, (vocabulary, _, _)), count in zip(made.items(), counts)
    ]
    header = [
        ("tokenizer", "分词器"),
        ("vocabulary", "词表"),
        ("tokens in the corpus", "语料的 token 数"),
    ]
    header.append(("characters per token", "每 token 字符数"))
    show.table(("The whole corpus", "整个语料"), header, rows)
    for title, examples in (
        (("Chosen words", "几个词的切法"), WORDS),
        (("Chinese, emoji, digits", "中文、表情符号、数字"), FOREIGN),
    ):
        rows = [[name, *(" ".join(made[name][1](one)) for one in examples)] for name in made]
        show.table(title, [("tokenizer", "分词器"), *examples], rows)
    rows = [
        [name, *(decode(one) == one for one in ROUND_TRIPS)]
        for name, (_, _, decode) in made.items()
        if decode
    ]
    show.table(
        ("Round trip: decoding gives the text back", "往返：解码后与原文相同"),
        [("tokenizer", "分词器"), *map(visible, ROUND_TRIPS)],
        rows,
    )
    digits_part(show, text)
    draw_sizes(show, text, size, dict(zip(made, counts)))


def digits_part(show, text):
    """§6.4: a number as single digits (Llama 1/2) and in groups of three (cl100k)."""
    ways = (
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
    )
    numbers = [one for one in FOREIGN if one.isdecimal()]
    rows = [
        [number, *(" ".join(part for part, _ in way.pre_tokenize_str(number)) for way in ways)]
        for number in numbers
    ]
    header = [("number", "数字"), ("single digits", "单个数字"), ("up to 3", "最多 3 位一组")]
    show.table(("Digits, before any merge", "数字的预分词"), header, rows)
    seen = " ".join(sorted(set(re.findall("[0-9]", text)))) or "-"
    show.note(
        (
            f"Digits in the corpus: {seen}. Without bytes there is no piece for the others.",
            f"语料里有的数字：{seen}。没有字节的词表切不出其余的数字。",
        )
    )


def draw_sizes(show, text, size, counts):
    """How many tokens the corpus takes as the vocabulary grows."""
    start = len(SPECIAL + letters(count_words(text)))
    with show.figure("w1d2_vocabulary") as ax:
        for merges, label, style in (
            (pure_bpe(text, size)[1], "BPE: most frequent pair", "-"),
            (pure_wordpiece(text, size)[1], "WordPiece: §6.2's score", "--"),
        ):
            sizes = range(start + 1, start + 1 + len(merges))
            ax.plot(sizes, [tokens for *_, tokens in merges], style, label=label)
        for name, marker in (("tokenizers Unigram", "s"), ("SentencePiece unigram", "^")):
            ax.plot(TOKENIZERS[name](text, size)[0], counts[name], marker, label=name)
        ax.set(xlabel="vocabulary size", ylabel="tokens in the corpus", yscale="log")
        ax.set_title("A larger vocabulary, a shorter text")
        ax.legend()


def pure(make):
    """A pure-Python tokenizer for TOKENIZERS: it knows words, not what stood between them."""

    def made(text, size):
        vocabulary, encode_word = make(text, size)
        encode_once = cache(encode_word)
        return len(vocabulary), lambda text: [t for w in split(text) for t in encode_once(w)], None

    return made


def bpe_encoder(text, size):
    vocabulary, merges = pure_bpe(text, size)
    return vocabulary, partial(encode_bpe, ranks=rank(merges), vocabulary=vocabulary)


def wordpiece_encoder(text, size):
    vocabulary, _ = pure_wordpiece(text, size)
    return vocabulary, partial(encode_wordpiece, vocabulary=vocabulary)


def unigram_encoder(text, size):
    logp = pure_unigram(text, size)
    return logp, lambda word: [p if p in logp else SPECIAL[0] for p in viterbi(word, logp)[0]]


def with_tokenizers(kind):
    """One of Hugging Face's for TOKENIZERS; by ids, so that an unknown piece shows as [UNK]."""

    def make(text, size):
        tokenizer = tokenizers_library(kind, text, size)
        return (
            tokenizer.get_vocab_size(),
            lambda text: list(map(tokenizer.id_to_token, tokenizer.encode(text).ids)),
            lambda text: tokenizer.decode(tokenizer.encode(text).ids),
        )

    return make


def with_sentencepiece(**settings):
    """One of SentencePiece's for TOKENIZERS."""

    def make(text, size):
        model = sentencepiece_library(text, size, **settings)
        return (
            model.get_piece_size(),
            lambda text: list(map(model.id_to_piece, model.encode(text))),
            lambda text: model.decode(model.encode(text)),
        )

    return make


@cache
def pure_bpe(text, size):
    words = count_words(text)
    return train_merges(words, SPECIAL + letters(words), size, frequency)


@cache
def pure_wordpiece(text, size):
    words = count_words(text)
    return train_merges(words, SPECIAL + letters(words, MARK), size, surprise, MARK)


@cache
def pure_unigram(text, size):
    return train_unigram(count_words(text), size)


TOKENIZERS = {  # name → (text, size) → vocabulary size, encode, decode after encode (or None)
    "pure BPE": pure(bpe_encoder),
    "pure WordPiece, §6.2's score": pure(wordpiece_encoder),
    "pure Unigram": pure(unigram_encoder),
    "tokenizers BPE": with_tokenizers("BPE"),
    "tokenizers WordPiece": with_tokenizers("WordPiece"),
    "tokenizers Unigram": with_tokenizers("Unigram"),
    "tokenizers byte-level BPE": with_tokenizers("byte-level BPE"),
    "SentencePiece unigram": with_sentencepiece(),
    "SentencePiece BPE, byte_fallback, exact": with_sentencepiece(
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
    ),
}


# %% The corpus ────────────────────────────────────────────────────────────────────────────────────
def corpus(show):
    """The text to train on and the vocabulary size to ask for; a note says which text it is."""
    text, size, note = getattr(show.options, "corpus", None) or default_corpus()
    if show.say(note) not in show.notes:
        show.note(note)
    least = len(set(text)) + 256 + len(SPECIAL)  # byte fallback needs a piece for each byte
    require(size > least, f"VOCAB_SIZE must be above {least} for this corpus, got {size}")
    return text, size


def add_corpus(parser):
    """The script's own flag: --corpus FILE."""
    parser.add_argument("--corpus", type=read_corpus, metavar="FILE", help="train on this text")


def read_corpus(path):
    """A UTF-8 file → text, vocabulary size, note. What cannot be used is refused in one line."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
        require(text.strip(), "it is empty")
        require(len(set("".join(text.split()))) > 1, "it has only one character: nothing to merge")
        sentencepiece_library(text, VOCAB_SIZE)  # of all of them it needs the largest corpus
        tokenizers_library("BPE", text, VOCAB_SIZE)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        message = f"{path}: not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}"
        raise argparse.ArgumentTypeError(message) from None
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{path}: {error}") from None
    size = f"{len(text):,}"
    return text, VOCAB_SIZE, (f"corpus: {path}, {size} characters", f"语料：{path}，{size} 个字符")


@cache
def default_corpus():
    """Tiny Shakespeare, cached or else downloaded once; without it what Python brings along.

    → text, vocabulary size, note
    """
    cached = ROOT / ".cache" / "tinyshakespeare.txt"
    try:
        data = cached.read_bytes()
    except OSError:
        data = b""
    problem = None
    if not genuine(data):
        data, problem = download(CORPUS_HOME)
        if problem is None and not genuine(data):
            problem = f"refused: SHA-256 {hashlib.sha256(data).hexdigest()}"
        if problem is None:
            keep(cached, data)
    if problem is None:
        found = f"{len(data):,}"
        note = (f"corpus: Tiny Shakespeare, {found} bytes", f"语料：Tiny Shakespeare，{found} 字节")
        return data.decode(), VOCAB_SIZE, note
    text = "\n".join(pydoc_data.topics.topics.values())
    size = min(VOCAB_SIZE, FALLBACK_VOCAB_SIZE)
    length, asked = f"{len(text):,}", f"{size:,}"
    note = (
        f"corpus: Python's own help texts (pydoc_data.topics), {length} characters, vocabulary"
        f" {asked}, because Tiny Shakespeare could not be had: {problem}",
        f"语料：没能取得 Tiny Shakespeare（{problem}），改用 Python 自带的帮助文本"
        f" pydoc_data.topics，{length} 个字符，词表取 {asked}",
    )
    return text, size, note


def genuine(data):
    """Are these bytes Tiny Shakespeare?"""
    return hashlib.sha256(data).hexdigest() == CORPUS_SHA256


def download(url):
    """→ (the bytes at the address, None), or (None, why not); TIME_LIMIT seconds at most."""
    answer = []

    def fetch():
        try:
            with urllib.request.urlopen(url, timeout=TIME_LIMIT) as page:
                answer.append((page.read(CORPUS_BYTES + 1), None))
        except (OSError, http.client.HTTPException) as error:
            answer.append((None, str(getattr(error, "reason", error))))

    thread = threading.Thread(
        target=fetch, daemon=True
    )  # a name server that hangs obeys no timeout
    thread.start()
    thread.join(TIME_LIMIT)
    return answer[0] if answer else (None, f"no answer within {TIME_LIMIT:g} s")


def keep(path, data):
    """Save it, whole or not at all; a checkout that cannot be written to is no obstacle."""
    try:
        path.parent.mkdir(exist_ok=True)
        with write_beside(path) as file:
            file.write(data)
    except OSError:
        pass


@cache
def split(text):
    """The text's words: runs of letters and digits, and runs of other signs; no whitespace."""
    return [word for word, _ in pre_tokenizers.Whitespace().pre_tokenize_str(text)]


@cache
def count_words(text):
    """{word: count}, in order of appearance."""
    return Counter(split(text))


TRAINING = ("training", "训练")


def finish(show, label, jobs):
    """Do the jobs one by one, with a progress bar → their results."""
    return [job() for job in show.progress(jobs, len(jobs), show.say(label))]


# %% All parts ─────────────────────────────────────────────────────────────────────────────────────
PARTS = [
    part1_bpe,
    part2_wordpiece,
    part3_unigram,
    part4_tokenizers,
    part5_sentencepiece,
    part6_side_by_side,
]

if __name__ == "__main__":
    main(__doc__, PARTS, extra=add_corpus)
