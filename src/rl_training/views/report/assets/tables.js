"use strict";
// Text, tables, strips and bars. Data reaches the document as text nodes and attributes only, never as HTML.
const RL = { hidden: new Set(), showSeeds: true, useMean: false, data: null };

RL.el = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "className") node.className = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
};

RL.svg = (tag, attributes = {}, ...children) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
};

RL.number = (value) => {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 100) return value.toLocaleString("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
  return size >= 1 ? value.toFixed(2) : String(Number(value.toPrecision(3)));
};

RL.count = (value) => value.toLocaleString("en-US");

RL.short = (value) => {
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(6))}${unit}`;
  return String(Number(value.toPrecision(6)));
};

RL.groupClass = (group) => `group g${group % 8}`;

RL.cell = (tag, content, isNumber) => {
  const cell = typeof content === "object" ? content : { text: content };
  const inner = cell.group !== undefined
    ? [RL.el("span", { className: `dot ${RL.groupClass(cell.group)}`, "aria-hidden": "true" }), cell.text]
    : cell.state !== undefined ? [RL.el("span", { className: `state ${cell.state}` }, cell.text)] : [cell.text];
  const names = [isNumber ? "number" : "", cell.is_marked ? "marked" : ""].filter(Boolean).join(" ");
  const link = cell.href ? [RL.el("a", { href: cell.href }, inner)] : inner;
  return RL.el(tag, { className: names || null, scope: tag === "th" ? "row" : null }, link);
};

RL.table = (block) => {
  const isNumber = (column) => column >= block.num_text_columns && !(block.ends_in_text && column === block.columns.length - 1);
  const head = block.columns.map((name, column) =>
    RL.el("th", { scope: "col", className: isNumber(column) ? "number" : null }, name));
  const rows = block.rows.map((row) =>
    RL.el("tr", {}, row.map((content, column) => RL.cell(column ? "td" : "th", content, isNumber(column)))));
  const table = RL.el("table", {}, RL.el("caption", {}, RL.el("span", {}, block.caption)),
    RL.el("thead", {}, RL.el("tr", {}, head)), RL.el("tbody", {}, rows));
  const wrapped = RL.el("div", { className: "scroll", tabindex: "0", role: "group", "aria-label": block.caption }, table);
  return block.is_folded
    ? RL.el("details", { className: "data" }, RL.el("summary", {}, block.caption), wrapped) : wrapped;
};

RL.verdict = (block) => RL.el("div", { className: `verdict ${RL.groupClass(block.group)}` },
  RL.el("p", { className: "facts" }, block.facts.join(" · ")),
  RL.el("p", { className: "score" }, RL.el("strong", {}, block.score), " ",
    RL.el("span", { className: "interval" }, block.interval)),
  RL.el("p", { className: `exactness ${block.exactness}` }, block.exactness));

RL.strip = (block) => {
  const figure = RL.el("figure", { className: "strip" }, RL.el("figcaption", {}, RL.el("h3", {}, block.title)));
  const holder = RL.el("div", { className: "drawing" });
  figure.append(holder);
  const draw = () => RL.drawStrip(holder, block.rows.filter((row) => !RL.hidden.has(row.group)));
  new ResizeObserver(draw).observe(holder);
  RL.redraws.add(draw);
  const rows = block.rows.flatMap((row) => row.scores.map(([label, score]) =>
    [{ text: RL.data.groups[row.group].name, group: row.group }, label, String(score)]));
  figure.append(RL.fold("Table", () => RL.table(
    { caption: block.title, columns: ["group", "run", "return"], rows, num_text_columns: 2 })));
  return figure;
};

RL.redraws = new Set();

RL.drawStrip = (holder, rows) => {
  const width = Math.max(240, holder.clientWidth || 600), rowHeight = 64, top = 6, left = 14, right = 14;
  const values = rows.flatMap((row) => [...row.scores.map((score) => score[1]), row.value]);
  let low = Math.min(...values), high = Math.max(...values);
  if (!(high > low)) [low, high] = [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1];
  const x = (value) => left + (value - low) / (high - low) * (width - left - right);
  const height = top + rows.length * rowHeight + 24;
  const svg = RL.svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
    "aria-label": "final scores; the table below has the same numbers" });
  for (const tick of RL.ticks(low, high, Math.max(5, Math.floor(width / 110)))) {
    svg.append(RL.svg("line", { x1: x(tick), x2: x(tick), y1: top, y2: height - 20, class: "grid" }));
    svg.append(RL.svg("text", { x: x(tick), y: height - 4, class: "tick", "text-anchor": "middle" }, RL.short(tick)));
  }
  rows.forEach((row, index) => {
    const y = top + index * rowHeight + 42, group = RL.svg("g", { class: RL.groupClass(row.group) });
    group.append(RL.svg("text", { x: left, y: y - 26, class: "name" }, RL.data.groups[row.group].name));
    if (row.low !== null)
      group.append(RL.svg("rect", { x: x(row.low), y: y - 7, width: Math.max(1, x(row.high) - x(row.low)), height: 14, rx: 3, class: "band" }));
    group.append(RL.svg("line", { x1: x(row.value), x2: x(row.value), y1: y - 10, y2: y + 10, class: "mean" }));
    const offsets = [0, -8, 8, -16, 16], placed = [];
    for (const [label, score, state] of row.scores) {
      // Dots that would cover each other stand above one another.
      const near = placed.filter((other) => Math.abs(other - x(score)) < 7).length;
      placed.push(x(score));
      const dot = RL.svg("circle", { cx: x(score), cy: y + offsets[near % offsets.length], r: 4,
        class: state === "finished" ? "run" : "run unfinished" });
      dot.append(RL.svg("title", {}, `${label}: ${RL.number(score)}`));
      group.append(dot);
    }
    svg.append(group);
  });
  holder.replaceChildren(svg);
};

RL.ticks = (low, high, count) => {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const found = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step) found.push(tick);
  return found;
};

RL.bars = (block) => {
  const key = RL.el("p", { className: "key" }, block.parts.map((part, index) =>
    RL.el("span", {}, RL.el("span", { className: `swatch part${index}`, "aria-hidden": "true" }), part)));
  const rows = block.rows.map((row) => {
    const total = row.values.reduce((sum, value) => sum + value, 0) || 1;
    const bar = RL.el("div", { className: "bar", role: "img",
      "aria-label": row.values.map((value, index) => `${block.parts[index]} ${Math.round(100 * value / total)} %`).join(", ") });
    row.values.forEach((value, index) => {
      const part = RL.el("span", { className: `part${index}`, title: `${block.parts[index]}: ${Math.round(100 * value / total)} %` });
      part.style.width = `${100 * value / total}%`;
      bar.append(part);
    });
    return RL.el("div", { className: "barrow" }, RL.el("span", { className: "label" },
      RL.el("span", { className: `dot ${RL.groupClass(row.group)}`, "aria-hidden": "true" }), row.label), bar);
  });
  return RL.el("figure", { className: "bars" }, RL.el("figcaption", {}, RL.el("h3", {}, block.caption)), key, rows);
};

RL.code = (block) => {
  const shown = RL.el("pre", { tabindex: "0" }, RL.el("code", {}, block.lines.join("\n")));
  const title = RL.el("h3", {}, block.title);
  if (block.lines.length <= 3) return RL.el("div", { className: "code" }, title, shown);
  return RL.el("details", { className: "data" }, RL.el("summary", {}, `${block.title} (${block.lines.length} commands)`), shown);
};

RL.film = (block) => RL.el("figure", { className: "film" },
  RL.el("figcaption", {}, RL.el("h3", {}, RL.el("span", { className: `dot ${RL.groupClass(block.group)}`, "aria-hidden": "true" }),
    RL.el("a", { href: block.link }, block.title)), block.size),
  !block.source ? null : block.media === "image/gif" ? RL.el("img", { src: block.source, alt: block.title })
    : RL.el("video", { src: block.source, controls: true, loop: true, muted: true, playsinline: true, "aria-label": block.title }));

RL.fold = (title, make) => {
  const details = RL.el("details", { className: "data" }, RL.el("summary", {}, title));
  details.addEventListener("toggle", () => {
    while (details.children.length > 1) details.lastChild.remove();
    if (details.open) details.append(make());
  });
  return details;
};

RL.block = (block) => {
  if (block.kind === "plot") return RL.plot(block);
  if (block.kind === "text")
    return RL.el("p", { className: "note" }, block.text.split("`").map((part, index) => (index % 2 ? RL.el("code", {}, part) : part)));
  if (block.kind === "fold")
    return RL.fold(block.title, () => RL.el("div", { className: "blocks" }, block.blocks.map(RL.block)));
  return RL[block.kind](block);
};

// A section folds; on a phone only the first two are open.
RL.isNarrow = () => matchMedia("(max-width: 600px)").matches;
RL.section = (section, index = 0) => RL.el("section", { id: section.id, "aria-labelledby": `${section.id}-title` },
  RL.el("details", { className: "section", open: index < 2 || !RL.isNarrow() },
    RL.el("summary", {}, RL.el("h2", { id: `${section.id}-title` }, section.title)),
    RL.el("div", { className: "blocks" }, section.blocks.map(RL.block))));

RL.openTarget = () => {
  const details = document.getElementById(decodeURIComponent(location.hash.slice(1)))?.querySelector("details.section");
  if (details) details.open = true;
};
