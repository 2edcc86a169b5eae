"use strict";
// The page without this script shows everything in one language; this adds the choices and views.

const root = document.documentElement;
const two = (en, zh) => {
  // A text in both languages, of which the style sheet shows one.
  const span = document.createElement("span");
  for (const [lang, text] of [["en", en], ["zh", zh]]) {
    const part = document.createElement("span");
    part.lang = lang;
    part.textContent = text;
    span.append(part);
  }
  return span;
};
const choice = (name) => document.querySelector(`input[name="${name}"]:checked`).value;
const remember = {
  // Storage may be forbidden, for example for a file opened from disk: then nothing is kept.
  get(name) { try { return localStorage.getItem("companion-" + name); } catch { return null; } },
  set(name, value) { try { localStorage.setItem("companion-" + name, value); } catch { } },
};

// ── language, colours, filter ──────────────────────────────────────────────────────────────────
const system = matchMedia("(prefers-color-scheme: dark)");
function colours() {
  const theme = choice("theme");
  root.classList.toggle("dark", theme === "dark" || (theme === "auto" && system.matches));
}
function filter() {
  const wanted = choice("filter"), all = wanted === "all";
  for (const row of document.querySelectorAll(".claim")) {
    row.hidden = !all && !row.classList.contains(wanted);
  }
  const some = (within) => within.querySelector(".claim:not([hidden])") !== null;
  for (const part of document.querySelectorAll(".part")) part.hidden = !all;
  for (const table of document.querySelectorAll(".claims")) table.hidden = !some(table);
  for (const place of document.querySelectorAll(".lecture, .lecture section")) {
    place.hidden = !all && !some(place);
  }
  for (const link of document.querySelectorAll("nav li a")) {
    link.parentElement.hidden = document.getElementById(link.hash.slice(1)).hidden;
  }
  document.querySelector(".none").hidden = all || some(document);
}
const actions = { lang: () => { root.lang = choice("lang"); }, theme: colours, filter };
for (const [name, act] of Object.entries(actions)) {
  const kept = name === "filter" ? null : remember.get(name);
  const radios = [...document.querySelectorAll(`input[name="${name}"]`)];
  const again = radios.find((radio) => radio.value === kept);
  if (again) again.checked = true;
  for (const radio of radios) {
    radio.addEventListener("change", () => { remember.set(name, radio.value); act(); });
  }
  act();
}
system.addEventListener("change", colours);
if (innerWidth < 62 * 16) document.querySelector("nav details").open = false;
addEventListener("hashchange", () => {
  // A link to a number that the filter hides shows everything again.
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target || !target.closest("[hidden]")) return;
  document.querySelector('input[name="filter"][value="all"]').checked = true;
  filter();
  target.scrollIntoView();
});

// ── attention: see where a token looks, cut it off ─────────────────────────────────────────────
function attention(view) {
  const data = JSON.parse(view.querySelector("script").textContent);
  const select = Object.fromEntries(
    [...view.querySelectorAll("[data-choose]")].map((one) => [one.dataset.choose, one]));
  const [from, to] = [view.querySelector(".from"), view.querySelector(".to")];
  const [svg, button] = [view.querySelector(".columns svg"), view.querySelector(".cut")];
  const percent = (x) => (x / 1000).toFixed(3);
  let looks = 0, target = 0, chosen = false;  // chosen: the reader picked the target

  const fill = (box, texts) => {
    const before = box.selectedIndex;
    box.replaceChildren(...texts.map(([value, text]) => new Option(text, value)));
    box.selectedIndex = before >= 0 && before < texts.length ? before : 0;
  };
  const now = () => {
    const k = data.k[select.k.value], sentence = +select.sentence.value;
    const layer = +select.layer.value, head = +select.head.value;
    return { k, sentence, layer, head, words: k.words[sentence], A: k.weights[sentence][layer][head] };
  };
  function sentences() {
    const k = data.k[select.k.value];
    fill(select.sentence, k.words.map((words, n) => [n, words.slice(1).join(" ") + " …"]));
    looks = k.words[0].length - 1;
    chosen = false;
  }
  function words() {
    const { words } = now();
    const column = (place, whole) => place.replaceChildren(...words.map((word, n) => {
      const [one, number, text] = ["button", "i", "span"].map((tag) => document.createElement(tag));
      one.type = "button";
      number.textContent = n + 1;
      text.textContent = word;
      one.append(...(whole ? [number, text] : [text, number]));
      if (whole) one.append(document.createElement("b"), document.createElement("em"));
      if (whole) one.querySelector("b").append(document.createElement("u"));
      return one;
    }));
    column(from, false);
    column(to, true);
    svg.setAttribute("viewBox", `0 0 100 ${words.length}`);
  }
  function draw() {
    const { k, sentence, layer, head, words, A } = now();
    const row = A[looks];
    const strongest = row.indexOf(Math.max(...row));
    if (!chosen || target > looks) target = strongest;
    [...from.children].forEach((one, n) => {
      one.setAttribute("aria-pressed", n === looks);
      one.tabIndex = n === looks ? 0 : -1;
    });
    [...to.children].forEach((one, n) => {
      one.setAttribute("aria-pressed", n === target);
      one.tabIndex = n === target ? 0 : -1;
      one.disabled = n > looks;
      one.className = n > looks ? "unseen" : "";
      one.querySelector("u").style.width = `${row[n] / 10}%`;
      one.querySelector("em").textContent = n > looks ? "" : percent(row[n]);
    });
    const cut = button.getAttribute("aria-pressed") === "true";
    svg.replaceChildren(...row.slice(0, looks + 1).map((weight, n) => {
      const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
      const ends = { x1: 0, y1: looks + 0.5, x2: 100, y2: n + 0.5 };
      for (const [name, value] of Object.entries(ends)) line.setAttribute(name, value);
      line.style.strokeOpacity = weight / 1000;
      line.style.strokeWidth = `${1 + weight / 250}px`;
      if (cut && n === target) line.classList.add("gone");
      return line;
    }));
    const plural = k.says_plural[sentence], right = (plural > 0.5) === k.plural[sentence];
    view.querySelector("[data-answer]").replaceChildren(two(
      `The verb that follows is plural with probability ${plural.toFixed(3)}: ` +
      `${right ? "right" : "wrong"}, the subject is ${k.plural[sentence] ? "plural" : "singular"}.`,
      `接下来的动词是复数的概率为 ${plural.toFixed(3)}：` +
      `${right ? "正确" : "错误"}，主语是${k.plural[sentence] ? "复数" : "单数"}。`));
    view.querySelector("[data-target]").textContent = `${words[target]} (${target + 1})`;
    const result = view.querySelector(".result");
    if (!cut) return result.replaceChildren();
    const cuts = k.cuts[target], place = `${layer + 1}`, which = `${head + 1}`;
    const rows = [
      [two("nothing is cut", "不切断"), k.accuracy],
      [two(`cut in layer ${place}, head ${which}`, `只在第 ${place} 层第 ${which} 个头切断`), cuts.heads[layer][head]],
      [two("cut in every head of every layer", "在所有层、所有头里切断"), cuts.everywhere],
    ];
    const table = document.createElement("table");
    for (const [label, value] of rows) {
      const line = table.insertRow();
      line.insertCell().append(label);
      line.insertCell().textContent = value.toFixed(3);
    }
    const last = target === words.length - 1;
    const text = two(
      `Accuracy over ${data.sentences} sentences with k = ${select.k.value}, once ` +
      (last ? "the last token cannot look at itself" : `nobody behind token ${target + 1} can look at it`) + ":",
      `k = ${select.k.value} 的 ${data.sentences} 句上的准确率，` +
      (last ? "最后一个 token 不能看自己" : `第 ${target + 1} 个 token 之后的位置都不能看它`) + "：");
    return result.replaceChildren(text, table);
  }
  const at = (event, column) => [...column.children].indexOf(event.target.closest("button"));
  const look = (event) => {
    const n = at(event, from);
    if (n >= 0 && n !== looks) { looks = n; draw(); }
  };
  for (const name of ["mouseover", "focusin", "click"]) from.addEventListener(name, look);
  to.addEventListener("click", (event) => {
    const n = at(event, to);
    if (n >= 0) { [target, chosen] = [n, true]; draw(); }
  });
  for (const column of [from, to]) {
    column.addEventListener("keydown", (event) => {
      const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
      const next = column.children[at(event, column) + step];
      if (!step || !next || next.disabled) return;
      event.preventDefault();
      if (column === to) next.click();
      next.focus();
    });
  }
  button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") !== "true");
    draw();
  });
  fill(select.k, Object.keys(data.k).map((k) => [k, k]));
  const first = Object.values(data.k)[0].weights[0];
  fill(select.layer, first.map((_, n) => [n, n + 1]));
  fill(select.head, first[0].map((_, n) => [n, n + 1]));
  if (data.k[data.trained]) select.k.value = data.trained;
  select.k.addEventListener("change", () => { sentences(); words(); draw(); });
  select.sentence.addEventListener("change", () => { words(); draw(); });
  for (const name of ["layer", "head"]) select[name].addEventListener("change", () => { chosen = false; draw(); });
  sentences();
  words();
  draw();
}

// ── softmax over d_k, unscaled and scaled ──────────────────────────────────────────────────────
function softmax(view) {
  const data = JSON.parse(view.querySelector("script").textContent);
  const slider = view.querySelector("input"), output = view.querySelector("output");
  slider.max = data.d_k.length - 1;
  function draw() {
    const n = +slider.value, d_k = data.d_k[n];
    output.textContent = d_k;
    slider.setAttribute("aria-valuetext", d_k);
    view.querySelectorAll("[data-scale]").forEach((place, which) => {
      const scores = data.scores[n].map((s) => (which ? s / Math.sqrt(d_k) : s));
      const largest = Math.max(...scores);
      const powers = scores.map((s) => Math.exp(s - largest));
      const sum = powers.reduce((a, b) => a + b);
      const weights = powers.map((p) => p / sum), top = Math.max(...weights);
      const entropy = weights.reduce((h, a) => h - (a > 0 ? a * Math.log(a) : 0), 0);
      place.querySelector(".bars").replaceChildren(...weights.map((a) => {
        const bar = document.createElement("i");
        bar.style.height = `${100 * a}%`;
        if (a === top) bar.className = "top";
        return bar;
      }));
      const [mean_largest, mean_entropy] = data.means[n].slice(2 * which);
      place.querySelector(".bars").setAttribute("aria-label", top.toFixed(3));
      for (const [name, here, mean] of [["largest", top, mean_largest], ["entropy", entropy, mean_entropy]]) {
        const small = document.createElement("small");
        small.append(two("mean of many queries ", "许多查询的平均 "), mean.toFixed(3));
        place.querySelector(`[data-${name}]`).replaceChildren(here.toFixed(3), small);
      }
    });
  }
  slider.addEventListener("input", draw);
  slider.value = Math.floor(slider.max / 2);
  draw();
}

for (const view of document.querySelectorAll("[data-view]")) {
  ({ attention, softmax })[view.dataset.view](view);
}
