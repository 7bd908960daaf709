// The search of the site: tools/site.py puts this worker in the place of the one that zensical has,
// which wants every word of a question in one section. Here words that every question has are
// dropped, and a section comes first if it has more and rarer ones of the others, in headings above
// all. The messages are zensical's: 0 brings the sections, 2 asks for a page of hits, 3 answers.
"use strict";

const COMMON = new Set(
  ("a about an and any are as at be but by can could did do does for from get had has have how i " +
    "if in into is it its me my no not now of on one or our should so than that the their them " +
    "then there these they this to was we what when where which who why will with without would you your")
    .split(" "),
);
const WEIGHTS = { title: 6, path: 1, text: 1 };
const OWN = "docs/"; // what users read comes before what contributors read
const PAGE = 10;
const EXCERPT = 320;

let items = [];
const index = new Map(); // of each stem, its weight in each section that has it

function stem(word) {
  const plain = word.normalize("NFKD").toLowerCase();
  return plain.length > 3 ? plain.replace(/(?:ies|ing|ed|es|s|e|y)$/, "") : plain;
}

function* wordsOf(html) {
  for (const found of html.matchAll(/<[^>]*>|[\p{L}\p{N}]+/gu)) {
    const [text] = found;
    if (text[0] !== "<") yield { text, stem: stem(text), start: found.index, end: found.index + text.length };
  }
}

function fill(sections) {
  items = sections;
  sections.forEach((section, number) => {
    const { title, text, path } = section;
    const length = 1 + text.length / 500; // what a long section has often means less
    for (const [field, html] of Object.entries({ title, text, path: (path ?? []).join(" ") })) {
      for (const { stem } of wordsOf(html)) {
        const weights = index.get(stem) ?? index.set(stem, new Map()).get(stem);
        weights.set(number, (weights.get(number) ?? 0) + WEIGHTS[field] / length);
      }
    }
  });
}

function isNear(one, other) {
  // At most one letter is another, lacks or is too much.
  if (Math.abs(one.length - other.length) > 1) return false;
  let same = 0;
  while (same < one.length && one[same] === other[same]) same += 1;
  const rests = [[1, 1], [1, 0], [0, 1]];
  return rests.some(([a, b]) => one.slice(same + a) === other.slice(same + b));
}

function termsOf(question) {
  // Each stem of the question, with the stems of the index that answer it and how well.
  const asked = [...wordsOf(question)];
  const telling = asked.filter(({ text }) => !COMMON.has(text.toLowerCase()));
  const stems = new Set((telling.length ? telling : asked).map(({ stem }) => stem));
  return [...stems].map((wanted) => {
    const alike = new Map();
    for (const stem of index.keys()) {
      if (stem === wanted) alike.set(stem, 1);
      else if (wanted.length > 2 && stem.startsWith(wanted)) alike.set(stem, 0.3);
    }
    if (!alike.size && wanted.length > 3) {
      for (const stem of index.keys()) if (isNear(stem, wanted)) alike.set(stem, 0.3);
    }
    return alike;
  });
}

function hits(question) {
  const terms = termsOf(question);
  const scores = new Map();
  for (const alike of terms) {
    const best = new Map();
    for (const [stem, likeness] of alike) {
      for (const [number, weight] of index.get(stem)) {
        const score = (likeness * weight) / (weight + 2);
        best.set(number, Math.max(score, best.get(number) ?? 0));
      }
    }
    const rarity = Math.log(1 + items.length / (1 + best.size));
    for (const [number, score] of best) {
      const { sum = 0, count = 0 } = scores.get(number) ?? {};
      scores.set(number, { sum: sum + rarity * score, count: count + 1 });
    }
  }
  const share = (number) => (items[number].location.startsWith(OWN) ? 1 : 0.5) / terms.length;
  const worth = ([number, { sum, count }]) => sum * count * share(number);
  const found = [...scores].sort((a, b) => worth(b) - worth(a)).map(([number]) => number);
  return { found, stems: new Set(terms.flatMap((alike) => [...alike.keys()])) };
}

function marked(html, stems) {
  // The words to mark, from the place on that has the most of them: the excerpt begins there.
  const ranges = [...wordsOf(html)].filter(({ stem }) => stems.has(stem));
  const count = ({ start }) =>
    new Set(ranges.filter((each) => each.start >= start && each.start < start + EXCERPT).map(({ stem }) => stem)).size;
  const most = ranges.reduce((best, each) => (count(each) > count(best) ? each : best), ranges[0]);
  return ranges
    .filter(({ start }) => start >= most.start)
    .map(({ start, end }) => ({ start, end, value: end - start }));
}

function answer({ input, page }) {
  const { found, stems } = hits(typeof input === "string" ? input : "");
  const from = page?.from ?? 0;
  const shown = found.slice(from, from + PAGE).map((id) => ({
    id,
    matches: ["title", "text"].map((field) => ({
      field,
      value: { highlight: { ranges: marked(items[id][field], stems) } },
    })),
  }));
  const to = (start) => ({ from: start, size: PAGE });
  const pagination = {
    total: found.length,
    prev: from > 0 ? to(from - PAGE) : undefined,
    next: from + PAGE < found.length ? to(from + PAGE) : undefined,
  };
  return { items: shown, aggregations: [], pagination, query: {} };
}

self.onmessage = ({ data: { type, data } }) => {
  if (type === 0) {
    fill(data.items);
    self.postMessage({ type: 1 });
  } else if (type === 2) {
    self.postMessage({ type: 3, data: answer(data) });
  }
};
