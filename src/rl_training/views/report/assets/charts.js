"use strict";
// Learning curves with uPlot: every run thin, the mean of a group thick, its 95 % interval as a band.
RL.plots = new Set();
RL.HEIGHT = 240;

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

// Mean over the runs of a group, where every run has a value, and its interval.
RL.meanCurve = (curves) => {
  const first = Math.max(...curves.map((curve) => curve.x[0]));
  const last = Math.min(...curves.map((curve) => curve.x[curve.x.length - 1]));
  const x = [...new Set(curves.flatMap((curve) => curve.x))].filter((step) => step >= first && step <= last);
  x.sort((a, b) => a - b);
  const count = curves.length, mean = [], low = [], high = [];
  for (const step of x) {
    const values = curves.map((curve) => RL.valueAt(curve, step));
    const middle = values.reduce((sum, value) => sum + value, 0) / count;
    const variance = values.reduce((sum, value) => sum + (value - middle) ** 2, 0) / Math.max(1, count - 1);
    const half = (RL.data.quantiles[count] || 0) * Math.sqrt(variance / count);
    mean.push(middle);
    low.push(middle - half);
    high.push(middle + half);
  }
  return { x, y: mean, low, high };
};

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
    group.mean = isSingle ? group.curves[0] : RL.meanCurve(group.curves);
    const dash = group.index >= 8 ? [8, 3] : undefined;
    if (!isSingle && group.mean.x.length) {
      const hidden = { width: 0, stroke: "transparent", points: { show: false } };
      const high = add(group.mean, group.mean.high, hidden), low = add(group.mean, group.mean.low, hidden);
      bands.push({ series: [high, low], fill: RL.color(group.index, 0.16) });
    }
    if (isSingle || RL.showSeeds || !group.mean.x.length)
      for (const curve of group.curves)
        add(curve, curve.y, { width: isSingle ? 2 : 1, dash, stroke: RL.color(group.index, isSingle ? undefined : 0.5),
          points: { show: curve.x.length <= (isSingle ? 30 : 1), size: 5 } });
    if (!isSingle) add(group.mean, group.mean.y, { width: 2.25, dash, stroke: RL.color(group.index), points: { show: false } });
  }
  if (block.reference)
    for (const group of RL.groupCurves(block, "evaluations", block.reference).filter((g) => !RL.hidden.has(g.index))) {
      const mean = group.curves.length === 1 ? group.curves[0] : RL.meanCurve(group.curves);
      const shown = groups.find((other) => other.index === group.index);
      if (shown) shown.reference = mean;
      add(mean, mean.y, { width: 2, dash: [5, 5], stroke: RL.color(group.index), points: { show: false } });
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
    { ...shared, values: short, size: 26, space: 70, grid: { show: false }, label: unit, labelSize: 18, labelFont: shared.font, labelGap: 0 },
    { ...shared, values: short, space: 36, gap: 6,
      size: (plot, values) => 16 + 7 * Math.max(3, ...(values || []).map((value) => String(value).length)) },
  ];
};

// The y axis; uPlot draws curves that are 0 everywhere from 0 to 100.
RL.valueRange = (plot, low, high) => {
  if (low === null) return [null, null];
  return low === 0 && high === 0 ? [-1, 1] : uPlot.rangeNum(low, high, 0.1, true);
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
RL.readOut = (place, groups, cursor) => {
  const parts = [RL.el("span", { className: "step" }, cursor === null ? "at the end" : `at ${RL.count(cursor)}`)];
  for (const group of groups) {
    const step = cursor ?? group.mean.x[group.mean.x.length - 1];
    const value = RL.valueAt(group.mean, step);
    if (value === null) continue;
    const text = [RL.number(value)];
    if (group.mean.low) {
      const [low, high] = [group.mean.low, group.mean.high].map((y) => RL.valueAt({ x: group.mean.x, y }, step));
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
      const mean = RL.meanCurve(group.curves);
      for (const [word, y] of [["mean", mean.y], ["low", mean.low], ["high", mean.high]]) {
        columns.push(start + word);
        series.push({ x: mean.x, y: y.map((value) => Number(value.toPrecision(6))) });
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
    const say = (plot) => RL.readOut(reading, groups, plot.cursor.idx == null ? null : data[0][plot.cursor.idx]);
    chart.plot = new uPlot({
      width: Math.max(200, holder.clientWidth), height: RL.HEIGHT,
      legend: { show: false }, axes: RL.axes(facet.unit), bands, scales: { x: { time: false }, y: { range: RL.valueRange } },
      series: [{}, ...lines.map((line) => ({ spanGaps: true, ...line.options }))],
      cursor: { sync: { key: `facet${block.facet}`, setSeries: false }, drag: { x: true, y: false }, points: { show: false } },
      hooks: { setCursor: [say], draw: [(plot) => RL.drawMarks(plot, facet.marks, block.levels)],
        setScale: [(plot, key) => { chart.isZoomed = key === "x" && (plot.scales.x.min > data[0][0] || plot.scales.x.max < last); }] },
    }, data, holder);
    RL.readOut(reading, groups, null);
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
  for (const chart of RL.plots) chart.isSeen = true;
  RL.redraw();
});
