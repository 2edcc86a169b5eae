"""The one way out of a part: claims, tables, figures, notes. `Recorder` keeps, `Show` prints too.

Any text may be a pair (English, Chinese); --lang chooses.
"""

import base64
import io
import logging
import os
import re
import statistics
import sys
import tempfile
import unicodedata
from companion.ledger import NO_YES, judge, load_claims, plain, written
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

COLOURS = {"ok": "green", "differs": "bold red", "erratum": "yellow"}
PLAINER = {
    "§": "sec. ", "·": "*", "×": "x", "√": "sqrt ", "→": "->", "←": "<-", "↦": "->", "≈": "~",
    "≤": "<=", "≥": ">=", "≠": "!=", "≪": "<<", "±": "+-", "−": "-", "–": "-", "—": "--",
    "…": "...", "∞": "inf", "∂": "d", "∇": "grad ", "‖": "||", "∝": "~", "⊙": "*", "⋅": "*",
    "∈": "in", "∘": "*", "∑": "sum", "∏": "prod", "⊤": "T", "°": " deg", "″": '"', "′": "'",
    "½": "1/2", "¼": "1/4", "⅔": "2/3", "“": '"', "”": '"', "‘": "'", "’": "'", "⟨": "<",
    "⟩": ">", "✓": "yes", "✗": "no", "─": "-", "│": "|", "█": "#", "▁": "_", "•": "-",
    "⏱": "timing",
}  # fmt: skip

LARGEST_SVG = 150_000  # characters; a figure that needs more is a PNG on the report page


def require(holds, message):
    """Refuse a constant that makes no sense; the message names it, its value, what is allowed."""
    if not holds:
        raise ValueError(message)


class Said(str):
    """A text in the reader's language; .both is (English, Chinese), for the report page."""


class Recorder:
    """What a part hands over, kept: .claims {id: value}, .tables {title: (header, rows)}, …

    jobs: processes for runs over seeds. quick: the shortest honest training, not judged.
    options: the whole command line, for a script with flags of its own.
    page: keep pictures and the data of views for a report page too. It shows .shown, in order:
    {"title": …}, {"table": …, "header": …, "rows": …}, {"note": …}, {"figure": …}, {"view": …}.
    """

    def __init__(
        self, seeds=None, jobs=1, quick=False, lang="en", edited=(), options=None, page=False
    ):
        self.n_seeds, self.jobs, self.quick, self.lang = seeds, jobs, quick, lang
        self.edited, self.options, self.page = list(edited), options, page
        self.claims, self.verdicts, self.seeds_of = {}, {}, {}
        self.tables, self.figures, self.notes, self.shown = {}, [], [], []

    def seeds(self, default):
        """The seeds to run: --seeds N gives 0 … N-1, otherwise 0 … default-1."""
        return range(self.n_seeds or default)

    def claim(self, id, value, seeds=None):
        """Hold a measured value against the ledger.

        seeds: the same quantity seed by seed, where it is random; shown as min / median / max
        and how many of them agree by themselves.
        """
        claim = load_claims().get(id)
        if claim is None:
            raise ValueError(f"id {id!r} is not in the ledger, companion/claims.toml")
        if id in self.claims:
            raise ValueError(f"id {id!r} is claimed twice")
        value = plain(value)
        verdict = judge(claim, value)
        if verdict == "differs" and self.edited:
            verdict = "edited"
        if self.quick and claim.random == "trained":
            verdict = "quick"
        self.claims[id], self.verdicts[id] = value, verdict
        if seeds is not None:
            self.seeds_of[id] = plain(list(seeds))

    def table(self, title, header, rows):
        """Rows of texts and numbers under a header."""
        rows = [list(row) for row in rows]
        require(
            all(len(r) == len(header) for r in rows), f"{title}: a row and header {header} differ"
        )
        title, header = self.say(title), list(map(self.say, header))
        self.tables[title] = (header, rows)
        self.shown.append({"table": title, "header": header, "rows": rows})

    def note(self, text):
        """A sentence."""
        self.notes.append(self.say(text))
        self.shown.append({"note": self.notes[-1]})

    def view(self, name, make):
        """Something to play with on a report page; make() computes its data, only for a page."""
        if self.page:
            self.shown.append({"view": name, "data": make()})

    @contextmanager
    def figure(self, name, rows=1, columns=1, size=None):
        """`with show.figure("name") as ax:` draws one; more axes come as a list, row by row."""
        self.figures.append(name)
        yield _NoAxes() if rows * columns == 1 else [_NoAxes() for _ in range(rows * columns)]

    def progress(self, items, total, label):
        """Go through the items, with a bar and the time left where somebody watches."""
        yield from items

    def say(self, text):
        """The text in the reader's language; of two lists, text by text."""
        if isinstance(text, str):
            return text
        if not isinstance(text[0], str):
            return [self.say(pair) for pair in zip(*text)]
        said = Said(text[self.lang == "zh"])
        said.both = tuple(map(str, text))
        return said


class Show(Recorder):
    """A Recorder that also prints, and saves figures (directory None: no figures)."""

    def __init__(self, directory=None, **settings):
        super().__init__(**settings)
        self.directory = directory
        self.out = Printer()
        if self.lang == "zh" and not self.out.can("中文"):
            self.lang = "en"
        self.in_part = []

    def title(self, text):
        self.shown.append({"title": text})
        self.out.heading(text)

    def claim(self, id, value, seeds=None):
        super().claim(id, value, seeds)
        self.in_part.append(id)

    def table(self, title, header, rows):
        super().table(title, header, rows)
        self.out.print("\n" + self.say(title))
        self.out.table(*self.tables[self.say(title)], self.lang)

    def note(self, text):
        super().note(text)
        self.out.print("\n" + self.say(text))

    def end_part(self):
        """Print the part's claims, then why the lecture's value is wrong or outside ours."""
        if not self.in_part:
            return
        words = ("number", "quantity", "measured here", "lecture", "allowed", "verdict")
        if self.lang == "zh":
            words = ("编号", "量", "本机测得", "讲义", "允许范围", "判定")
        claims = [load_claims()[id] for id in self.in_part]
        rows = []
        for c in claims:
            value = written(c, self.claims[c.id], self.lang) + self._spread(c)
            label = c.zh if self.lang == "zh" else c.en
            lecture = (self.lang == "zh" and c.lecture_zh) or c.lecture
            rows.append([c.id, label, value, lecture, c.bounds, self.verdicts[c.id]])
        self.out.print("")
        self.out.table(words, rows)
        for c in claims:
            why = c.why_zh if self.lang == "zh" else c.why_en
            if self.verdicts[c.id] == "erratum":
                self.out.print(f"{c.id} erratum: {why}")
            elif c.lecture_is_outside:
                outside = self.say(("the lecture's value lies outside", "讲义的值在允许范围之外"))
                self.out.print(f"{c.id}, {outside}: {why}")
            elif self.verdicts[c.id] == "ok" and c.is_far(self.claims[c.id]):
                far = self.say(("far from the lecture's value", "与讲义的值相差较大"))
                self.out.print(f"{c.id}, {far}: {why}")
        self.in_part = []

    def _spread(self, claim):
        """ " (min / median / max; 9 of 10 seeds)" where a claim was measured on several seeds."""
        values = self.seeds_of.get(claim.id, [])
        if len(values) < 2:
            return ""
        agree = sum(judge(claim, value) in ("ok", "erratum") for value in values)
        of = f"{agree} / {len(values)} " + self.say(("seeds", "个种子"))
        if any(isinstance(v, bool | list) for v in values):
            return f" ({of})"
        three = min(values), statistics.median(values), max(values)
        return f" ({' / '.join(written(claim, float(v)) for v in three)}; {of})"

    @contextmanager
    def figure(self, name, rows=1, columns=1, size=None):
        if self.directory is None:
            with super().figure(name, rows, columns) as axes:
                yield axes
            return
        logging.getLogger("matplotlib").setLevel(logging.ERROR)  # not: where its cache now is
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=size or (6.4 * columns, 4.2 * rows), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
        yield axes[0] if len(axes) == 1 else axes
        self.figures.append(name)
        if self.page:
            self.shown.append({"figure": name} | for_page(figure))
        path = Path(self.directory) / f"{name}.png"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with write_beside(path) as file:
                figure.savefig(file, format="png", dpi=110)
            here = Path.cwd()
            said = f"figure: {path.relative_to(here) if path.is_relative_to(here) else path}"
        except OSError as error:
            said = f"figure {name} not saved: {error.strerror or error}: {path}"
        self.out.print("\n" + said)
        if self.out.notebook:
            from IPython.display import Image, display

            picture = io.BytesIO()
            figure.savefig(picture, format="png", dpi=110)
            display(Image(picture.getvalue()))

    def progress(self, items, total, label):
        watched = sys.stderr.isatty()
        columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        console = Console(stderr=True)
        with Progress(*columns, console=console, transient=True, disable=not watched) as bar:
            yield from bar.track(items, total=total, description=self.out.plainer(label))


class Printer:
    """Plain lines and tables on stdout, whatever it is: terminal, pipe, GBK, ASCII, closed."""

    def __init__(self):
        self.console = _Console(highlight=False, markup=False, emoji=False)
        self.notebook = self.console.is_jupyter  # it shows what is printed as HTML
        self.wraps = sys.stdout.isatty() or self.notebook
        if not self.wraps:
            self.console.width = 100_000  # a pipe has no width to wrap at

    def can(self, text):
        try:
            text.encode(self.console.encoding)
        except UnicodeEncodeError:
            return False
        return True

    def plainer(self, text):
        """The text in characters that stdout can take: √ → sqrt, × → x."""
        if self.can(text):
            return text
        text = text.replace(" · ", " - ")  # between words; within a formula it is a product
        return "".join(c if self.can(c) else self._plainer_symbol(c) for c in text)

    def _plainer_symbol(self, c):
        name = unicodedata.name(c, "")
        if name.startswith("GREEK"):
            return name.split()[-1].lower()  # σ → sigma
        plain = PLAINER.get(c) or unicodedata.normalize("NFKD", c)  # ₂ → 2
        plain = "".join(part for part in plain if not unicodedata.combining(part))
        return plain if self.can(plain) else c.encode("ascii", "backslashreplace").decode()

    def heading(self, text):
        """A title of segments joined by " · "; those stdout has no letters for are left out."""
        kept = [one for one in text.split(" · ") if self.can(one) or not has_chinese(one)]
        text = " · ".join(kept)
        line = Text(self.plainer(text), style="bold")
        rule = self.plainer("─") * min(line.cell_len, self.console.width)
        self.console.print(Text("\n"), line, Text("\n" + rule), sep="")

    def print(self, text):
        self.console.print(Text(self.plainer(text)), soft_wrap=not self.wraps)

    def table(self, header, rows, lang="en"):
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for n, head in enumerate(header):
            numeric = all(_is_number(row[n]) for row in rows)
            side = "right" if numeric else "left"
            table.add_column(Text(self.plainer(head), overflow="fold"), justify=side)
        for row in rows:
            cells = [self.plainer(_cell(one, lang)) for one in row]
            table.add_row(*(Text(c, style=COLOURS.get(c, ""), overflow="fold") for c in cells))
        self.console.print(table)


def for_page(figure):
    """A matplotlib figure for the report page: its text, and an image as a data: address.

    SVG where it stays small, otherwise the PNG in 256 colours; both the same in every run.
    """
    import matplotlib
    from PIL import Image

    svg, png, small = io.StringIO(), io.BytesIO(), io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "companion"}):
        figure.savefig(svg, format="svg", metadata={"Date": None})
    text = svg.getvalue().partition("<svg")[2]
    text = re.sub("<metadata>.*</metadata>", "", "<svg" + text, flags=re.S)
    data = "data:image/svg+xml," + quote(re.sub(r"\s+", " ", text), safe=" /:=;,()+<>")
    if len(data) > LARGEST_SVG:
        figure.savefig(png, format="png", dpi=144)
        Image.open(png).convert("RGB").quantize(256).save(small, format="png", optimize=True)
        data = "data:image/png;base64," + base64.b64encode(small.getvalue()).decode()
    titles = [text for ax in figure.axes if (text := ax.get_title())]
    width, height = (round(100 * inches) for inches in figure.get_size_inches())
    return {"image": data, "alt": "; ".join(titles), "width": width, "height": height}


def has_chinese(text):
    return any("\u3000" <= c <= "\u9fff" or "\uff00" <= c <= "\uffef" for c in text)


class _Console(Console):
    def on_broken_pipe(self):
        """The reader left (| head): say no more, but let --json and figures be finished."""
        self.quiet = True
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - the interpreter flushes it at exit


class _NoAxes:
    """Takes every drawing call and draws nothing."""

    def __getattr__(self, name):
        return self

    def __call__(self, *args, **kwargs):
        return self


def _is_number(cell):
    """Is this a number, or the sign of a missing one?"""
    if cell in ("", "—"):
        return True
    try:
        return float(cell) is not None
    except (TypeError, ValueError):
        return False


def _cell(value, lang="en"):
    value = plain(value)
    if isinstance(value, bool):
        return NO_YES[lang][value]
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


@contextmanager
def write_beside(path, mode="wb"):
    """Write next to the file and rename: a reader finds the old one or the whole new one."""
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():  # a device or pipe is written as it is
        with open(path, mode) as file:
            yield file
        return
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, mode) as file:
            yield file
        os.chmod(beside, 0o644)
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise
