"use strict";
// Learning curves with uPlot: every run thin, the summary of a group thick, its range or interval as a band.
RL.plots = new Set();
RL.HEIGHT = 260;

RL.css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
RL.color = (group, alpha) => {
  const color = RL.css(`--g${group % 8}`);
  return alpha === undefined ? color : color + Math.round(alpha * 255).toString(16).padStart(2, "0");
};

// The curve of a run: points with a value only.
RL.curve = (run, table, metric) => {
  const source = run[table], values = source && source.y[metric];
  if (!values) return null;
  const x = [], y = [];
  values.forEach((value, index) => {
    if (value !== null) {
      x.push(source.x[index]);
      y.push(value);
    }
  });
  return x.length ? { run, x, y } : null;
};

// Curves of a plot by group.
RL.groupCurves = (block, table, metric) => RL.data.groups.map((group, index) => ({
  index,
  name: group.name,
  curves: group.facet === block.facet
    ? RL.data.runs.filter((run) => run.group === index).map((run) => RL.curve(run, table, metric)).filter(Boolean) : [],
})).filter((group) => group.curves.length);

// Value of a curve at a step, linear between its points; null outside.
RL.valueAt = (curve, step) => {
  const { x, y } = curve, last = x.length - 1;
  if (step < x[0] || step > x[last]) return null;
  let low = 0, high = last;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (x[middle] <= step) low = middle;
    else high = middle;
  }
  if (x[high] === step) return y[high];
  if (x[low] === step || high === low) return y[low];
  return y[low] + (y[high] - y[low]) * (step - x[low]) / (x[high] - x[low]);
};

// Resamples of `count` sorted runs, as weights of an interquartile mean; as in studies/statistics/summaries.py.
RL.resamples = new Map();
RL.resampleWeights = (count) => {
  if (RL.resamples.has(count)) return RL.resamples.get(count);
  const { resamples, multiplier, modulus } = RL.data.bootstrap, cut = Math.floor(count / 4), rows = [];
  let state = 1;
  for (let number = 0; number < resamples; number += 1) {
    const drawn = [], weights = new Float64Array(count);
    for (let run = 0; run < count; run += 1) {
      state = state * multiplier % modulus;
      drawn.push(Math.floor(state * count / modulus));
    }
    for (const rank of drawn.sort((a, b) => a - b).slice(cut, count - cut)) weights[rank] += 1 / (count - 2 * cut);
    rows.push(weights);
  }
  RL.resamples.set(count, rows);
  return rows;
};

// What is shown of several values: [summary, low, high].
RL.summary = (values) => {
  const count = values.length, sorted = Float64Array.from(values).sort();
  if (count < RL.data.bootstrap.fewest) {
    const last = count - 1;
    return [(sorted[Math.floor(last / 2)] + sorted[Math.ceil(last / 2)]) / 2, sorted[0], sorted[last]];
  }
  if (RL.useMean) {
    const mean = values.reduce((sum, value) => sum + value, 0) / count;
    const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (count - 1);
    const half = RL.data.quantiles[count] * Math.sqrt(variance / count);
    return [mean, mean - half, mean + half];
  }
  const cut = Math.floor(count / 4), { rank } = RL.data.bootstrap;
  let middle = 0;
  for (let run = cut; run < count - cut; run += 1) middle += sorted[run] / (count - 2 * cut);
  const means = Float64Array.from(RL.resampleWeights(count), (weights) => {
    let sum = 0;
    for (let run = 0; run < count; run += 1) sum += weights[run] * sorted[run];
    return sum;
  }).sort();
  return [middle, means[rank - 1], means[means.length - rank]];
};

// The summary over the runs of a group, where every run has a value.
RL.summaryCurve = (curves) => {
  const first = Math.max(...curves.map((curve) => curve.x[0]));
  const last = Math.min(...curves.map((curve) => curve.x[curve.x.length - 1]));
  const x = [...new Set(curves.flatMap((curve) => curve.x))].filter((step) => step >= first && step <= last);
  x.sort((a, b) => a - b);
  const y = [], low = [], high = [];
  for (const step of x) {
    const [value, least, most] = RL.summary(curves.map((curve) => RL.valueAt(curve, step)));
    y.push(value);
    low.push(least);
    high.push(most);
  }
  return { x, y, low, high };
};

RL.summaryWord = (count) => (count < RL.data.bootstrap.fewest ? "median" : RL.useMean ? "mean" : "interquartile mean");

// Data and series of uPlot: all curves on the union of their steps.
RL.seriesOf = (block) => {
  const groups = RL.groupCurves(block, block.table, block.metric).filter((group) => !RL.hidden.has(group.index));
  const lines = [], bands = [];
  const add = (curve, y, options) => {
    lines.push({ x: curve.x, y, options });
    return lines.length;
  };
  for (const group of groups) {
    const isSingle = group.curves.length === 1;
    group.main = isSingle ? group.curves[0] : RL.summaryCurve(group.curves);
    const dash = group.index >= 8 ? [8, 3] : undefined;
    if (!isSingle && group.main.x.length) {
      const hidden = { width: 0, stroke: "transparent", points: { show: false } };
      const high = add(group.main, group.main.high, hidden), low = add(group.main, group.main.low, hidden);
      bands.push({ series: [high, low], fill: RL.color(group.index, 0.16) });
    }
    if (isSingle || RL.showSeeds || !group.main.x.length)
      for (const curve of group.curves)
        add(curve, curve.y, { width: isSingle ? 2 : 1, dash, stroke: RL.color(group.index, isSingle ? undefined : 0.5),
          points: { show: curve.x.length <= (isSingle ? 30 : 1), size: 5, fill: RL.color(group.index) } });
    if (!isSingle)
      add(group.main, group.main.y, { width: 2.25, dash, stroke: RL.color(group.index), points: { show: group.main.x.length === 1, size: 9, fill: RL.color(group.index) } });
  }
  if (block.reference)
    for (const group of RL.groupCurves(block, "evaluations", block.reference).filter((g) => !RL.hidden.has(g.index))) {
      const main = group.curves.length === 1 ? group.curves[0] : RL.summaryCurve(group.curves);
      const shown = groups.find((other) => other.index === group.index);
      if (shown) shown.reference = main;
      add(main, main.y, { width: 2, dash: [5, 5], stroke: RL.color(group.index), points: { show: false } });
    }
  const steps = groups.flatMap((group) => group.curves.flatMap((curve) => [curve.x[0], curve.x[curve.x.length - 1]]));
  if (steps.length)
    for (const [value] of block.levels)
      add({ x: [...new Set([Math.min(...steps), Math.max(...steps)])] }, [value, value],
        { width: 1.5, dash: [2, 4], stroke: RL.css("--muted"), points: { show: false } });
  return { groups, lines, bands };
};

RL.aligned = (lines) => {
  const steps = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const place = new Map(steps.map((step, index) => [step, index]));
  return [steps, ...lines.map((line) => {
    const column = new Array(steps.length).fill(null);
    line.x.forEach((step, index) => { column[place.get(step)] = line.y[index]; });
    return column;
  })];
};

RL.axes = (unit) => {
  const shared = { stroke: RL.css("--muted"), grid: { stroke: RL.css("--line"), width: 1 },
    ticks: { show: false }, font: "12px system-ui, sans-serif" };
  const short = (plot, values) => values.map((value) => (value === null ? "" : RL.short(value)));
  return [
    { ...shared, values: short, size: 26, space: 55, grid: { show: false }, label: unit, labelSize: 18, labelFont: shared.font, labelGap: 0 },
    { ...shared, values: short, space: 26, gap: 6,
      size: (plot, values) => 16 + 7 * Math.max(3, ...(values || []).map((value) => String(value).length)) },
  ];
};

// The y axis comes from the runs, not from bands, and goes below zero only if a line does.
RL.valueRange = (lines) => (plot) => {
  const { min, max } = plot.scales.x;
  let low = Infinity, high = -Infinity;
  for (const line of lines.filter((other) => other.options.width))
    line.x.forEach((step, index) => {
      const value = line.y[index];
      if (min !== null && (step < min || step > max) && line.x.length > 1) return;
      low = Math.min(low, value);
      high = Math.max(high, value);
    });
  if (low > high) return [null, null];
  const isPositive = low >= 0;
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1];
  const room = (high - low) * 0.06;
  return [isPositive ? Math.max(0, low - room) : low - room, high + room];
};

RL.drawMarks = (plot, marks, levels) => {
  const context = plot.ctx, ratio = devicePixelRatio || 1;
  context.save();
  context.textAlign = "left";
  context.fillStyle = RL.css("--muted");
  context.font = `${11 * ratio}px system-ui, sans-serif`;
  for (const [value, word] of levels)
    context.fillText(word, plot.bbox.left + 5 * ratio, plot.valToPos(value, "y", true) - 5 * ratio);
  context.restore();
  for (const [step, word] of marks) {
    if (step < plot.scales.x.min || step > plot.scales.x.max) continue;
    const x = plot.valToPos(step, "x", true), { top, height, left, width } = plot.bbox;
    context.save();
    context.strokeStyle = context.fillStyle = RL.css("--muted");
    context.setLineDash([4 * ratio, 4 * ratio]);
    context.beginPath();
    context.moveTo(x, top);
    context.lineTo(x, top + height);
    context.stroke();
    context.font = `${11 * ratio}px system-ui, sans-serif`;
    const isRight = x > left + width * 0.7;
    context.textAlign = isRight ? "right" : "left";
    context.fillText(word, x + (isRight ? -5 : 5) * ratio, top + 12 * ratio);
    context.restore();
  }
};

// The line of numbers over a chart: at the cursor, or (step null) at the end of each curve.
RL.readOut = (place, metric, groups, cursor) => {
  const isTold = cursor === null && RL.data.told === metric;  // the result has the numbers at the end
  const where = isTold ? "move over the chart to read its values" : cursor === null ? "at the end" : `at ${RL.count(cursor)}`;
  const parts = [RL.el("span", { className: "step" }, where)];
  if (isTold) groups = [];
  for (const group of groups) {
    const step = cursor ?? group.main.x[group.main.x.length - 1];
    const value = RL.valueAt(group.main, step);
    if (value === null) continue;
    const text = [RL.number(value)];
    if (group.main.low) {
      const [low, high] = [group.main.low, group.main.high].map((y) => RL.valueAt({ x: group.main.x, y }, step));
      text.push(`[${RL.number(low)}, ${RL.number(high)}]`);
    }
    const other = group.reference && RL.valueAt(group.reference, step);
    if (other !== null && other !== undefined) text.push(`· dashed ${RL.number(other)}`);
    parts.push(RL.el("span", { className: "value" },
      RL.el("span", { className: `dot ${RL.groupClass(group.index)}`, "aria-hidden": "true" }),
      RL.data.groups.length > 1 ? `${group.name} ` : null, text.join(" ")));
  }
  place.replaceChildren(...parts);
};

RL.dataTable = (block) => {
  const groups = RL.groupCurves(block, block.table, block.metric).filter((group) => !RL.hidden.has(group.index));
  const columns = [RL.data.facets[block.facet].unit], series = [];
  for (const group of groups) {
    const start = RL.data.groups.length > 1 ? `${group.name}, ` : "";
    for (const curve of group.curves) {
      columns.push(start + curve.run.label);
      series.push(curve);
    }
    if (group.curves.length > 1) {
      const main = RL.summaryCurve(group.curves);
      for (const [word, y] of [[RL.summaryWord(group.curves.length), main.y], ["low", main.low], ["high", main.high]]) {
        columns.push(start + word);
        series.push({ x: main.x, y: y.map((value) => Number(value.toPrecision(6))) });
      }
    }
  }
  const values = series.map((curve) => new Map(curve.x.map((step, index) => [step, curve.y[index]])));
  const steps = [...new Set(series.flatMap((curve) => curve.x))].sort((a, b) => a - b);
  const rows = steps.map((step) => [RL.count(step), ...values.map((column) => String(column.get(step) ?? ""))]);
  return RL.table({ caption: block.title, columns, rows, num_text_columns: 0 });
};

RL.plot = (block) => {
  const facet = RL.data.facets[block.facet];
  const holder = RL.el("div", { className: "drawing", role: "img", "aria-label": `${block.title}; the table below has the same numbers` });
  const reading = RL.el("p", { className: "reading" });
  const figure = RL.el("figure", { className: "plot", "data-metric": block.metric, "data-facet": block.facet },
    RL.el("figcaption", {}, RL.el("h3", {}, block.title)), reading, holder,
    block.note ? RL.el("p", { className: "note" }, block.note) : null, RL.fold("Table", () => RL.dataTable(block)));
  const chart = { block, figure, plot: null, isSeen: false };
  chart.draw = () => {
    if (!chart.isSeen || !figure.isConnected) return;
    const range = chart.plot && chart.isZoomed ? { ...chart.plot.scales.x } : null;
    if (chart.plot) chart.plot.destroy();
    const { groups, lines, bands } = RL.seriesOf(block);
    if (!lines.length) {
      chart.plot = null;
      reading.replaceChildren(RL.el("span", {}, "hidden"));
      return;
    }
    const data = RL.aligned(lines), last = data[0][data[0].length - 1];
    const say = (plot) => RL.readOut(reading, block.metric, groups, plot.cursor.idx == null ? null : data[0][plot.cursor.idx]);
    chart.plot = new uPlot({
      width: Math.max(200, holder.clientWidth), height: RL.HEIGHT,
      legend: { show: false }, axes: RL.axes(facet.unit), bands, scales: { x: { time: false }, y: { range: RL.valueRange(lines) } },
      series: [{}, ...lines.map((line) => ({ spanGaps: true, ...line.options }))],
      cursor: { sync: { key: `facet${block.facet}`, setSeries: false }, drag: { x: true, y: false }, points: { show: false } },
      hooks: { setCursor: [say], draw: [(plot) => RL.drawMarks(plot, facet.marks, block.levels)],
        setScale: [(plot, key) => { chart.isZoomed = key === "x" && (plot.scales.x.min > data[0][0] || plot.scales.x.max < last); }] },
    }, data, holder);
    RL.readOut(reading, block.metric, groups, null);
    if (range) chart.plot.setScale("x", range);
  };
  new ResizeObserver(() => {
    if (chart.plot) chart.plot.setSize({ width: Math.max(200, holder.clientWidth), height: RL.HEIGHT });
  }).observe(holder);
  RL.plots.add(chart);
  figure.chart = chart;
  RL.watcher.observe(figure);
  return figure;
};

// A chart is drawn when it comes near the window.
RL.watcher = new IntersectionObserver((entries) => {
  for (const entry of entries)
    if (entry.isIntersecting && !entry.target.chart.isSeen) {
      entry.target.chart.isSeen = true;
      entry.target.chart.draw();
    }
}, { rootMargin: "800px" });

RL.redraw = () => {
  for (const chart of RL.plots) {
    if (!chart.figure.isConnected) {
      if (chart.plot) chart.plot.destroy();
      RL.plots.delete(chart);
    } else {
      chart.draw();
      const details = chart.figure.querySelector("details[open]");
      if (details) details.dispatchEvent(new Event("toggle"));
    }
  }
  for (const draw of RL.redraws) draw();
};

addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details.section")) details.open = true;
  for (const chart of RL.plots) chart.isSeen = true;
  RL.redraw();
});
