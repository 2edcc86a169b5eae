"""06 · 农场语言上的 GPT · A GPT on the farm language · Lecture 2, §6

A small world whose truth is known exactly, used to ask what a trained Transformer relies on: how
close it comes to the bound, whether the verb agrees with a subject far back, where its heads look,
what breaks when they may not, and what is left beyond the training length.

    python 06_farm_transformer.py             every part, one seed
    python 06_farm_transformer.py --seeds 3   the lecture's own table of §6.5
    python 06_farm_transformer.py --part 4    one part; it trains only what it needs
"""

import hashlib
import inspect
import math
import random
import time
from collections import Counter
from companion import ROOT, in_processes, main, require
from companion.show import write_beside
from contextlib import ExitStack, contextmanager

import torch
from torch import nn
from torch.nn import functional as F

import farm_language as farm
from lm_models import GPT, LSTMLM, RNNLM, ElmanRNN, MultiHeadAttention, cut

# ── constants: edit and run again ────────────────────────────────────────────────────────────────
TRAINING, TEST = 20_000, 2_000  # sentences
LAYERS, HEADS, D = 2, 4, 64
MAX_LEN = 120
EPOCHS, RNN_EPOCHS = 5, 10  # GPT and LSTM; lecture 1's RNN
BATCH, RNN_BATCH = 16, 64  # sentences of mixed lengths; LSTM and RNN share the second
RATE, LSTM_RATE, RNN_RATE = 3e-3, 5e-3, 2e-3  # falling to 0 along a cosine
CLIP = 1.0  # largest norm of a gradient
FORGET_BIAS = 1.0
MOST_DISTRACTORS = 8  # k = 0 … 8, of which training shows up to 3
SENTENCES = 200  # for each k, half of them with a singular subject
K = 3  # the k whose attention is looked at and cut
SAMPLED, SHOWN = 1000, 20  # sentences that the GPT writes

POSITIONS = ["learned", "sinusoidal", "none"]


# ── training: what the parts below need, trained once and kept ───────────────────────────────────
def new_model(kind, seed):
    """GPT with that kind of positions, "LSTM" or "RNN", its first weights from the seed's stream.

    The GPT starts like torch's own layers, from U(-1/√fan_in, 1/√fan_in), not from GPT-2's 0.02;
    its embeddings start from N(0, 1/d), tokens and positions alike (05 keeps GPT-2's).
    """
    with torch.random.fork_rng(devices=[]):  # leave the caller's global generator as it was
        torch.manual_seed(stream(seed, "first weights").getrandbits(63))
        if kind == "RNN":
            return RNNLM(len(farm.VOCABULARY))
        if kind == "LSTM":
            return LSTMLM(len(farm.VOCABULARY), forget_bias=FORGET_BIAS)
        model = GPT(len(farm.VOCABULARY), D, LAYERS, HEADS, MAX_LEN, positions=kind)
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=D**-0.5)
        return model


def stream(seed, purpose):
    """A random stream of its own for every seed and purpose."""
    return random.Random(f"farm GPT, {purpose}, {seed}")


def train(kind, seed, steps):
    """A model after `steps` batches of the training corpus, shuffled anew for every epoch."""
    model, recurrent = new_model(kind, seed), LOSS.get(kind)
    ids = farm.encode(farm.corpus(TRAINING, "training"))  # (TRAINING, T + 1)
    tree = None if recurrent else Prefixes(ids)
    order = torch.Generator().manual_seed(stream(seed, "order").getrandbits(63))
    vector = one_vector(model)
    rate = {"LSTM": LSTM_RATE, "RNN": RNN_RATE}.get(kind, RATE)
    adam = torch.optim.AdamW([vector], lr=rate, weight_decay=0.0, fused=True)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    size, batches = RNN_BATCH if recurrent else BATCH, []
    for _ in range(steps):
        batches = batches or list(torch.randperm(len(ids), generator=order).split(size))
        batch = batches.pop()  # (B,): which sentences
        vector.grad.zero_()
        if recurrent:
            recurrent(model, ids[batch]).backward()
        else:
            gpt_gradient(model, *tree.batch(batch))
        norm = torch.linalg.vector_norm(vector.grad)
        vector.grad *= (CLIP / norm).clamp(max=1)
        adam.step()
        cosine.step()
    return model.requires_grad_(False)


def one_vector(model):
    """All parameters as one vector; they and their gradients become windows on it and its gradient.

    The norm, the clipping and Adam are then one operation each instead of one for each parameter.
    """
    parameters = list(model.parameters())
    vector = nn.Parameter(nn.utils.parameters_to_vector(parameters).detach())
    vector.grad = torch.zeros_like(vector)
    sizes = [p.numel() for p in parameters]
    for p, values, grad in zip(parameters, vector.data.split(sizes), vector.grad.split(sizes)):
        p.data, p.grad = values.view_as(p), grad.view_as(p)
    return vector


def plain_loss(model, ids):
    """The mean loss of the real tokens of ids (B, T + 1), as one would write it first.

    What trains below are faster ways to this number's gradient; tests hold them against it.
    """
    logits = model(ids[:, :-1])  # (B, T, V), padding included
    return F.cross_entropy(
        logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=farm.ID[farm.PAD]
    )


# ── the GPT's gradient, without work that is done twice or for padding ───────────────────────────
class Prefixes:
    """Sentences as a tree: a node for each different prefix, "<s>" is the root.

    A causal model gives a token a vector that depends on its prefix alone, and "<s> the" starts
    every sentence: in a batch each different prefix needs one row, four rows for five tokens. It
    may look at the rows of its own prefixes, which is all that attention needs to know.
    """

    def __init__(self, ids):
        """ids (S, T + 1), padded."""
        S, T = ids.shape[0], ids.shape[1] - 1
        self.target = ids[:, 1:]  # (S, T)
        self.node = torch.full((S, T), -1)  # (S, T): the prefix up to here; -1: padding
        before, count = torch.zeros(S, dtype=torch.long), 0  # (S,): the prefix without this token
        for t in range(T):
            real = self.target[:, t] != farm.ID[farm.PAD]  # (S,)
            step = before * len(farm.VOCABULARY) + ids[:, t]  # a prefix is one before it and a word
            different, which = step[real].unique(return_inverse=True)
            self.node[real, t] = count + which
            before, count = self.node[:, t], count + len(different)
        self.token, self.position = torch.zeros(2, count, dtype=torch.long)  # (nodes,) each
        self.path = torch.zeros(count, T, dtype=torch.long)  # (nodes, T): its prefixes, then itself
        for t in range(T):
            real = self.target[:, t] != farm.ID[farm.PAD]
            here = self.node[real, t]
            self.token[here], self.position[here] = ids[real, t], t
            self.path[here] = self.node[real].where(torch.arange(T) <= t, here[:, None])

    def batch(self, sentences):
        """Numbers of sentences (B,) → the U different prefixes in them, as gpt_gradient wants them.

        Their last tokens (U,) and positions (U,), counts (U, V): how often which word follows, and
        M (U, U): 0 where a row may look, -inf elsewhere.
        """
        node = self.node[sentences]  # (B, T)
        real = node != -1
        different, row = node[real].unique(return_inverse=True)  # (U,), (N,): the row of each token
        U, following = len(different), self.target[sentences][real]  # (N,)
        counts = torch.zeros(U, len(farm.VOCABULARY))
        counts.index_put_((row, following), torch.ones(len(row)), accumulate=True)
        seen = torch.searchsorted(different, self.path[different])  # (U, T)
        M = torch.full((U, U), -torch.inf).scatter_(1, seen, 0.0)
        return self.token[different], self.position[different], counts, M


@torch.no_grad()
def gpt_gradient(model, token, position, counts, M):
    """The gradient of the plain mean loss, written into the parameters' .grad → the loss.

    token, position (U,), counts (U, V), M (U, U): a batch of Prefixes. Forward, then the chain rule
    backward, line by line: dx is the loss's derivative by x.
    """
    U, d = len(token), model.token_embedding.weight.shape[1]
    x = model.token_embedding.weight[token]  # (U, d)
    if model.positions == "learned":
        x += model.position_embedding.weight[position]
    elif model.positions == "sinusoidal":
        x += model.pe[position]

    by_head = U, model.blocks[0].attn.n_heads, -1  # d numbers become h times d_k
    kept = []  # for each block, what its backward pass needs again
    for block in model.blocks:
        attn, ffn = block.attn, block.ffn
        y, *ln_1 = layer_norm(block.ln_1, x)  # (U, d)
        q, k, v = (W(y).view(by_head).transpose(0, 1) for W in (attn.W_q, attn.W_k, attn.W_v))
        S = torch.baddbmm(M, q, k.transpose(1, 2), alpha=attn.d_k**-0.5)  # (h, U, U)
        A = torch.softmax(S, dim=-1)
        heads = torch.bmm(A, v).transpose(0, 1).reshape(U, d)
        x = x + attn.W_o(heads)
        z, *ln_2 = layer_norm(block.ln_2, x)  # (U, d)
        u = ffn.W_1(z)  # (U, 4d)
        phi = 0.5 + 0.5 * torch.erf(u * 0.5**0.5)  # Φ(u): GELU is u Φ(u)
        g = u * phi
        x = x + ffn.W_2(g)
        kept.append((y, ln_1, q, k, v, A, heads, z, ln_2, u, phi, g))
    y, *ln = layer_norm(model.final_norm, x)
    log_p = F.log_softmax(F.linear(y, model.token_embedding.weight), dim=-1)  # (U, V)
    N = counts.sum()
    loss = -(counts * log_p).sum() / N

    d_logits = (log_p.exp() * counts.sum(dim=1, keepdim=True) - counts) / N  # (U, V)
    d_embedding = model.token_embedding.weight.grad
    torch.mm(d_logits.T, y, out=d_embedding)  # the output's share; the input's comes last
    dx = layer_norm_backward(model.final_norm, d_logits @ model.token_embedding.weight, *ln)
    for block, (y, ln_1, q, k, v, A, heads, z, ln_2, u, phi, g) in zip(
        model.blocks[::-1], kept[::-1]
    ):
        attn, ffn = block.attn, block.ffn
        slope = phi + (2 * math.pi) ** -0.5 * u * torch.exp(-0.5 * u * u)  # of GELU, (U, 4d)
        du = linear_backward(ffn.W_2, dx, g) * slope
        dx += layer_norm_backward(block.ln_2, linear_backward(ffn.W_1, du, z), *ln_2)
        d_heads = linear_backward(attn.W_o, dx, heads)  # (U, d)
        mean = (d_heads * heads).view(by_head).sum(dim=2).T.unsqueeze(2)  # Σ_j A dA: (h, U, 1)
        d_heads = d_heads.view(by_head).transpose(0, 1)  # (h, U, d_k)
        dS = torch.bmm(d_heads, v.transpose(1, 2))  # (h, U, U): dA, and in place, as it is large,
        dS.sub_(mean).mul_(A).mul_(attn.d_k**-0.5)  # dS = A (dA - mean) / √d_k
        dq, dk = torch.bmm(dS, k), torch.bmm(dS.transpose(1, 2), q)  # (h, U, d_k) each
        dv = torch.bmm(A.transpose(1, 2), d_heads)
        dy = 0
        for W, one in (attn.W_q, dq), (attn.W_k, dk), (attn.W_v, dv):
            dy = dy + linear_backward(W, one.transpose(0, 1).reshape(U, d), y)
        dx += layer_norm_backward(block.ln_1, dy, *ln_1)
    d_embedding.index_add_(0, token, dx)
    if model.positions == "learned":
        model.position_embedding.weight.grad.zero_().index_add_(0, position, dx)
    return loss


def layer_norm(layer, x):
    """y = γ x̂ + β of x (U, d); and x̂ and 1/σ for the way back."""
    x_hat, _, scale = torch.native_layer_norm(x, x.shape[1:], None, None, layer.eps)
    return torch.addcmul(layer.bias, layer.weight, x_hat), x_hat, scale  # (U, d) twice, (U, 1)


def layer_norm_backward(layer, dy, x_hat, scale):
    """dx: dx̂ / σ but for its mean and its part along x̂, which no x can change; dγ, dβ in .grad."""
    torch.sum(dy * x_hat, dim=0, out=layer.weight.grad)
    torch.sum(dy, dim=0, out=layer.bias.grad)
    dx_hat = dy * layer.weight
    along = (dx_hat * x_hat).mean(dim=1, keepdim=True)  # (U, 1)
    return scale * (dx_hat - dx_hat.mean(dim=1, keepdim=True) - along * x_hat)


def linear_backward(layer, dy, x):
    """dx = dy W for y = x Wᵀ + b; dW = dyᵀ x and db, the sum of dy, go into .grad."""
    torch.mm(dy.T, x, out=layer.weight.grad)
    torch.sum(dy, dim=0, out=layer.bias.grad)
    return dy @ layer.weight  # (U, inputs)


# ── the recurrent models' loss: torch's kernels, and the output for real tokens only ─────────────
def real_tokens(ids):
    """Padded ids (B, T + 1) → inputs, targets, and which of them are real, cut to the longest."""
    real = ids[:, 1:] != farm.ID[farm.PAD]  # (B, T)
    T = int(real.sum(dim=1).max())
    return ids[:, :T], ids[:, 1 : T + 1], real[:, :T]


def lstm_loss(model, ids):
    """The plain LSTM's mean loss over the real tokens: torch's kernel, the same weights."""
    inputs, targets, real = real_tokens(ids)  # (B, T) each
    cell = model.rnn.cell
    weights = [cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh]
    zero = cell.weight_hh.new_zeros(1, len(ids), cell.hidden_size)
    h, _, _ = torch.lstm(model.embedding(inputs), (zero, zero), weights, **KERNEL)  # (B, T, H)
    return F.cross_entropy(model.output(h[real]), targets[real])


def rnn_loss(model, ids):
    """The plain Elman RNN's mean loss over the real tokens: torch's kernel, the same weights."""
    inputs, targets, real = real_tokens(ids)  # (B, T) each
    rnn = model.rnn
    weights = [rnn.W_hx, rnn.W_hh, rnn.b_h, torch.zeros_like(rnn.b_h)]  # torch has two biases
    zero = rnn.W_hh.new_zeros(1, len(ids), rnn.hidden_size)
    h, _ = torch.rnn_tanh(model.embedding(inputs), zero, weights, **KERNEL)  # (B, T, H)
    return F.cross_entropy(model.output(h[real]), targets[real])


KERNEL = {"has_biases": True, "num_layers": 1, "dropout": 0.0, "train": True}
KERNEL |= {"bidirectional": False, "batch_first": True}
LOSS = {"LSTM": lstm_loss, "RNN": rnn_loss}


@contextmanager
def one_thread():
    """One thread, so that sums round alike everywhere; tiny numbers count as 0, which is faster."""
    threads, tiny = torch.get_num_threads(), torch.tensor(1e-40)
    flushed = bool(tiny * 1 == 0)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(flushed)


def trained_weights(job):
    """What a worker process does: train, and send the weights back."""
    with one_thread():
        model = train(*job)
    return {name: value.clone() for name, value in model.state_dict().items()}


KEPT = {}  # (kind, seed, steps) → the trained model, for all parts of this process


def trained(show, kinds, seeds=(0,)):
    """The models as {(kind, seed): model}; what is not there yet is trained, in processes."""
    check_constants()
    jobs = {(kind, seed): (kind, seed, steps(show, kind)) for seed in seeds for kind in kinds}
    if ("RNN", 0) in jobs and jobs["RNN", 0] not in KEPT:
        load_rnn(show, jobs["RNN", 0])
    missing = [job for job in jobs.values() if job not in KEPT]
    missing.sort(key=lambda job: job[0] in LOSS)  # the GPTs, which take longest, first
    weights = in_processes(show, trained_weights, missing, ("training", "训练"))
    for job, found in zip(missing, weights):
        KEPT[job] = with_weights(job, found)
        if job[0] == "RNN":
            save_rnn(show, job)
    return {name: KEPT[job] for name, job in jobs.items()}


def steps(show, kind):
    """Batches in the whole training."""
    if show.quick:
        return 40
    batch = RNN_BATCH if kind in LOSS else BATCH
    return math.ceil(TRAINING / batch) * (RNN_EPOCHS if kind == "RNN" else EPOCHS)


def with_weights(job, weights):
    model = new_model(*job[:2]).requires_grad_(False)
    model.load_state_dict(weights)
    return model


def check_constants():
    """Refuse what cannot be trained or asked, before anything is spent on it."""
    require(TEST >= 100, f"TEST must be at least 100, some seen in training, got {TEST}")
    for name in (
        "TRAINING",
        "BATCH",
        "RNN_BATCH",
        "EPOCHS",
        "RNN_EPOCHS",
        "LAYERS",
        "K",
        "SAMPLED",
    ):
        value = globals()[name]
        require(isinstance(value, int) and value >= 1, f"{name} must be 1 or more, got {value}")
    require(HEADS >= 1 and D % HEADS == 0, f"HEADS must divide D = {D}, got {HEADS}")
    require(D % 2 == 0, f"D must be even for the sinusoids' pairs, got {D}")
    for name in ("RATE", "LSTM_RATE", "RNN_RATE", "CLIP"):
        require(globals()[name] > 0, f"{name} must be above 0, got {globals()[name]}")
    need = f"MOST_DISTRACTORS must be at least {max(K, farm.MOST_PHRASES + 1)}"
    require(max(K, farm.MOST_PHRASES + 1) <= MOST_DISTRACTORS, f"{need}, got {MOST_DISTRACTORS}")
    longest = max(farm.query_position(MOST_DISTRACTORS), 2 + max(farm.lengths()))
    require(longest <= MAX_LEN, f"MAX_LEN must be at least {longest}, got {MAX_LEN}")
    even = SENTENCES >= 2 and SENTENCES % 2 == 0
    require(even, f"SENTENCES must be even, half singular, half plural, got {SENTENCES}")
    all_three = sorted(map(str, POSITIONS)) == ["learned", "none", "sinusoidal"]
    require(all_three, f"POSITIONS must hold learned, sinusoidal and none, got {POSITIONS}")


# ── lecture 1's RNN: trained once, then read from the cache ──────────────────────────────────────
CACHE = ROOT / ".cache"


def load_rnn(show, job):
    """Keep the cached RNN if it is the one that training would give; say in a line if it is not."""
    path = CACHE / f"farm_rnn_{job[2]}_steps.pt"
    try:
        file = torch.load(path, weights_only=True)
        require(file["key"] == rnn_key(job), "made with other settings or another version")
        require(file["digest"] == digest(file["weights"]), "the weights are damaged")
        KEPT[job] = with_weights(job, file["weights"])
    except FileNotFoundError:
        pass
    except Exception as error:  # a damaged file can raise anything at all: train it anew
        why = str(error).strip().partition("\n")[0][:100] or type(error).__name__
        en = f"The cached RNN {path.name} cannot be used, so it is trained anew: {why}"
        show.note((en, f"缓存的 RNN（{path.name}）不能用，重新训练：{why}"))


def save_rnn(show, job):
    """Write the trained RNN to the cache, whole or not at all."""
    path = CACHE / f"farm_rnn_{job[2]}_steps.pt"
    weights = dict(KEPT[job].state_dict())
    try:
        path.parent.mkdir(exist_ok=True)
        with write_beside(path) as file:
            content = {"key": rnn_key(job), "digest": digest(weights), "weights": weights}
            torch.save(content, file)
    except OSError as error:
        why = f"{error.strerror or error}: {path.name}"
        show.note((f"The RNN could not be cached: {why}", f"RNN 未能写入缓存：{why}"))


def rnn_key(job):
    """A hash of all that decides the RNN's weights: settings, corpus, code, torch, processor."""
    code = [RNNLM, ElmanRNN, new_model, stream, train, one_vector]
    code += [real_tokens, rnn_loss, one_thread]
    settings = [job, TRAINING, RNN_BATCH, RNN_RATE, CLIP, KERNEL, farm.VOCABULARY]
    settings += [torch.__version__, torch.backends.cpu.get_cpu_capability()]
    parts = [settings, farm.corpus(TRAINING, "training"), list(map(inspect.getsource, code))]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def digest(weights):
    """A hash of the numbers themselves."""
    flat = torch.cat([weights[name].flatten() for name in sorted(weights)])
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()


# %% Part 1 · §6.1 ─────────────────────────────────────────────────────────────────────────────────
def part1_perplexity(show):
    """§6.1 · 困惑度 · Perplexity"""
    seeds = show.seeds(1)
    models = trained(show, ["learned", "LSTM"], seeds) | trained(show, ["RNN"])
    training, test = farm.corpus(TRAINING, "training"), farm.corpus(TEST, "test")
    known = set(training)
    groups = [test, [s for s in test if s in known], [s for s in test if s not in known]]
    bounds = [bound_of(group) for group in groups]  # of all, of the seen, of the unseen sentences
    perplexities = {
        name: [perplexity(model, group) for group in groups] for name, model in models.items()
    }

    rows = []
    for (kind, seed), measured in perplexities.items():
        name, size = NAMES.get(kind, kind), parameters(models[kind, seed])
        ratio = f"{100 * (measured[0] / bounds[0] - 1):+.2f}%"
        rows.append([name, seed, f"{size:,}", *(f"{p:.4f}" for p in measured), ratio])
    for n, name in (3, "trigram"), (2, "bigram"):
        counted = ngram_perplexities(n, training, groups)
        ratio = f"{100 * (counted[0] / bounds[0] - 1):+.2f}%"
        rows.append([name, "-", "-", *(f"{p:.4f}" for p in counted), ratio])
    rows.append([show.say(("bound, these sentences", "这些句子的下界")), "-", "-"])
    rows[-1] += [f"{b:.4f}" for b in bounds] + ["-"]
    rows.append([show.say(("bound, the grammar", "文法的下界")), "-", "-"])
    rows[-1] += [f"{farm.perplexity_bound():.4f}", "-", "-", "-"]
    header = [("model", "模型"), ("seed", "种子"), ("parameters", "参数量"), ("test set", "测试集")]
    header += [("sentences seen in training", "训练里出现过的句子"), ("unseen", "没出现过的")]
    header += [("above the bound", "高出下界")]
    title = f"Perplexity on {TEST:,} sentences, {len(groups[1]):,} of them also in the training set"
    chinese = f"{TEST:,} 个测试句的困惑度，其中 {len(groups[1]):,} 句在训练集里出现过"
    show.table((title, chinese), header, rows)

    gpt, lstm, rnn = models["learned", 0], models["LSTM", 0], models["RNN", 0]
    show.claim("L2-126", [len(training), len(farm.VOCABULARY)])
    show.claim("L2-127", [len(gpt.blocks), gpt.blocks[0].attn.n_heads, gpt.blocks[0].attn.d_model])
    show.claim("L2-128", parameters(gpt))
    show.claim("L2-129", parameters(lstm))
    show.claim("L2-130", parameters(rnn))
    show.claim("L2-131", [EPOCHS, EPOCHS, RNN_EPOCHS])
    ratios = [
        [perplexities[name][0] / bounds[0] for name in (("learned", s), ("LSTM", s), ("RNN", 0))]
        for s in seeds
    ]
    show.claim("L2-132", ratios[0], seeds=ratios)
    show.claim("L2-133", max(map(len, training)) - 1)  # without </s>


NAMES = {"learned": "GPT"}  # in the parts where it is the only one


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def bound_of(sentences):
    """The perplexity that the grammar itself has on these sentences."""
    return 2 ** (sum(map(farm.bits, sentences)) / sum(map(len, sentences)))


def perplexity(model, sentences):
    """e^(mean loss a token), </s> included; sentences of one length together, without padding."""
    nats = 0.0
    with one_thread():
        for length in sorted(set(map(len, sentences))):
            ids = farm.encode([s for s in sentences if len(s) == length])  # (B, 1 + length)
            logits = model(ids[:, :-1])  # (B, length, V)
            nats += F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
    return math.exp(nats / sum(map(len, sentences)))


def ngram_perplexities(n, training, groups):
    """Counts of n words, each plus α: perplexity on each group of sentences.

    α is the one of 1, 0.1, 0.01, 0.001 that does best on the first group: flattering, on purpose.
    """
    whole = Counter(gram for sentence in training for gram in ngrams(sentence, n))
    context = Counter()
    for gram, count in whole.items():
        context[gram[:-1]] += count
    V = len(farm.VOCABULARY) - 2  # <pad> and <s> never follow
    results = []
    for alpha in (1, 0.1, 0.01, 0.001):
        results.append([])
        for sentences in groups:
            grams = [gram for sentence in sentences for gram in ngrams(sentence, n)]
            p = [(whole[gram] + alpha) / (context[gram[:-1]] + alpha * V) for gram in grams]
            results[-1].append(math.exp(-sum(map(math.log, p)) / len(p)))
    return min(results)


def ngrams(sentence, n):
    """Each word of the sentence with the n - 1 before it, <s> in front of the first."""
    words = (farm.BOS,) * (n - 1) + sentence
    return [words[i : i + n] for i in range(len(sentence))]


# %% Part 2 · §6.2 ─────────────────────────────────────────────────────────────────────────────────
def part2_agreement(show):
    """§6.2 · 主谓一致到 k = 8 · Agreement up to k = 8"""
    seeds = show.seeds(1)
    models = trained(show, ["learned", "LSTM"], seeds) | trained(show, ["RNN"])
    scores = {name: [accuracy(model, k) for k in ks()] for name, model in models.items()}

    rows = [[NAMES.get(kind, kind), s, *map(three, row)] for (kind, s), row in scores.items()]
    query = show.say(("token of the query", "查询在第几个 token"))
    rows.append([query, "-", *map(farm.query_position, ks())])
    header = [("model", "模型"), ("seed", "种子"), *(f"k = {k}" for k in ks())]
    title = f"Agreement: accuracy on {SENTENCES} sentences with k distractors of the other number"
    chinese = f"主谓一致的准确率：k 个干扰名词，单复数都与主语相反，每个 k 各 {SENTENCES} 句"
    show.table((title, chinese), header, rows)

    training = farm.corpus(TRAINING, "training")
    longest = max(map(len, training))  # <s> in front, without </s> at the end
    phrases = max(sum(word in farm.PREPOSITIONS for word in s) for s in training)

    ids, numbers = farm.agreement(MOST_DISTRACTORS, SENTENCES)  # (B, T), T the query
    plural = numbers.double().mean().item()
    bits = -sum(p * math.log2(p) for p in (plural, 1 - plural))
    show.claim("L2-103", [bits, ids.shape[1] + 1 - farm.SUBJECT])
    wrong = [round((1 - scores["learned", s][-1]) * SENTENCES) for s in seeds]
    show.claim("L2-134", wrong[0], seeds=wrong)
    show.claim("L2-135", ids.shape[1])
    show.claim("L2-136", longest)
    show.claim("L2-137", phrases)

    with show.figure("06_agreement", size=(7.5, 4.5)) as ax:
        for (kind, seed), row in scores.items():
            style = {"learned": "C0o-", "LSTM": "C1s--", "RNN": "C2^:"}[kind]
            label = NAMES.get(kind, kind) if seed == 0 else None
            ax.plot(ks(), row, style, label=label, alpha=1 if seed == 0 else 0.4)
        shade_training(ax)
        ax.set(xlabel="k, distractors of the opposite number", ylabel="accuracy")
        ax.set_title("Does the verb agree with its subject?")
        ax.legend(loc="lower left")


def ks():
    return range(MOST_DISTRACTORS + 1)


def three(x):
    return f"{x:.3f}" if x == x else "—"  # NaN: there was nothing to take a share of


def says_plural(logits):
    """Logits (B, V) where the verb is due → 1 where plural verbs get more probability, else 0."""
    one, many = ([farm.ID[verb] for verb in farm.VERB[n]] for n in (farm.SINGULAR, farm.PLURAL))
    return (logits[:, many].logsumexp(dim=1) > logits[:, one].logsumexp(dim=1)).long()  # (B,)


def is_right(model, k):
    """For each of the sentences with k distractors: is the verdict the subject's number? (B,)"""
    ids, numbers = farm.agreement(k, SENTENCES)
    with one_thread():
        return says_plural(model(ids)[:, -1]) == numbers


def accuracy(model, k):
    return is_right(model, k).double().mean().item()


def shade_training(ax):
    """Accuracy from 0 to 1, with the k that training shows and the score of a constant answer."""
    ax.set_ylim(-0.05, 1.05)
    ax.axvspan(-0.3, farm.MOST_PHRASES + 0.3, color="grey", alpha=0.15, label="seen in training")
    ax.axhline(0.5, color="grey", linestyle=":", linewidth=1)


# %% Part 3 · §6.3 ─────────────────────────────────────────────────────────────────────────────────
def part3_attention(show):
    """§6.3 · GPT 预测动词时，注意力放在哪里 · Where the GPT looks when it predicts the verb"""
    seeds = show.seeds(1)
    models = trained(show, ["learned"], seeds)
    ids, _ = farm.agreement(K, SENTENCES)  # (B, T), T the query
    T = ids.shape[1]
    looks = {s: query_attention(models["learned", s], ids) for s in seeds}  # (layers · h, T)

    names = [f"L{layer + 1} H{head + 1}" for layer in range(LAYERS) for head in range(HEADS)]
    rows = []
    for group, positions in token_groups(K).items():
        at = [p - 1 for p in positions]
        given = looks[0][:, at].sum(dim=1).tolist()
        label = show.say(GROUPS[group])
        rows.append([label, ", ".join(map(str, positions)), three(len(at) / T), *map(three, given)])
    header = [("group", "位置组"), ("positions", "第几个 token"), ("uniform", "均匀分配"), *names]
    title = f"Where token {T}, the query, looks at k = {K}: seed 0, mean of {SENTENCES} sentences"
    chinese = f"k = {K} 时查询（第 {T} 个 token）的注意力：种子 0，{SENTENCES} 句平均"
    show.table((title, chinese), header, rows)

    on_subject = {s: looks[s][:, farm.SUBJECT - 1] for s in seeds}  # (layers · h,)
    rows = [[s, *map(three, on_subject[s].tolist())] for s in seeds]
    title = ("Weight on the subject, head by head", "各头放在主语上的注意力")
    show.table(title, [("seed", "种子"), *names], rows)
    largest = [on_subject[s][:HEADS].max().item() for s in seeds]
    count = f"{sum(weight >= 0.9 for weight in largest)} / {len(seeds)}"
    en = f"Seeds on which a layer-1 head puts 0.9 or more on the subject: {count}"
    show.note((en, f"第 1 层有一个头把 0.9 以上的注意力放在主语上的种子数：{count}"))

    show.claim("L2-138", T)
    show.claim("L2-139", largest[0], seeds=largest)
    show.claim("L2-140", uniform_attention(T)[-1, 0])
    show.claim("L2-141a", T + 1 - farm.SUBJECT)
    show.claim("L2-141b", T - farm.SUBJECT)

    with show.figure("06_attention", size=(9, 4.6)) as ax:
        image = ax.imshow(looks[0], vmin=0, vmax=1, cmap="Blues", aspect="auto")
        ax.set_xticks(range(T), position_labels(K), rotation=60, ha="right")
        ax.set_yticks(range(len(names)), names)
        for head, position in (looks[0] >= 0.1).nonzero().tolist():
            weight = looks[0][head, position].item()
            colour = "white" if weight > 0.5 else "black"
            ax.text(position, head, f"{weight:.2f}", ha="center", va="center", color=colour, size=8)
        ax.axhline(HEADS - 0.5, color="black", linewidth=1)
        ax.set_title(f"Attention of token {T}, where the verb is predicted (seed 0)")
        ax.figure.colorbar(image, label="mean weight")


GROUPS = {
    "<s>": ("<s>", "<s>"),
    "the": ('"the" before the subject', "主语前的 the"),
    "subject": ("subject noun", "主语名词"),
    "prepositions": ("prepositions", "介词"),
    "articles": ('"the" in the phrases', "介词短语里的 the"),
    "distractors": ("distractors before the query", "查询之前的干扰名词"),
    "query": ("the query itself (last distractor)", "查询自己（最后一个干扰名词）"),
}


def token_groups(k):
    """Group → its positions, counted from 1, in `<s> the NOUN (PREP the NOUN){k}`."""
    starts = [farm.SUBJECT + 3 * i for i in range(k)]
    groups = {"<s>": [1], "the": [2], "subject": [farm.SUBJECT]}
    groups |= {"prepositions": [s + 1 for s in starts], "articles": [s + 2 for s in starts]}
    distractors = [s + 3 for s in starts]
    return groups | {"distractors": distractors[:-1], "query": distractors[-1:]}


def position_labels(k):
    phrases = [word for i in range(k) for word in ("PREP", "the", f"NOUN {i + 1}")]
    return [f"{p} {w}" for p, w in enumerate(["<s>", "the", "SUBJECT", *phrases], start=1)]


def query_attention(model, ids):
    """The mean attention of the last token over the sentences: (layers · h, T)."""
    with one_thread():
        return torch.cat([A[:, :, -1].mean(dim=0) for A in model.attention(ids)])


def uniform_attention(T):
    """The weights (T, T) of a causal head whose queries are all 0, so that every score is 0."""
    attn = MultiHeadAttention(2, 1).double()
    nn.init.zeros_(attn.W_q.weight)
    nn.init.zeros_(attn.W_q.bias)
    tokens = torch.arange(2.0 * T, dtype=torch.float64).view(1, T, 2)  # no two alike
    return attn.attention(tokens)[0, 0].detach()


# %% Part 4 · §6.4 ─────────────────────────────────────────────────────────────────────────────────
def part4_cut(show):
    """§6.4 · 切断连线 · Cutting the links"""
    seeds = show.seeds(1)
    models = trained(show, ["learned"], seeds)
    groups = token_groups(K)
    others = [p for name in groups if name not in ("subject", "query") for p in groups[name]]
    after = {s: {} for s in seeds}
    for s in seeds:
        model = models["learned", s]
        after[s]["nothing"] = is_right(model, K)  # (B,) each
        for name, positions in groups.items():
            after[s][name] = right_after_cut(model, positions)
        singles = torch.stack([right_after_cut(model, [p]) for p in others])  # (positions, B)
        after[s]["worst single"] = singles[singles.double().mean(dim=1).argmin()]
        draws = stream(s, "control")
        chosen = torch.tensor([draws.randrange(len(others)) for _ in range(SENTENCES)])
        after[s]["random"] = singles[chosen, torch.arange(SENTENCES)]  # one position a sentence
    score = {s: {name: r.double().mean().item() for name, r in after[s].items()} for s in seeds}

    labels = {"nothing": ("nothing is cut", "不切断")} | GROUPS
    labels["random"] = ("a random position, drawn for each sentence", "随机一个位置，逐句抽取")
    labels["worst single"] = ("the worst of these single positions", "其中影响最大的单个位置")
    rows = [[show.say(labels[name]), *(three(score[s][name]) for s in seeds)] for name in labels]
    header = [("tokens that nobody behind them may look at", "之后的查询都不许看的位置")]
    header += [(f"seed {s}", f"种子 {s}") for s in seeds]
    title = f"Accuracy at k = {K} with links cut in all heads of all layers"
    show.table((title, f"在所有层、所有头里切断后，k = {K} 的准确率"), header, rows)

    subject = [score[s]["subject"] for s in seeds]
    spared = [min(v for name, v in score[s].items() if name != "subject") for s in seeds]
    low, fine = sum(x <= 0.1 for x in subject), sum(x >= 0.95 for x in spared)
    n = len(seeds)
    en = f"Seeds that fall to 0.1 or less without the subject: {low} / {n}; "
    en += f"that keep 0.95 or more after every other cut and the control: {fine} / {n}"
    zh = f"切断主语后降到 0.1 以下的种子数：{low} / {n}；"
    show.note((en, zh + f"其他各种切断与对照之后都不低于 0.95 的种子数：{fine} / {n}"))

    ids, numbers = farm.agreement(K, SENTENCES)
    is_noun = [farm.VOCABULARY[i] in farm.NOUN[0] + farm.NOUN[1] for i in ids[0]]
    before = [score[s]["nothing"] for s in seeds]
    show.claim("L2-142", subject[0], seeds=subject)
    show.claim("L2-142b", spared[0], seeds=spared)
    show.claim("L2-143a", before[0], seeds=before)
    show.claim("L2-143b", (numbers == farm.SINGULAR).double().mean())
    show.claim("L2-144", is_noun.index(True) + 1)

    with show.figure("06_cut", size=(8, 4.4)) as ax:
        names = list(labels)[::-1]
        for place, name in enumerate(names):
            values = [score[s][name] for s in seeds]
            ax.barh(place, values[0], color="C3" if name == "subject" else "C0", alpha=0.6)
            ax.plot(values, [place] * len(seeds), "k|", markersize=9)
            ax.text(0.015, place, three(values[0]), va="center")
        ax.set_yticks(range(len(names)), [labels[name][0] for name in names])
        ax.axvline(0.5, color="grey", linestyle=":", linewidth=1)
        what = "bar: seed 0, ticks: every seed, dotted: one answer for all"
        ax.set(xlim=(0, 1.03), xlabel=f"accuracy at k = {K} ({what})")
        ax.set_title("What the verb's number depends on")
    show.view("attention", lambda: attention_view(show, models["learned", seeds[0]]))


def right_after_cut(model, positions):
    """is_right at K while no later token can look at these positions, counted from 1 (B,).

    The last token has nobody behind it: there its look at itself is cut.
    """
    last = farm.query_position(K)
    with ExitStack() as cuts:
        for p in positions:
            behind = slice(p, None) if p < last else last - 1  # from 0: p is the token after p
            cuts.enter_context(cut(model, behind, p - 1))
        return is_right(model, K)


# %% Part 5 · §6.5, 8.10 ───────────────────────────────────────────────────────────────────────────
def part5_positions(show):
    """§6.5 · 位置编码的三种选择 · Three choices of positions"""
    seeds = show.seeds(1)
    start = time.perf_counter()
    models = trained(show, POSITIONS, seeds)
    seconds = time.perf_counter() - start
    test = farm.corpus(TEST, "test")
    ppl = {name: perplexity(model, test) for name, model in models.items()}
    score = {name: [accuracy(model, k) for k in ks()] for name, model in models.items()}
    inside = {name: min(row[: farm.MOST_PHRASES + 1]) for name, row in score.items()}
    beyond = {name: min(row[farm.MOST_PHRASES + 1 :]) for name, row in score.items()}

    rows = [
        [*name, f"{ppl[name]:.4f}", *map(three, score[name]), three(beyond[name])]
        for name in sorted(models, key=lambda name: POSITIONS.index(name[0]))
    ]
    header = [("positions", "位置编码"), ("seed", "种子"), ("perplexity", "困惑度")]
    header += [*(f"k = {k}" for k in ks()), ("lowest, k ≥ 4", "k ≥ 4 最低")]
    title = "Perplexity and agreement by positions and seed; training shows k ≤ 3"
    show.table((title, "各种位置编码、各个种子的困惑度与主谓一致；训练里只有 k ≤ 3"), header, rows)

    def each_seed(of):
        return [[of[kind, s] for kind in POSITIONS] for s in seeds]

    show.claim("L2-145b", seconds / 60)
    show.claim("L2-146", each_seed(ppl)[0], seeds=each_seed(ppl))
    show.claim("L2-147", each_seed(inside)[0], seeds=each_seed(inside))
    for id, kind in ("L2-148a", "learned"), ("L2-148b", "sinusoidal"), ("L2-149", "none"):
        lowest = [beyond[kind, s] for s in seeds]
        show.claim(id, lowest[0], seeds=lowest)
    falls = [min(beyond["learned", s], beyond["sinusoidal", s]) < 0.9 for s in seeds]
    show.claim("L2-148c", falls[0], seeds=falls)
    steadiest = [beyond["none", s] == max(beyond[kind, s] for kind in POSITIONS) for s in seeds]
    show.claim("L2-149b", steadiest[0], seeds=steadiest)
    t = torch.arange(1, farm.query_position(MOST_DISTRACTORS) + 1, dtype=torch.float64)
    to_bos = uniform_attention(len(t))[:, 0]  # (T,)
    show.claim("L2-150", torch.allclose(to_bos, 1 / t, rtol=1e-15, atol=0))
    show.claim("L2-151", [score["learned", s][-1] for s in seeds])

    with show.figure("06_positions", columns=3, size=(13, 4.2)) as axes:
        for ax, kind in zip(axes, POSITIONS):
            for s in seeds:
                ax.plot(ks(), score[kind, s], "o-", label=f"seed {s}", alpha=0.8)
            shade_training(ax)
            ax.set(xlabel="k, distractors", ylabel="accuracy", title=kind)
            ax.legend(fontsize=8, loc="lower left")


# %% Part 6 · beyond the lecture ───────────────────────────────────────────────────────────────────
def part6_samples(show):
    """§6 之外 · GPT 写的句子合乎文法吗 · Beyond §6: are the GPT's own sentences grammatical?"""
    seeds = show.seeds(1)
    models = trained(show, ["learned"], seeds)
    written = {s: write(models["learned", s], s) for s in seeds}
    known = set(farm.corpus(TRAINING, "training"))

    rows = []
    for words in written[0][:SHOWN]:
        error = farm.first_error(words)
        verdict = ("in the language", "合文法")
        if error is not None:
            verdict, words = ("not in it", "不合"), (*words[:error], "*", *words[error:])
        text = " ".join(word for word in words if word != farm.EOS)
        rows.append([text, show.say(verdict), words in known])
    header = [("sentence (* before the first wrong word)", "句子（* 在第一个错词之前）")]
    header += [("verdict", "判定"), ("in the training set", "在训练集里")]
    title = f"The first {len(rows)} of {SAMPLED:,} sentences that the GPT writes, seed 0"
    show.table((title, f"GPT 写的 {SAMPLED:,} 句中的前 {len(rows)} 句，种子 0"), header, rows)

    rows = []
    for s in seeds:
        good = [words for words in written[s] if farm.first_error(words) is None]
        new = [words for words in good if words not in known]
        share = [len(good) / SAMPLED, len(new) / max(len(good), 1)]
        rows.append([s, *map(three, share), len(set(good))])
    header = [("seed", "种子"), ("in the language", "合文法的比例")]
    header += [("of these new", "其中训练集里没有的比例"), ("different ones", "互不相同的句数")]
    title = f"{SAMPLED:,} sentences, sampled at temperature 1"
    show.table((title, f"温度 1 下采样的 {SAMPLED:,} 句"), header, rows)


def write(model, seed):
    """SAMPLED sentences from <s> on, each up to its first </s>, as tuples of words."""
    longest = max(farm.lengths()) + 1  # one token more than any sentence has
    start = torch.full((SAMPLED, 1), farm.ID[farm.BOS])
    draws = torch.Generator().manual_seed(stream(seed, "samples").getrandbits(63))
    with one_thread():
        ids = model.generate(start, longest, generator=draws)  # (SAMPLED, 1 + longest)
    return [tuple(farm.decode(row)) for row in ids.tolist()]


# %% Part 7 · beyond the lecture ───────────────────────────────────────────────────────────────────
def part7_heads(show):
    """§6 之外 · 哪一层、哪个头 · Beyond §6: which layer, which head carries agreement"""
    seeds = show.seeds(1)
    models = trained(show, ["learned"], seeds)
    every = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    cuts = {f"L{layer + 1}": [(layer, head) for head in range(HEADS)] for layer in range(LAYERS)}
    cuts |= {f"L{layer + 1} H{head + 1}": [(layer, head)] for layer, head in every}
    score, only = {s: {} for s in seeds}, {s: {} for s in seeds}
    for s in seeds:
        for name, heads in cuts.items():
            score[s][name] = without(models["learned", s], heads)
            rest = [one for one in every if one not in heads]
            only[s][name] = without(models["learned", s], rest)
    both = {s: {n: f"{three(score[s][n])} / {three(only[s][n])}" for n in cuts} for s in seeds}
    rows = [[name, *(both[s][name] for s in seeds)] for name in cuts]
    header = [("layer or head", "层或头"), *((f"seed {s}", f"种子 {s}") for s in seeds)]
    title = f"Accuracy at k = {K} with the subject cut off: only here / everywhere but here"
    show.table((title, f"k = {K} 的准确率：只在此处切断主语 / 除此处外全部切断"), header, rows)

    for s in seeds:
        heads = list(cuts)[LAYERS:]
        needed = min(heads, key=score[s].get)
        enough = max(heads, key=only[s].get)
        en = f"Seed {s}: cutting {needed} alone hurts most ({three(score[s][needed])}); "
        zh = f"种子 {s}：单独切断影响最大的是 {needed}（{three(score[s][needed])}）；"
        en += f"{enough} alone, all others cut, gives {three(only[s][enough])}"
        show.note((en, zh + f"只留 {enough}、其余全切断时是 {three(only[s][enough])}"))


def without(model, heads):
    """Accuracy at K with the subject cut off in these heads, pairs (layer, head) from 0."""
    with ExitStack() as cuts:
        for layer, head in heads:
            cuts.enter_context(cut(model, slice(farm.SUBJECT, None), farm.SUBJECT - 1, layer, head))
        return accuracy(model, K)


# %% Part 8 · beyond the lecture ───────────────────────────────────────────────────────────────────
def part8_patching(show):
    """§6 之外 · 激活修补 · Beyond §6: activation patching"""
    seeds = show.seeds(1)
    models = trained(show, ["learned"], seeds)
    flips = {s: flipped_by_patching(models["learned", s]) for s in seeds}  # (layers + 1, T)
    T = farm.query_position(K)
    stages = [("embedding", "嵌入")]
    stages += [(f"after layer {n}", f"第 {n} 层之后") for n in range(1, LAYERS + 1)]
    rows = []
    for s in seeds:
        for share, stage in zip(flips[s], stages):
            rows.append([s, show.say(stage), three(share[farm.SUBJECT - 1]), three(share[T - 1])])
    header = [("seed", "种子"), ("residual stream taken", "替换处"), ("at the subject", "主语位置")]
    header += [("at the query", "查询位置")]
    title = "Verdicts that flip when one vector is taken from the sentence with the other subject"
    chinese = "换上另一句（只有主语的单复数不同）在同一位置的残差流之后，判断翻转的比例"
    show.table((title, chinese), header, rows)
    if any(share.isnan().any() for share in flips.values()):
        english = "—: the model tells no two such sentences apart, so that no verdict can flip."
        show.note((english, "“—”：模型对每一对句子的判断都一样，没有可翻转的。"))

    with show.figure("06_patching", size=(9, 3.2)) as ax:
        image = ax.imshow(flips[0], vmin=0, vmax=1, cmap="Reds", aspect="auto")
        ax.set_xticks(range(T), position_labels(K), rotation=60, ha="right")
        ax.set_yticks(range(LAYERS + 1), [stage for stage, _ in stages])
        for n, position in (flips[0] >= 0.05).nonzero().tolist():
            share = flips[0][n, position].item()
            colour = "white" if share > 0.5 else "black"
            ax.text(position, n, f"{share:.2f}", ha="center", va="center", color=colour, size=8)
        ax.set_title("Where the subject's number sits: share of flipped verdicts (seed 0)")
        ax.figure.colorbar(image)


def flipped_by_patching(model):
    """Swap one residual vector between two sentences that differ in the subject's number only.

    (layers + 1, T): for each layer boundary and position, the share of verdicts that follow the
    other sentence, among the pairs that the model tells apart.
    """
    ids, _ = farm.agreement(K, SENTENCES)  # (B, T)
    other = ids.clone()
    swap = dict(zip(farm.NOUN[0] + farm.NOUN[1], farm.NOUN[1] + farm.NOUN[0]))
    subjects = [swap[farm.VOCABULARY[i]] for i in ids[:, farm.SUBJECT - 1]]
    other[:, farm.SUBJECT - 1] = torch.tensor([farm.ID[word] for word in subjects])
    with one_thread():
        here, there = residual_stream(model, ids), residual_stream(model, other)
        ours, theirs = (says_plural(readout(model, xs[-1])) for xs in (here, there))
        apart = ours != theirs  # (B,)
        share = torch.zeros(LAYERS + 1, ids.shape[1])
        for n in range(LAYERS + 1):
            for position in range(ids.shape[1]):
                x = here[n].clone()  # (B, T, d)
                x[:, position] = there[n][:, position]
                for block in model.blocks[n:]:
                    x = block(x)
                flipped = says_plural(readout(model, x)) == theirs  # (B,)
                share[n, position] = flipped[apart].double().mean()
    return share


def residual_stream(model, ids):
    """x (B, T, d) before the first block and after each."""
    xs = [model.embed(ids)]
    for block in model.blocks:
        xs.append(block(xs[-1]))
    return xs


def readout(model, x):
    """The logits (B, V) of the last token, where the verb is due."""
    return F.linear(model.final_norm(x[:, -1]), model.token_embedding.weight)


# ── for the report page (run_all.py --report): attention to look at, links to cut ────────────────
def attention_view(show, model):
    """What the page lets its reader choose from: k, a sentence, layer and head, a token to cut.

    Attention weights (layers, h, T, T) are in thousandths. Accuracies are over all SENTENCES of
    that k; cuts[p - 1] is what is left once nobody behind token p can look at it, as in part 4.
    """
    view, distances = {}, range(K + 1) if show.quick else ks()
    label = show.say(("attention and cuts", "注意力与切断"))
    for k in show.progress(distances, len(distances), label):
        ids, numbers = farm.agreement(k, SENTENCES)  # (B, T)
        some = ids[:4]  # singular and plural subjects by turns
        with one_thread():
            weights = torch.stack(model.attention(some), dim=1)  # (B, layers, h, T, T)
            verbs = torch.softmax(model(some)[:, -1], dim=1)  # (B, V)
            xs = residual_stream(model, ids)
            cuts = [accuracy_by_cut(model, xs, numbers, p) for p in range(1, ids.shape[1] + 1)]
        one, many = (
            verbs[:, [farm.ID[verb] for verb in farm.VERB[n]]].sum(dim=1)
            for n in (farm.SINGULAR, farm.PLURAL)
        )
        view[k] = {
            "accuracy": accuracy(model, k),
            "cuts": cuts,
            "words": [[farm.VOCABULARY[i] for i in row] for row in some],
            "plural": (numbers[: len(some)] == farm.PLURAL).tolist(),
            "says_plural": [round(p, 3) for p in (many / (one + many)).tolist()],
            "weights": [[head.tolist() for head in w] for w in (1000 * weights).round().int()],
        }
    return {"sentences": SENTENCES, "trained": farm.MOST_PHRASES, "k": view}


def accuracy_by_cut(model, xs, numbers, p):
    """Accuracy with token p out of sight: in every head, and in each head alone.

    A cut in layer n leaves the residual streams xs before it as they are: start there.
    """
    last = xs[0].shape[1]
    behind = slice(p, None) if p < last else last - 1  # the last token: its look at itself

    def accuracy_from(start, layers, heads):
        x = xs[start]  # (B, T, d)
        with cut(model, behind, p - 1, layers, heads):
            for block in model.blocks[start:]:
                x = block(x)
        return (says_plural(readout(model, x)) == numbers).double().mean().item()

    each = [[accuracy_from(n, n, head) for head in range(HEADS)] for n in range(LAYERS)]
    return {"everywhere": accuracy_from(0, slice(None), slice(None)), "heads": each}


# %% All parts ─────────────────────────────────────────────────────────────────────────────────────
PARTS = [
    part1_perplexity, part2_agreement, part3_attention, part4_cut, part5_positions,
    part6_samples, part7_heads, part8_patching,
]  # fmt: skip

if __name__ == "__main__":
    main(__doc__, PARTS)
